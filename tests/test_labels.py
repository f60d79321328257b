import csv
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.labels import LabelColumn, Labels, label_columns, read_labels
from shards.errors import EpisodeError, OptionError
from shards.features import Feature

TEXT = """path,reward,steps,task
b/two.npy,0.5,20,push
one.npy,1,10,pick
c.npy,-2e3,30,push
"""

Write = Callable[[str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes) -> str:
        file = tmp_path / "labels.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return write


def labels_of(columns: Mapping[str, tuple[str, ...]]) -> Labels:
    count = len(next(iter(columns.values())))
    rows = {f"{row}.npy": row for row in range(count)}
    return Labels("labels.csv", rows, dict(columns), tuple(range(2, count + 2)))


def type_of(*cells: str, name: str = "x") -> LabelColumn:
    (column,) = label_columns(labels_of({name: cells}), np.arange(len(cells)))
    return column


def test_a_labels_file_is_read(write: Write) -> None:
    file = write(TEXT)

    assert read_labels(file) == Labels(
        file,
        rows={"b/two.npy": 0, "one.npy": 1, "c.npy": 2},
        columns={"reward": ("0.5", "1", "-2e3"), "steps": ("20", "10", "30"), "task": ("push", "pick", "push")},
        lines=(2, 3, 4),
    )


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT.replace("one.npy", "./one.npy").replace("b/two.npy", "b//x/../two.npy"),
        TEXT.replace("push", '"push"'),
        TEXT.rstrip("\n"),
    ],
)
def test_other_ways_to_write_the_same(write: Write, text: str | bytes) -> None:
    assert read_labels(write(text)) == read_labels(write(TEXT))


def test_lines_are_those_of_the_file_whatever_the_cells_hold(write: Write) -> None:
    labels = read_labels(
        write('\npath,note\n\na.npy,"one\ntwo"\n\nb.npy,"say ""hi"", then go"\r\nc.npy,a\u2028\x0bb\n')
    )

    assert labels.columns == {"note": ("one\ntwo", 'say "hi", then go', "a\u2028\x0bb")}
    assert labels.lines == (4, 7, 8)


def test_the_path_may_be_any_column(write: Write) -> None:
    labels = read_labels(write("x,path,y\n1,a.npy,2\n"))

    assert (labels.rows, labels.columns) == ({"a.npy": 0}, {"x": ("1",), "y": ("2",)})


def test_a_path_is_bytes_as_in_a_file_name(write: Write) -> None:
    name = b"caf\xe9.npy"

    labels = read_labels(write(b"path,x\n" + name + b",1\n"))

    assert labels.find([os.fsdecode(name)])[0].tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"path,x\ncaf\xe9.npy,1\nb.npy,\xe9\n", "line 3: .* is not UTF-8"),
        ("", r"has no column 'path'; begin it with a header, .* \(its columns are now: none\)"),
        ("\n\n", "has no column 'path'"),
        ("a.npy,1\n", r"has no column 'path'.*\(its columns are now: 'a\.npy', '1'\)"),
        ("Path,x\na.npy,1\n", r"has no column 'path'"),
        ("path,x,y,x\na.npy,1,2,3\n", "has two columns 'x'; rename or remove one"),
        ("path,path\na.npy,b.npy\n", "has two columns 'path'"),
        ("path,x,\na.npy,1,2\n", "has no name for column 3"),
        (",path\n0,a.npy\n", "has no name for column 1"),
        ("path\na.npy\n", "has no column besides 'path'"),
        ("path,x\n", "has no row below its header"),
        ("path,x\na.npy,1\nb.npy\n", "line 3: 1 cells where the header has 2"),
        ("path,x\na.npy,1,2\n", "line 2: 3 cells where the header has 2; quote"),
        ("path,x\na.npy,1\n,2\n", "line 3: its path is empty"),
        ("path,x\na.npy,1\nb.npy,1\n./a.npy,2\n", r"line 4: '\./a\.npy' is in line 2 already; remove one of the two"),
        ('path,x\na.npy,"1\n2"\nb.npy,"1"2\n', "line 4: is not CSV"),
        ('path,x\na.npy,1\nb.npy,"1\n\n', "line 3: is not CSV"),
        ("path,x\na.npy," + "1" * 200_000 + "\n", "line 2: is not CSV .*field limit"),
        (b"path,x\na.npy,1\n\nb.npy,caf\xe9\n", r"line 4: 'caf\\udce9' is not UTF-8; save the file as UTF-8"),
        (b"path,caf\xe9\na.npy,1\n", "is not UTF-8: its columns are"),
        (TEXT.encode("utf-16"), "is not UTF-8: it holds zero bytes; save it as UTF-8"),
        ("path,x\na.npy,1\0\n", "is not UTF-8: it holds zero bytes"),
    ],
)
def test_a_labels_file_that_cannot_be_used_is_refused(write: Write, text: str | bytes, message: str) -> None:
    file = write(text)

    with pytest.raises(EpisodeError, match=message) as caught:
        read_labels(file)
    assert str(caught.value).startswith(f"labels file {file}")


