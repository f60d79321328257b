"""What the episodes are: each file's header read and checked, before anything is written."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shards.errors import EpisodeError, OptionError
from shards.features import DTYPES, kind_of
from shards.record import MAX_EPISODES, MAX_STEPS
from shards.text import printable

from .files import is_remote, open_file
from .inputs import EpisodeFile
from .labels import LabelColumn, Labels, label_columns
from .npy import NpyError
from .options import OnError
from .source import HEADER_BYTES, Form, SourceArray, SourceHeader, arrays_of, read_source_header

_LISTED, _SHOWN = 50, 500  # bad files, or kinds of them, that one error message names, and letters of a kind
_THREADS = 32  # header reads in flight: the latency of an object store is hidden, a local disk not hurt
_FILES_PER_TASK = 64
_INTEGERS = {name: np.iinfo(dtype) for name, dtype in DTYPES.items() if dtype.kind in "iu"}


@dataclass(frozen=True)
class Episodes:
    """All episode files as a table, row by row in the order of their paths; a row is an episode's number for good.

    `root` + paths[i] opens row i. Every usable row has the same `arrays`, which say how they are stored in the dataset;
    how they lie in its file is forms[form[i]], an array of the file from byte offsets[i, j] on. Where a file cannot be
    used, `problems` says why, its `steps` are 0, and its `form` is none. steps, form: int64 (n,); offsets: int64
    (n, most arrays of a file). states: int64 (n, 2), what each file was before it was read, a `FileState`. `labels`
    have a value a row; `unmatched` are paths in the labels file that are no episode's.
    """

    root: str
    paths: tuple[str, ...]
    arrays: tuple[SourceArray, ...]
    forms: tuple[Form, ...]
    steps: NDArray[np.int64]
    form: NDArray[np.int64]
    offsets: NDArray[np.int64]
    states: NDArray[np.int64]
    problems: dict[int, str]
    labels: tuple[LabelColumn, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def step_bytes(self) -> int:
        """Bytes of one step of all arrays, as they are stored."""
        return sum(_step_bytes(array) for array in self.arrays if array.shape is not None)


def survey(
    files: Sequence[EpisodeFile],
    on_error: OnError = "fail",
    picked: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
) -> Episodes:
    """Read the header of every file, and `tabulate` them."""
    return tabulate(files, _read_headers(files, picked), on_error, picked, casts)


def tabulate(
    files: Sequence[EpisodeFile],
    headers: Iterator[SourceHeader | NpyError],
    on_error: OnError = "fail",
    picked: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
) -> Episodes:
    """Make sure that the episodes agree in their arrays, dtypes and step shapes.

    Only the `picked` arrays are looked at, in this order; all, by name, if None. `casts` are the dtypes to store some
    of them as. With on_error="skip", files that cannot be used, and those that disagree with the largest group, become
    `problems`.
    Errors: one EpisodeError that names all bad files (its first 50), and each group with its count and two examples.
    """
    if len(files) >= MAX_EPISODES:
        raise EpisodeError(f"{len(files)} episodes are more than a dataset can hold ({MAX_EPISODES})")
    table = read_table(headers, len(files))
    casts = casts or {}
    kinds = [_kind(form, picked, casts) for form in table.forms]
    counts: dict[Kind, int] = {}
    for kind, count in zip(kinds, np.bincount(table.form[table.form >= 0], minlength=len(kinds)), strict=True):
        counts[kind] = counts.get(kind, 0) + int(count)
    complaints = [_list_problems(files, table.problems)] if table.problems else []
    if len(counts) > 1:
        complaints.append(_list_groups(files, table, kinds, counts))
    if complaints and on_error == "fail":
        raise EpisodeError("\n".join([*complaints, "Mend or remove them, or leave them out with --on_error skip."]))
    if not counts:
        raise EpisodeError("\n".join([*complaints, "No episode is left."]))
    chosen = max(counts, key=lambda kind: counts[kind])
    problems, steps = dict(table.problems), table.steps.copy()
    strange = np.array([kind != chosen for kind in kinds])
    for i in np.flatnonzero((table.form >= 0) & strange[table.form]).tolist():
        problems[i] = f"is {_shown(kinds[table.form[i]])} where most episodes are {_shown(chosen)}"
        steps[i] = 0
    kept = np.flatnonzero(~strange)  # what cannot be used may have a million forms, of which no worker needs to know
    numbers = np.full(len(kinds) + 1, -1)  # the last one is that of form -1
    numbers[kept] = np.arange(len(kept))
    return Episodes(
        root=files[0].root,
        paths=tuple(file.path for file in files),
        arrays=chosen,
        forms=tuple(table.forms[i] for i in kept.tolist()),
        steps=steps,
        form=numbers[table.form],
        offsets=table.offsets,
        states=np.array([file.state for file in files], np.int64).reshape(-1, 2),
        problems=dict(sorted(problems.items())),
    )


@dataclass(frozen=True)
class HeaderTable:
    """Headers as columns, with `form` -1 where one is a problem."""

    forms: tuple[Form, ...]
    steps: NDArray[np.int64]
    form: NDArray[np.int64]
    offsets: NDArray[np.int64]
    problems: dict[int, str]


def read_table(headers: Iterator[SourceHeader | NpyError], count: int) -> HeaderTable:
    """Gather `count` headers as they come, keeping none: a million have few forms."""
    forms: dict[Form, int] = {}
    steps, form = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    offsets = np.zeros((count, 1), np.int64)
    problems = {}
    for i, header in enumerate(headers):
        if isinstance(header, NpyError):
            problems[i] = str(header)
            continue
        form[i] = forms.setdefault(header.form, len(forms))
        steps[i] = header.steps
        if len(header.offsets) > offsets.shape[1]:
            offsets = np.pad(offsets, ((0, 0), (0, len(header.offsets) - offsets.shape[1])))
        offsets[i, : len(header.offsets)] = header.offsets
    return HeaderTable(tuple(forms), steps, form, offsets, problems)


def attach_labels(episodes: Episodes, labels: Labels, leave_out: Collection[str], on_error: OnError) -> Episodes:
    """The episodes with the columns of a labels file, but those to leave out.

    Episodes without a row are an EpisodeError, or `problems` with on_error="skip".
    """
    rows, unmatched = labels.find(episodes.paths)
    lacking = [i for i in np.flatnonzero(rows < 0).tolist() if i not in episodes.problems]
    if lacking and (on_error == "fail" or len(lacking) + len(episodes.problems) == len(rows)):
        skip = ", or leave these episodes out with --on_error skip" if on_error == "fail" else ": no episode is left"
        listed = [f"  {printable(episodes.paths[i])}" for i in lacking[:_LISTED]]
        listed += [f"  and {len(lacking) - _LISTED} more"] if len(lacking) > _LISTED else []
        raise EpisodeError(
            "\n".join(
                [
                    f"{len(lacking)} of {len(rows)} episodes have no row in {labels.file}, whose paths are relative to"
                    f" {episodes.root}:",
                    *listed,
                    *([f"Rows without an episode are such as {unmatched[0]!r}."] if unmatched else []),
                    f"Add the rows{skip}.",
                ]
            )
        )
    steps = episodes.steps.copy()
    steps[lacking] = 0
    problems = episodes.problems | {i: f"has no row in {labels.file.rpartition('/')[2]}" for i in lacking}
    used = rows.copy()
    used[list(problems)] = -1
    columns = label_columns(labels, used, leave_out)
    names = {array.name for array in episodes.arrays}
    if clash := sorted(names & {column.feature.name for column in columns}):
        raise OptionError(f"{clash[0]} is a column of {labels.file} and an array of the episodes: rename the column")
    return replace(
        episodes,
        steps=steps,
        problems=dict(sorted(problems.items())),
        labels=columns,
        unmatched=tuple(unmatched),
    )


def read_header(file: EpisodeFile, picked: Collection[str] | None = None) -> SourceHeader | NpyError:
    """The header of one file, checked against the file's size; a NpyError is returned, not raised."""
    try:
        if file.state.size < 0 and not is_remote(file.root):
            raise NpyError("is no file that can be read (a broken link, a pipe or a device)")
        with open_file(file.root + file.path, HEADER_BYTES) as opened:
            header = read_source_header(opened, file.path, file.state.size, picked)
        if header.steps >= MAX_STEPS:
            raise NpyError(f"has {header.steps} steps; {MAX_STEPS} are too many")
    except NpyError as error:
        return error
    except OSError as error:
        return NpyError(f"cannot be read: {error.strerror or error}")
    return header


