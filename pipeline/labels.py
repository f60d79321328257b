"""A CSV file of labels: one row an episode, one column a feature."""

import csv
import io
import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shards.errors import EpisodeError, OptionError
from shards.features import Feature
from shards.files import read_regular
from shards.naming import FEATURE_RULE, is_feature_name
from shards.text import printable

from .files import is_remote, read_file

PATH = "path"
_MAX_BYTES = 2**31  # of a local file


# A number that is written with leading zeros is a code, such as 007: as a number it could not be told from 7.
_INTEGER = re.compile("-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(
    r"[+-]?(?:(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[nN][aA][nN]|[iI][nN][fF])"
)


@dataclass(frozen=True)
class Labels:
    """The rows of a labels file, which are numbered from 0 on.

    rows: {path: row}. columns: {name: the text of each row}, all columns but `path`. lines: where each row begins.
    """

    file: str
    rows: dict[str, int]
    columns: dict[str, tuple[str, ...]]
    lines: tuple[int, ...]

    def find(self, paths: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
        """The row of each episode, -1 where there is none, and the paths of the rows that are no episode's, sorted."""
        keys = [posixpath.normpath(path) for path in paths]
        rows = np.array([self.rows.get(key, -1) for key in keys], np.int64)
        return rows, sorted(self.rows.keys() - set(keys))

    def column(self, name: str) -> tuple[str, ...]:
        """The text of each row in one column; OptionError, which names the columns there are, when there is none."""
        if name not in self.columns:
            names = printable(", ".join(self.columns))
            raise OptionError(f"labels file {self.file} has no column {name!r}; its columns are: {names:.500}")
        return self.columns[name]


@dataclass(frozen=True)
class LabelColumn:
    """A column as a feature of shape (), and its value in each of the rows asked for."""

    feature: Feature
    values: tuple[int | float, ...]


def read_labels(file: str) -> Labels:
    """Read a CSV file, local or at a URL: a header, a column `path` of the episodes' paths, and more columns.

    Paths are below the folder that the inputs share, with slashes; "./a.npy" is "a.npy". A byte in them that is not
    UTF-8 stands for itself, as it does in file names. Empty lines do not count.
    Errors: EpisodeError, which names the line, for anything else.
    """
    try:
        data = read_file(file) if is_remote(file) else read_regular(file, _MAX_BYTES)
    except (OSError, ValueError) as error:  # a ValueError for a name with a zero byte
        raise EpisodeError(f"labels file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:  # which not every version of Python's reader refuses
        raise EpisodeError(f"labels file {file} is not UTF-8: it holds zero bytes; save it as UTF-8")
    columns, lines = _read_columns(file, data.decode(errors="surrogateescape"))
    if not lines:
        raise EpisodeError(f"labels file {file} has no row below its header; give each episode one")
    rows = _number_rows(file, columns.pop(PATH), lines)
    try:
        data.decode()
    except UnicodeDecodeError:
        _check_utf8(file, columns, lines)
    return Labels(file, rows, columns, tuple(lines))


def _wrong(file: str, line: int, why: str) -> EpisodeError:
    return EpisodeError(f"labels file {file}, line {line}: {why}")


def _read_columns(file: str, text: str) -> tuple[dict[str, tuple[str, ...]], list[int]]:
    """Every column by name, and the line that each row begins in."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    cells: list[str] = []  # of all rows, since a list for each would be work for the garbage collector
    lines: list[int] = []
    line = 1  # where the next row begins; quoted cells may hold ends of lines
    try:
        for row in reader:
            if not header:
                header = [name.strip() for name in row]
                if header:
                    _check_header(file, header)
            elif len(row) == len(header):
                cells += row
                lines.append(line)
            elif row:
                raise _wrong(
                    file, line, f"{len(row)} cells where the header has {len(header)}; quote cells with a comma"
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise _wrong(
            file, line, f"is not CSV ({error}); cells with a quote, a comma or a new line must be quoted"
        ) from None
    if not header:
        _check_header(file, header)
    columns = {name: cells[i :: len(header)] for i, name in enumerate(header)}
    # Blanks around a comma are no part of a word; a file's name may well begin or end with one.
    return {name: tuple(c if name == PATH else map(str.strip, c)) for name, c in columns.items()}, lines


def _check_header(file: str, header: list[str]) -> None:
    shown = ", ".join(map(repr, header[:100])) or "none"
    if any(map(_escaped, header)):
        raise EpisodeError(f"labels file {file} is not UTF-8: its columns are {shown:.200}; save it as UTF-8")
    if PATH not in header:
        raise EpisodeError(
            f"labels file {file} has no column {PATH!r}; begin it with a header, such as {PATH},reward (its columns"
            f" are now: {shown:.200})"
        )
    known: set[str] = set()
    for index, name in enumerate(header):
        if not name.strip():
            raise EpisodeError(f"labels file {file} has no name for column {index + 1}; name it or remove it")
        if name in known:
            raise EpisodeError(f"labels file {file} has two columns {name!r:.200}; rename or remove one")
        known.add(name)
    if len(header) == 1:
        raise EpisodeError(f"labels file {file} has no column besides {PATH!r}; add one for each label")


def _number_rows(file: str, paths: Sequence[str], lines: Sequence[int]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, path in enumerate(paths):
        if not path:
            raise _wrong(file, lines[row], f"its {PATH} is empty; give the episode's path, or remove the row")
        first = rows.setdefault(posixpath.normpath(path), row)
        if first != row:
            raise _wrong(
                file, lines[row], f"{path!r:.200} is in line {lines[first]} already; remove one of the two rows"
            )
    return rows


def _check_utf8(file: str, columns: dict[str, tuple[str, ...]], lines: Sequence[int]) -> None:
    for cells in columns.values():
        for line, cell in zip(lines, cells, strict=True):
            if _escaped(cell):
                raise _wrong(file, line, f"{cell!r:.200} is not UTF-8; save the file as UTF-8")


def _escaped(text: str) -> bool:
    """Whether text stands for bytes that are not UTF-8."""
    return not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text)


def label_columns(labels: Labels, rows: NDArray[np.int64], leave_out: Collection[str] = ()) -> tuple[LabelColumn, ...]:
    """Every column but those left out, with its values in the rows asked for, 0 for row -1.

    The cells of those rows decide what a column is: int64 if all are whole numbers in its range, else float64 if all
    are numbers (nan and inf too), else the number of each word among the sorted distinct words, the feature's classes.
    Errors: EpisodeError for a name that no feature can have, and for an empty cell.
    """
    used = rows[rows >= 0].tolist()
    columns = []
    for name, cells in labels.columns.items():
        if name in leave_out:
            continue
        if not is_feature_name(name):
            raise EpisodeError(
                f"labels file {labels.file} has a column {name!r:.200}, which cannot name a feature; rename it to"
                f" {FEATURE_RULE}"
            )
        words = {cells[row] for row in used}
        if "" in words:
            row = min(row for row in used if not cells[row])
            raise _wrong(
                labels.file, labels.lines[row], f"its {name} is empty; fill it in (nan for a number that is not known)"
            )
        feature, value_of = _type_column(name, words)
        zero = 0.0 if feature.dtype == "float64" else 0
        values = tuple(zero if row < 0 else value_of[cells[row]] for row in rows.tolist())
        columns.append(LabelColumn(feature, values))
    return tuple(columns)


def _type_column(name: str, words: set[str]) -> tuple[Feature, dict[str, int] | dict[str, float]]:
    """The feature that holds these words, and the value of each."""
    if all(map(_INTEGER.fullmatch, words)):
        if large := [word for word in words if len(word) > 20 or not -(2**63) <= int(word) < 2**63]:
            raise EpisodeError(
                f"labels column {name} holds {min(large):.100}, which no int64 can; make its numbers words"
            )
        return Feature(name, "int64", ()), {word: int(word) for word in words}
    others = sorted(word for word in words if not _FLOAT.fullmatch(word))
    if not others:
        return Feature(name, "float64", ()), {word: float(word) for word in words}
    if len(others) < len(words) - len(others):
        raise EpisodeError(
            f"labels column {name} has mostly numbers, but also {others[0]!r:.100}: write nan for a number that is not"
            " known, or make all of them words"
        )
    classes = tuple(sorted(words))
    return Feature(name, "int64", (), classes=classes), {word: index for index, word in enumerate(classes)}
