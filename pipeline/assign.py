"""Which split has which steps of which episodes, as the options ask; `splits.py` has the arithmetic."""

from collections.abc import Sequence

import numpy as np

from shards.errors import EpisodeError, OptionError
from shards.naming import NAME_RULE, is_split_name
from shards.windows import Int64s, WindowSpec

from .episodes import Episodes
from .labels import Labels
from .options import BuildOptions
from .splits import Sections, check_groups, group_names, split_by_fraction, split_by_hash, split_by_name, split_by_time


def group_episodes(options: BuildOptions, episodes: Episodes, labels: Labels | None) -> list[str] | None:
    """The group of each episode, "" where it cannot be used; None where no groups were asked for.

    Errors: EpisodeError for an episode without a group, OptionError for a regular expression that is none.
    """
    if options.group_by is None:
        return None
    usable = _usable(episodes)
    if labels is not None and options.group_by in labels.columns:
        found = _column(episodes, labels, options.group_by, usable)
    else:
        try:
            found = group_names([episodes.paths[i] for i in usable], options.group_by)
        except (EpisodeError, OptionError) as error:
            columns = "none, as --labels is not given" if labels is None else ", ".join(labels.columns)
            raise type(error)(f"{error}\nOr name a column of the labels; there are: {columns}.") from None
    return _spread(episodes, usable, found)


def assign_splits(
    options: BuildOptions, episodes: Episodes, window: WindowSpec, labels: Labels | None, groups: Sequence[str] | None
) -> dict[str, Sections]:
    """The sections of episodes that each split has, in the order of the splits; each section has a window.

    Errors: EpisodeError where a split would have none, and for splits that were given and cannot be.
    """
    windows = window.count(episodes.steps)
    if not windows.any():
        raise EpisodeError(
            f"no episode is as long as one window, {window.extent} steps: the longest has {episodes.steps.max()}"
        )
    if options.fractions is None:
        dealt = split_by_name(windows, _given_splits(options, episodes, labels))
        if groups is not None:
            check_groups(groups, dealt, episodes.paths)
    elif options.split_by == "time":
        return split_by_time(episodes.steps, window, options.fractions, options.purge)
    elif options.split_by == "hash":
        dealt = split_by_hash(windows, episodes.paths if groups is None else groups, options.fractions, options.seed)
    else:
        dealt = split_by_fraction(
            windows, options.fractions, options.seed, None if groups is None else _numbered(groups)
        )
    options.check_split_names(dealt)
    return {name: _whole(rows, episodes.steps) for name, rows in dealt.items()}


def _numbered(groups: Sequence[str]) -> Int64s:
    numbers = {group: number for number, group in enumerate(sorted(set(groups)))}
    return np.fromiter(map(numbers.__getitem__, groups), np.int64, len(groups))


def _whole(rows: Int64s, steps: Int64s) -> Sections:
    return Sections(rows, np.zeros_like(rows), steps[rows])


def _given_splits(options: BuildOptions, episodes: Episodes, labels: Labels | None) -> list[str]:
    """The name of the split of each episode, "" where it cannot be used."""
    usable = _usable(episodes)
    if options.splits_from is not None:
        assert labels is not None
        names = _column(episodes, labels, options.splits_from, usable)
        where = f"column {options.splits_from} of {labels.file}"
    else:
        names = [episodes.paths[i].partition("/")[0] if "/" in episodes.paths[i] else "" for i in usable]
        where = f"its folder below {episodes.root} (episodes belong in folders such as train/; give what holds these)"
    for i, name in zip(usable, names, strict=True):
        if not is_split_name(name):
            raise EpisodeError(
                f"{episodes.paths[i]} has {f'{name!r} as split' if name else 'no split'}, by {where}; a split's name"
                f" must be {NAME_RULE}"
            )
    return _spread(episodes, usable, names)


def _usable(episodes: Episodes) -> list[int]:
    return [i for i in range(len(episodes.paths)) if i not in episodes.problems]


def _spread(episodes: Episodes, usable: Sequence[int], words: Sequence[str]) -> list[str]:
    """The word of each episode, "" where it cannot be used."""
    spread = [""] * len(episodes.paths)
    for i, word in zip(usable, words, strict=True):
        spread[i] = word
    return spread


def _column(episodes: Episodes, labels: Labels, column: str, rows: Sequence[int]) -> list[str]:
    words = labels.column(column)
    found, _ = labels.find([episodes.paths[i] for i in rows])
    chosen = [words[row] for row in found.tolist()]
    if "" in chosen:
        lacking = episodes.paths[rows[chosen.index("")]]
        raise EpisodeError(f"labels file {labels.file} has nothing in column {column} for {lacking}: fill it in")
    return chosen