def _read_headers(files: Sequence[EpisodeFile], picked: Collection[str] | None) -> Iterator[SourceHeader | NpyError]:
    def read(task: Sequence[EpisodeFile]) -> list[SourceHeader | NpyError]:
        return [read_header(file, picked) for file in task]

    with ThreadPoolExecutor(_THREADS) as pool:
        for headers in pool.map(read, [files[i : i + _FILES_PER_TASK] for i in range(0, len(files), _FILES_PER_TASK)]):
            yield from headers


def cast_episodes(episodes: Episodes, casts: Mapping[str, str]) -> Episodes:
    """The episodes with the dtypes that features are to be stored as; those of arrays are in their kind already.

    Errors: OptionError for a cast of what is not there, or one that cannot keep the meaning of the values.
    """
    used = {episodes.forms[i] for i in np.unique(episodes.form[episodes.steps > 0]).tolist()}
    found = [(array.name, array.dtype) for form in used for array in arrays_of(form)]
    found += [(column.feature.name, column.feature.dtype) for column in episodes.labels]
    for name, dtype in casts.items():
        if name not in dict(found):
            raise OptionError(f"dtype names {name}, but the features are {', '.join(sorted(dict(found)))}")
        for _, source in (pair for pair in found if pair[0] == name):
            if source != dtype and not can_store(source, dtype):
                raise OptionError(f"dtype cannot store {name}, which is {source}, as {dtype}: it is of another kind")
    labels = []
    for column in episodes.labels:
        dtype = casts.get(column.feature.name, column.feature.dtype)
        if column.feature.classes and dtype != "int64":
            raise OptionError(f"dtype cannot store {column.feature.name} as {dtype}: numbers of classes are int64")
        if dtype in _INTEGERS:
            low, high = int(_INTEGERS[dtype].min), int(_INTEGERS[dtype].max)
            if wrong := [value for value in column.values if not low <= value <= high]:
                raise OptionError(f"dtype cannot store {column.feature.name} as {dtype}: the labels have {wrong[0]}")
        labels.append(replace(column, feature=replace(column.feature, dtype=dtype)))
    return replace(episodes, labels=tuple(labels))


