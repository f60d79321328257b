"""Which split has which episodes, or which sections of them: pure functions of lengths, names and a seed.

Episodes or groups of them are dealt whole by their shares of the windows (`split_by_fraction`), decided one by one by a
hash (`split_by_hash`) or given (`split_by_name`); or every episode is cut along time (`split_by_time`). No split is
ever empty, and no step is in two splits. As in the plan, every order comes from a keyed integer hash.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import accumulate, permutations
from math import lcm

import numpy as np

from shards.errors import EpisodeError, OptionError
from shards.keyed_hash import keyed_hash
from shards.naming import NAME_RULE, is_split_name
from shards.windows import Int64s, WindowSpec

FIRST_SPLITS = ("train", "validation", "val", "dev", "test")
_EXCHANGED = 1000  # units at most: every pair of them is looked at, and many units come near without
_LISTED = 5


@dataclass(frozen=True)
class Sections:
    """What one split has: of each of its episodes (ascending rows) the steps [begin, begin + steps)."""

    episodes: Int64s
    begin: Int64s
    steps: Int64s


def split_by_fraction(
    windows: Int64s, fractions: Mapping[str, str], seed: int, groups: Int64s | None = None
) -> dict[str, Int64s]:
    """Deal the episodes that have windows to the splits, whole, by their shares of the windows.

    The episodes are put into a seeded order. All splits but the largest, from the smallest on, go along it once and
    take every episode not yet taken that brings them nearer to their share; the largest takes the rest. No split stays
    empty. Up to 1000 episodes are then moved and swapped for as long as that brings the splits nearer to their shares.
    With `groups`, the number of each episode's group, groups are dealt as episodes are.

    >>> halves = {"train": "0.5", "test": "0.5"}
    >>> dealt = split_by_fraction(np.array([3, 0, 2, 4, 1]), halves, 0, groups=np.array([7, 7, 9, 9, 7]))
    >>> {name: rows.tolist() for name, rows in dealt.items()}
    {'train': [2, 3], 'test': [0, 4]}
    """
    usable = np.flatnonzero(windows)
    numbers, unit = np.unique(usable if groups is None else groups[usable], return_inverse=True)
    if len(numbers) < len(fractions):
        kind = "episodes" if groups is None else "groups of episodes"
        raise EpisodeError(
            f"{len(fractions)} splits need as many {kind} that have a window, but there are {len(numbers)}; "
            "add episodes, take shorter windows or ask for fewer splits"
        )
    sizes = np.zeros(len(numbers), np.int64)
    np.add.at(sizes, unit, windows[usable])
    order = np.argsort(keyed_hash(numbers, seed, 0), kind="stable")
    shares = [Fraction(fraction) for fraction in fractions.values()]
    dealt = _deal(sizes[order], shares)
    if len(numbers) <= _EXCHANGED:
        _exchange(sizes[order], dealt, shares)
    split = np.empty_like(dealt)
    split[order] = dealt
    return {name: usable[split[unit] == number] for number, name in enumerate(fractions)}


def _deal(sizes: Int64s, shares: Sequence[Fraction]) -> Int64s:
    """The split of each unit: each split but the largest takes units in turn, and the largest has the rest."""
    total = int(sizes.sum())
    *smaller, largest = sorted(range(len(shares)), key=lambda split: shares[split])
    dealt = np.full(len(sizes), largest)
    left = np.arange(len(sizes))
    for position, split in enumerate(smaller):
        spare = len(left) - (len(smaller) - position)  # the splits to come need a unit each
        taken = _take_near(sizes[left], shares[split] * total, spare)
        dealt[left[taken]] = split
        left = np.delete(left, taken)
    return dealt


def _take_near(sizes: Int64s, target: Fraction, most: int) -> Int64s:
    """Places of sizes, at least one and at most `most`, each of which brought the sum nearer to the target."""
    unit = target.denominator  # all in whole parts of it
    smallest, lacking = int(sizes.min()) * unit, target.numerator
    taken: list[int] = []
    for place, size in enumerate(sizes.tolist()):
        if 2 * lacking <= smallest or len(taken) == most:
            break
        if size * unit < 2 * lacking:
            taken.append(place)
            lacking -= size * unit
    return np.array(taken or [int(sizes.argmin())])


def _exchange(sizes: Int64s, dealt: Int64s, shares: Sequence[Fraction]) -> None:
    """Move or swap single units, always the best way, for as long as the deviations from the shares shrink."""
    total, nothing = int(sizes.sum()), len(sizes)
    unit = min(lcm(*(share.denominator for share in shares)), max(2**61 // total, 1))  # int64 must hold all
    sizes, total = sizes * unit, total * unit
    ends = [round(end * total) for end in accumulate(shares, initial=Fraction())]
    over = [int(sizes[dealt == split].sum()) - (ends[split + 1] - ends[split]) for split in range(len(shares))]
    sizes = np.append(sizes, 0)  # what a unit that only moves is swapped for
    while True:
        best, swap = 0, (0, 0, 0, 0)
        for giver, taker in permutations(range(len(shares)), 2):
            # Moving anything in [low, high] shrinks the two deviations by `low` each, and no amount by more.
            low, high = sorted((over[giver], -over[taker]))
            if low <= best:
                continue
            given, back = np.flatnonzero(dealt == giver), np.flatnonzero(dealt == taker)
            if len(given) > 1:  # else the giver must get one back
                back = np.append(back, nothing)
            moved = sizes[given][:, None] - sizes[back]
            gains = low - np.maximum(np.maximum(low - moved, moved - high), 0)
            row, column = np.unravel_index(gains.argmax(), gains.shape)
            if gains[row, column] > best:
                best, swap = int(gains[row, column]), (giver, taker, int(given[row]), int(back[column]))
        if not best:
            return
        giver, taker, moves, returned = swap
        dealt[moves] = taker
        if returned != nothing:
            dealt[returned] = giver
        over[giver] -= int(sizes[moves] - sizes[returned])
        over[taker] += int(sizes[moves] - sizes[returned])


def split_by_hash(windows: Int64s, keys: Sequence[str], fractions: Mapping[str, str], seed: int) -> dict[str, Int64s]:
    """Decide each episode that has windows by a keyed hash of its key, such as its path or its group's name, alone.

    Whatever is added or taken away later, an episode stays in its split for as long as its key is the same. The splits
    have about their fractions of the keys, as chance has it.

    >>> halves = {"train": "0.5", "test": "0.5"}
    >>> split = split_by_hash(np.array([1, 1, 0, 9]), ["a.npy", "b.npy", "c.npy", "d.npy"], halves, seed=0)
    >>> {name: rows.tolist() for name, rows in split.items()}
    {'train': [1], 'test': [0, 3]}
    """
    usable = np.flatnonzero(windows)
    digests = (sha256(keys[row].encode(errors="surrogateescape")).digest() for row in usable.tolist())
    numbers = np.fromiter((int.from_bytes(digest[:8], "little") for digest in digests), np.uint64, len(usable))
    ends = accumulate(Fraction(fraction) for fraction in fractions.values())
    below = np.array([int(end * 2**64) for end in ends if end < 1], np.uint64)  # the last split has the rest
    split = np.searchsorted(below, keyed_hash(numbers, seed, 2), side="right")
    rows = {name: usable[split == number] for number, name in enumerate(fractions)}
    for name, has in rows.items():
        if not len(has):
            raise EpisodeError(
                f"split {name} is empty: the hash put none of the {len(usable)} episodes that have a window into its "
                f"fraction of {fractions[name]}; add episodes, take another seed or a larger fraction, or split by "
                "fractions of the episodes instead of by hash"
            )
    return rows


def split_by_name(windows: Int64s, names: Sequence[str], order: Sequence[str] | None = None) -> dict[str, Int64s]:
    """Put each episode that has windows into the split named for it; "" is none.

    Splits come in the order of those in `order` (FIRST_SPLITS unless given), then alphabetically.

    >>> split = split_by_name(np.array([2, 5, 0, 1]), ["test", "train", "test", ""])
    >>> {name: rows.tolist() for name, rows in split.items()}
    {'train': [1], 'test': [0]}
    """
    present = {name: 0 for name in names if name}
    for name in present:
        if not is_split_name(name):
            raise EpisodeError(f"episode {names.index(name)} is put into split {name!r}; its name must be {NAME_RULE}")
    if not present:
        raise EpisodeError("no episode is put into a split; name the split of one at least")
    first = [name for name in (FIRST_SPLITS if order is None else order) if name in present]
    ordered = [*dict.fromkeys(first), *sorted(present.keys() - set(first))]
    number = {name: place for place, name in enumerate(["", *ordered])}
    split = np.fromiter((number[name] for name in names), np.int64, len(names))
    split[windows == 0] = 0
    rows = {name: np.flatnonzero(split == number[name]) for name in ordered}
    for name, has in rows.items():
        if not len(has):
            raise EpisodeError(
                f"split {name} has no window: all {names.count(name)} episodes put into it are too short or left out; "
                "take shorter windows, put other episodes into it or leave the split out"
            )
    return rows


def split_by_time(steps: Int64s, spec: WindowSpec, fractions: Mapping[str, str], purge: int) -> dict[str, Sections]:
    """Cut every episode along time: its first part goes to the first split, and so on, with `purge` steps between.

    Windows begin anew in each section, so no two splits share a step. What each split lacks of its share of all windows
    is carried from episode to episode. One too short to be cut for every split is cut for those that lack most.

    >>> spec = WindowSpec(4, shift=2)
    >>> sections = split_by_time(np.array([23, 5, 0]), spec, {"train": "0.75", "test": "0.25"}, purge=1)
    >>> [(split.episodes.tolist(), split.begin.tolist(), split.steps.tolist()) for split in sections.values()]
    [([0, 1], [0, 0], [16, 5]), ([0], [17], [6])]
    """
    exact = [Fraction(fraction) for fraction in fractions.values()]
    unit = lcm(*(fraction.denominator for fraction in exact))
    parts = [int(fraction * unit) for fraction in exact]
    cut = _cut_along_time(steps, spec, parts, purge)
    empty = [name for name, sections in zip(fractions, cut, strict=True) if not sections]
    if empty:
        longest = int(steps.max(initial=0))
        least = len(parts) * (spec.extent + purge) - purge
        if longest < least:
            raise EpisodeError(
                f"split {empty[0]} gets no window: to cut one episode for {len(parts)} splits takes {least} steps, a "
                f"window of {spec.extent} for each and {purge} purged between two, but the longest has {longest}; "
                "split by fractions of whole episodes instead, or take shorter windows, a smaller purge or fewer splits"
            )
        cut = _cut_along_time(steps, spec, parts, purge, for_all=int(steps.argmax()))
    return {
        name: Sections(*np.array(flat, np.int64).reshape(-1, 3).T.copy())
        for name, flat in zip(fractions, cut, strict=True)
    }


def _cut_along_time(
    steps: Int64s, spec: WindowSpec, parts: Sequence[int], purge: int, for_all: int = -1
) -> list[list[int]]:
    """Of each split the episode, begin and steps of every section, one after the other.

    `parts` are the splits' fractions in whole numbers; episode `for_all` has a section for every split.
    """
    unit, splits = sum(parts), range(len(parts))
    extent, shift = spec.extent, spec.shift
    least_rest = {"drop": shift, "pad": max(shift - extent, 0), "align": 0}[spec.tail]  # a longer one has a window
    sections: list[list[int]] = [[] for _ in parts]
    owed = [0] * len(parts)  # the windows that each split lacks of its share so far, times `unit`
    for row, (length, whole) in enumerate(zip(steps.tolist(), spec.count(steps).tolist(), strict=True)):
        if not whole:
            continue
        most = (length + purge) // (extent + purge)
        among = list(splits)
        if most < len(among):
            lacking = sorted(among, key=lambda split: -owed[split] - parts[split] * whole)
            among = sorted(lacking[: max(most, 1)])
        shares, rest = [whole], 0
        while len(among) > 1:
            windows, rest = divmod(length + purge - len(among) * (extent - shift + purge), shift)
            wants = [owed[split] + parts[split] * windows for split in among]
            if row == for_all:
                more = _apportion(windows - len(among), [want - unit for want in wants])
                shares = [1 + windows for windows in more]
                break
            shares = _apportion(windows, wants)
            if all(shares):
                break
            among = [split for split, share in zip(among, shares, strict=True) if share]  # there is room for more now
        begin = 0
        for split, share in zip(among[:-1], shares, strict=False):
            taken = extent + (share - 1) * shift
            sections[split] += row, begin, taken
            begin += taken + purge
        sections[among[-1]] += row, begin, length - begin
        if len(among) == 1:
            shares = [whole]
        elif rest > least_rest:
            shares[-1] += 1
        given = sum(shares)
        for split in splits:
            owed[split] += parts[split] * given
        for split, share in zip(among, shares, strict=True):
            owed[split] -= unit * share
    return sections


def _apportion(windows: int, wants: Sequence[int]) -> list[int]:
    """Whole windows in proportion to the wants above 0, what rounding leaves to those whose remainders are largest.

    >>> _apportion(10, [70, 25, -5]), _apportion(2, [-1, 0])
    ([7, 3, 0], [0, 2])
    """
    above = [want if want > 0 else 0 for want in wants]
    total = sum(above)
    if not total:
        total = above[wants.index(max(wants))] = 1
    shares = [windows * want // total for want in above]
    left = windows - sum(shares)
    if left:
        rounded = [share * total - windows * want for share, want in zip(shares, above, strict=True)]
        for place in sorted(range(len(wants)), key=rounded.__getitem__)[:left]:
            shares[place] += 1
    return shares


def check_groups(groups_of: Sequence[str], splits: Mapping[str, Int64s], paths: Sequence[str]) -> None:
    """Make sure that no group of episodes is in two of the splits that the user gave.

    `groups_of` has the group of each episode, `paths` its path. Errors: EpisodeError.
    """
    found: dict[str, dict[str, int]] = {}  # the first episode of each group in each split
    for name, rows in splits.items():
        for row in rows.tolist():
            found.setdefault(groups_of[row], {}).setdefault(name, row)
    torn = {group: places for group, places in found.items() if len(places) > 1}
    if torn:
        lines = [
            f"  {group!r} is in " + " and ".join(f"{name} ({paths[row]})" for name, row in places.items())
            for group, places in sorted(torn.items())[:_LISTED]
        ]
        raise EpisodeError(
            f"{len(torn)} groups of episodes are in more than one split by the splits that were given, but --group_by "
            "keeps a group together:\n" + "\n".join(lines) + _and_more(len(torn)) + "\n"
            "Give all episodes of a group the same split, or leave out --group_by."
        )


def group_names(paths: Sequence[str], pattern: str) -> list[str]:
    """The group of each path: what a regular expression finds in it, or its first capture group if it has one.

    >>> group_names(["speaker1/a.npy", "speaker2/a.npy"], "speaker[0-9]+"), group_names(["x-7-a.npy"], "-([0-9]+)-")
    (['speaker1', 'speaker2'], ['7'])
    """
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(f"group_by {pattern!r} is no regular expression: {error}") from None
    capture = min(expression.groups, 1)
    matches = map(expression.search, paths)
    groups = ["" if match is None else match[capture] or "" for match in matches]
    without = [path for path, group in zip(paths, groups, strict=True) if not group]
    if without:
        raise EpisodeError(
            f"group_by {pattern!r} finds no group, or an empty one, in the paths of {len(without)} of {len(paths)} "
            "episodes:\n" + "\n".join(f"  {path}" for path in without[:_LISTED]) + _and_more(len(without)) + "\n"
            "Give an expression that finds one in every path, or leave those episodes out."
        )
    return groups


def _and_more(count: int) -> str:
    return f"\n  and {count - _LISTED} more" if count > _LISTED else ""