def test_a_labels_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"nothing\.csv cannot be read: No such file or directory"):
        read_labels(str(tmp_path / "nothing.csv"))
    with pytest.raises(EpisodeError, match="cannot be read: Is a directory"):
        read_labels(str(tmp_path))
    with pytest.raises(EpisodeError, match="cannot be read: embedded null byte"):
        read_labels("a\0b")


def test_rows_are_found_by_path(write: Write) -> None:
    labels = read_labels(write(TEXT))

    rows, unmatched = labels.find(["a.npy", "b/two.npy", "d.npy", "one.npy"])

    assert rows.dtype == np.int64
    assert rows.tolist() == [-1, 0, -1, 1]
    assert unmatched == ["c.npy"]
    assert labels.find([])[0].tolist() == []
    assert labels.find([])[1] == ["b/two.npy", "c.npy", "one.npy"]


def test_a_column_is_found_by_name(write: Write) -> None:
    labels = read_labels(write(TEXT))

    assert labels.column("task") == ("push", "pick", "push")
    with pytest.raises(OptionError, match=r"labels\.csv has no column 'path'; its columns are: reward, steps, task"):
        labels.column("path")


def test_columns_become_features(write: Write) -> None:
    labels = read_labels(write(TEXT))

    assert label_columns(labels, np.array([1, -1, 0, 2])) == (
        LabelColumn(Feature("reward", "float64", ()), (1.0, 0.0, 0.5, -2000.0)),
        LabelColumn(Feature("steps", "int64", ()), (10, 0, 20, 30)),
        LabelColumn(Feature("task", "int64", (), classes=("pick", "push")), (0, 0, 1, 1)),
    )


def test_only_the_rows_asked_for_decide() -> None:
    labels = labels_of({"x": ("1", "", "2.5", "word"), "y": ("b", "c", "a", "")})

    assert label_columns(labels, np.array([0, -1, 0])) == (
        LabelColumn(Feature("x", "int64", ()), (1, 0, 1)),
        LabelColumn(Feature("y", "int64", (), classes=("b",)), (0, 0, 0)),
    )
    assert label_columns(labels, np.array([2]), leave_out=["y"]) == (LabelColumn(Feature("x", "float64", ()), (2.5,)),)
    assert label_columns(labels, np.array([3]), leave_out=("y",))[0].feature.classes == ("word",)


def test_no_rows_have_no_values() -> None:
    labels = labels_of({"x": ("word",)})

    assert label_columns(labels, np.array([], np.int64)) == (LabelColumn(Feature("x", "int64", ()), ()),)
    assert label_columns(labels, np.array([-1])) == (LabelColumn(Feature("x", "int64", ()), (0,)),)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("0", "-0", "-12", "7"), (0, 0, -12, 7)),
        (("9223372036854775807", "-9223372036854775808"), (2**63 - 1, -(2**63))),
        (("1", "1.5"), (1.0, 1.5)),
        ((".5", "5.", "+1", "-0.0", "0e0"), (0.5, 5.0, 1.0, -0.0, 0.0)),
        (("1e3", "1E-03", "2.5e+10"), (1000.0, 0.001, 2.5e10)),
        (("inf", "-Inf", "+INF", "1"), (math.inf, -math.inf, math.inf, 1.0)),
    ],
)
def test_numbers(cells: tuple[str, ...], values: tuple[int | float, ...]) -> None:
    dtype = "int64" if all(isinstance(value, int) for value in values) else "float64"

    column = type_of(*cells)

    assert column == LabelColumn(Feature("x", dtype, ()), values)
    assert list(map(type, column.values)) == list(map(type, values))