def can_store(source: str, target: str) -> bool:
    """Whether values of one dtype may be stored as another, if they are in its range: never a float as an integer."""
    kinds = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    return kinds[kind_of(source)] <= kinds[kind_of(target)]


Kind = tuple[SourceArray, ...]


def _kind(form: Form, picked: Sequence[str] | None, casts: Mapping[str, str]) -> Kind:
    """The arrays of a form as they are stored."""
    arrays = [array._replace(dtype=casts.get(array.name, array.dtype)) for array in arrays_of(form)]
    order: Callable[[SourceArray], int] | None = None if picked is None else lambda array: picked.index(array.name)
    return tuple(arrays if order is None else sorted(arrays, key=order))


def _step_bytes(array: SourceArray) -> int:
    assert array.shape is not None
    return int(np.prod(array.shape, dtype=np.int64)) * DTYPES[array.dtype].itemsize


def _list_problems(files: Sequence[EpisodeFile], problems: dict[int, str]) -> str:
    lines = [f"{len(problems)} of {len(files)} episode files cannot be used:"]
    lines += [f"  {printable(files[i].root + files[i].path)} {why}" for i, why in list(problems.items())[:_LISTED]]
    if len(problems) > _LISTED:
        lines.append(f"  and {len(problems) - _LISTED} more")
    return "\n".join(lines)


def _list_groups(
    files: Sequence[EpisodeFile], table: HeaderTable, kinds: Sequence[Kind], counts: Mapping[Kind, int]
) -> str:
    lines = [f"episodes must agree in arrays, dtypes and step shapes, but there are {len(counts)} kinds:"]
    for kind, count in sorted(counts.items(), key=lambda item: -item[1])[:_LISTED]:
        same = np.array([other == kind for other in kinds])
        rows = np.flatnonzero((table.form >= 0) & same[table.form])[:2]
        lines.append(f"  {count} of {_shown(kind)}, such as {', '.join(printable(files[i].path) for i in rows)}")
    if len(counts) > _LISTED:
        lines.append(f"  and {len(counts) - _LISTED} more")
    return "\n".join(lines)


def _shown(kind: Kind) -> str:
    described = "; ".join(describe_array(array, named=len(kind) > 1 or array.name != "window") for array in kind)
    return described if len(described) <= _SHOWN else f"{described[:_SHOWN]}... ({len(kind)} arrays)"


def describe_array(array: SourceArray, named: bool) -> str:
    """An array in words."""
    name = f"{array.name}: " if named else ""
    if array.shape is None:
        return f"{name}one {array.dtype} an episode"
    shape = ", ".join(["steps", *map(str, array.shape)])
    return f"{name}{array.dtype} with shape ({shape}{'' if array.shape else ','})"
