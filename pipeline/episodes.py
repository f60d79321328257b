"""What the episodes are: each file's header read and checked, before anything is written."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shards.errors import EpisodeError
from shards.record import MAX_EPISODES, MAX_STEPS

from .files import is_remote, open_file
from .inputs import EpisodeFile
from .npy import FIRST_READ, NpyError, NpyHeader, header_bytes, parse_header
from .options import OnError

_LISTED = 50  # bad files that one error message names
_THREADS = 32  # header reads in flight: the latency of an object store is hidden, a local disk not hurt
_FILES_PER_TASK = 64


@dataclass(frozen=True)
class Episodes:
    """All episode files as a table, row by row in the order of their paths; a row is an episode's number for good.

    `root` + paths[i] opens row i. dtype and step_shape are the same in every usable row. Where a file cannot be used,
    `problems` says why, and its `steps` are 0. steps, offsets (bytes before the data): int64 arrays; big_endian,
    fortran_order: bool arrays.
    """

    root: str
    paths: tuple[str, ...]
    dtype: str
    step_shape: tuple[int, ...]
    steps: NDArray[np.int64]
    offsets: NDArray[np.int64]
    big_endian: NDArray[np.bool_]
    fortran_order: NDArray[np.bool_]
    problems: dict[int, str]


def survey(files: Sequence[EpisodeFile], on_error: OnError = "fail") -> Episodes:
    """Read the header of every file and make sure that the episodes agree in dtype and step shape.

    With on_error="skip", files that cannot be used, and those that disagree with the largest group, become `problems`.
    Errors: one EpisodeError that names all bad files (its first 50), and each group with its count and two examples.
    """
    if len(files) >= MAX_EPISODES:
        raise EpisodeError(f"{len(files)} episodes are more than a dataset can hold ({MAX_EPISODES})")
    headers = _read_headers(files)
    problems = {i: str(error) for i, error in enumerate(headers) if isinstance(error, NpyError)}
    kinds = {i: (h.dtype, h.shape[1:]) for i, h in enumerate(headers) if isinstance(h, NpyHeader)}
    groups = Counter(kinds.values())
    complaints = [_list_problems(files, problems)] if problems else []
    if len(groups) > 1:
        complaints.append(_list_groups(files, kinds, groups))
    if complaints and on_error == "fail":
        raise EpisodeError("\n".join([*complaints, "Mend or remove them, or leave them out with --on_error skip."]))
    if not groups:
        raise EpisodeError("\n".join([*complaints, "No episode is left."]))
    chosen = groups.most_common(1)[0][0]
    for i, kind in kinds.items():
        if kind != chosen:
            problems[i] = f"is {_kind(*kind)} where most episodes are {_kind(*chosen)}"
    usable = [None if i in problems else header for i, header in enumerate(headers)]

    def column(attribute: str, dtype: type) -> NDArray:  # type: ignore[type-arg]
        return np.array([0 if header is None else getattr(header, attribute) for header in usable], dtype)

    return Episodes(
        root=files[0].root,
        paths=tuple(file.path for file in files),
        dtype=chosen[0],
        step_shape=chosen[1],
        steps=np.array([0 if isinstance(h, NpyError | None) else h.shape[0] for h in usable], np.int64),
        offsets=column("offset", np.int64),
        big_endian=column("big_endian", np.bool_),
        fortran_order=column("fortran_order", np.bool_),
        problems=problems,
    )


def read_header(file: EpisodeFile) -> NpyHeader | NpyError:
    """The header of one file, checked against the file's size; a NpyError is returned, not raised."""
    try:
        if file.size < 0 and not is_remote(file.root):
            raise NpyError("is no file that can be read (a broken link, a pipe or a device)")
        with open_file(file.root + file.path) as opened:
            start = opened.read(FIRST_READ)
            missing = header_bytes(start) - len(start)
            if missing > 0:
                start += opened.read(missing)
        header = parse_header(start)
        if header.shape[0] >= MAX_STEPS:
            raise NpyError(f"has {header.shape[0]} steps; {MAX_STEPS} are too many")
        if header.file_bytes > file.size:
            raise NpyError(f"is cut short: {file.size} bytes, where its header promises {header.file_bytes}")
        if header.file_bytes < file.size:
            extra = file.size - header.file_bytes
            raise NpyError(f"has {extra} bytes after its array (several arrays saved into one file?)")
    except NpyError as error:
        return error
    except OSError as error:
        return NpyError(f"cannot be read: {error.strerror or error}")
    return header


def _read_headers(files: Sequence[EpisodeFile]) -> list[NpyHeader | NpyError]:
    tasks = [files[i : i + _FILES_PER_TASK] for i in range(0, len(files), _FILES_PER_TASK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(chain.from_iterable(pool.map(lambda task: [read_header(file) for file in task], tasks)))


def _list_problems(files: Sequence[EpisodeFile], problems: dict[int, str]) -> str:
    lines = [f"{len(problems)} of {len(files)} episode files cannot be used:"]
    lines += [f"  {files[i].root}{files[i].path} {why}" for i, why in list(problems.items())[:_LISTED]]
    if len(problems) > _LISTED:
        lines.append(f"  and {len(problems) - _LISTED} more")
    return "\n".join(lines)


Kind = tuple[str, tuple[int, ...]]


def _list_groups(files: Sequence[EpisodeFile], kinds: dict[int, Kind], groups: Counter[Kind]) -> str:
    examples: dict[Kind, list[str]] = {}
    for i, kind in kinds.items():
        if len(some := examples.setdefault(kind, [])) < 2:
            some.append(files[i].path)
    lines = [f"episodes must agree in dtype and step shape, but there are {len(groups)} kinds:"]
    lines += [
        f"  {count} of {_kind(*kind)}, such as {', '.join(examples[kind])}" for kind, count in groups.most_common()
    ]
    return "\n".join(lines)


def _kind(dtype: str, step_shape: tuple[int, ...]) -> str:
    return f"{dtype} with shape ({', '.join(['steps', *map(str, step_shape)])}{'' if step_shape else ','})"