@pytest.mark.parametrize("number", [str(2**63), str(-(2**63) - 1), "9" * 30, "9" * 31, "1" * 5000], ids=len)
def test_an_integer_that_no_int64_can_hold_is_refused(number: str) -> None:
    with pytest.raises(EpisodeError, match=f"column big holds {number[:30]}.*, which no int64 can; make its number"):
        type_of("1", number, "2", name="big")
    assert type_of("1.5", number).values == (1.5, float(number))  # beside floats it is one


def test_nan_is_a_number() -> None:
    column = type_of("1", "nan", "NaN")

    assert column.feature == Feature("x", "float64", ())
    assert np.isnan(column.values).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "cell",
    [
        "007",
        "-01",
        "00.5",
        "1_000",
        "0x10",
        " 1",
        "1 ",
        "\u0661",
        "1,5",
        "e5",
        ".",
        "1e",
        "--1",
        "True",
        "infinity",
        "1\n",
    ],
)
def test_what_is_no_number_is_a_word(cell: str) -> None:
    classes = tuple(sorted(["1", cell]))

    assert type_of("1", cell).feature == Feature("x", "int64", (), classes=classes)


def test_words_are_numbered_in_their_order() -> None:
    column = type_of("push", "Pick", "été", "push", "10", "9")

    assert column.feature.classes == ("10", "9", "Pick", "push", "été")
    assert column.values == (3, 2, 4, 3, 0, 1)


def test_an_empty_cell_is_refused_where_it_is_used() -> None:
    labels = labels_of({"x": ("1", "2", "", "")})

    label_columns(labels, np.array([0, 1]))
    with pytest.raises(EpisodeError, match=r"labels file labels\.csv, line 4: its x is empty; fill it in \(nan for"):
        label_columns(labels, np.array([3, 0, -1, 2]))


@pytest.mark.parametrize("name", ["episode", "start", "count", "valid", "mask", "2nd", "a b", " x", "größe", "x" * 101])
def test_a_column_must_be_able_to_name_a_feature(name: str) -> None:
    labels = labels_of({"fine": ("1",), name: ("2",)})

    assert len(label_columns(labels, np.array([0]), leave_out={name})) == 1
    with pytest.raises(EpisodeError, match=rf"has a column '{name}', which cannot name a feature; rename it to up to"):
        label_columns(labels, np.array([0]))


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=2)),
    # With other ends of lines, the writer leaves a carriage return unquoted.
    st.sampled_from([{}, {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}]),
)
def test_what_csv_writes_is_read_back(tmp_path_factory: Any, cells: list[list[str]], options: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "written.csv"
    rows = [["first.npy", "", ""], *([f"{row}.npy", *pair] for row, pair in enumerate(cells))]
    with open(file, "w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, **options).writerows([["path", "a", "b"], *rows])

    labels = read_labels(str(file))

    assert list(labels.rows) == [row[0] for row in rows]
    assert labels.columns == {"a": tuple(row[1].strip() for row in rows), "b": tuple(row[2].strip() for row in rows)}


def test_blanks_around_commas_are_no_part_of_words(write: Write) -> None:
    labels = read_labels(write("path, kind ,level\na.npy, pick , 0\nb.npy,pick,1 \n c.npy,place,2\n"))

    assert labels.columns == {"kind": ("pick", "pick", "place"), "level": ("0", "1", "2")}
    assert list(labels.rows) == ["a.npy", "b.npy", " c.npy"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_read_as_python_writes_them(numbers: list[int]) -> None:
    assert type_of(*map(str, numbers)) == LabelColumn(Feature("x", "int64", ()), tuple(numbers))


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_floats_are_read_as_python_writes_them(numbers: list[float]) -> None:
    assert type_of(*map(repr, numbers)) == LabelColumn(Feature("x", "float64", ()), tuple(numbers))


def test_many_columns_are_compared_in_linear_time(write: Write) -> None:
    names = [f"x{i}" for i in range(50_000)]
    begin = time.perf_counter()
    labels = read_labels(write("path," + ",".join(names) + "\na.npy" + ",1" * len(names) + "\n"))
    assert time.perf_counter() - begin < 10
    assert list(labels.columns) == names
