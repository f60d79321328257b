import io
import os
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.episodes import survey
from pipeline.inputs import find_episodes
from pipeline.npy import NpyError, NpyHeader, header_bytes, parse_header
from shards import EpisodeError
from shards.features import DTYPES

NATIVE = [name for name in DTYPES if name != "bfloat16"]
ORDERED = [name for name in NATIVE if DTYPES[name].itemsize > 1]


def saved(array: np.ndarray, version: tuple[int, int] | None = None, allow_pickle: bool = False) -> bytes:
    """The bytes that NumPy writes for an array."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=allow_pickle)
    return file.getvalue()


def header(text: str | bytes, version: tuple[int, int] = (1, 0), size: int | None = None) -> bytes:
    """A file's first bytes with this header text, whose length may be claimed to be another."""
    text = text.encode() if isinstance(text, str) else text
    width = 2 if version == (1, 0) else 4
    claimed = len(text) if size is None else size
    return b"\x93NUMPY" + bytes(version) + claimed.to_bytes(width, "little") + text


def header_of(descr: str = "'<f4'", fortran_order: str = "False", shape: str = "(3, 2)") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n")


def header_or_refusal(start: bytes) -> NpyHeader | str:
    try:
        return parse_header(start)
    except NpyError as error:
        return str(error)


@pytest.mark.parametrize("name", NATIVE)
def test_every_dtype_is_read_as_numpy_writes_it(name: str) -> None:
    file = saved(np.zeros((5, 3), name))

    parsed = parse_header(file)

    assert parsed == NpyHeader(name, False, False, (5, 3), 128)
    assert parsed.file_bytes == len(file)


@pytest.mark.parametrize("name", ORDERED)
def test_big_endian_is_told_from_little_endian(name: str) -> None:
    big = parse_header(saved(np.zeros((5, 3), np.dtype(name).newbyteorder(">"))))
    little = parse_header(saved(np.zeros((5, 3), np.dtype(name).newbyteorder("<"))))

    assert (big.dtype, big.big_endian) == (name, True)
    assert (little.dtype, little.big_endian) == (name, False)


def test_bfloat16_is_read_as_numpy_writes_it() -> None:
    file = saved(np.ones((7, 2), ml_dtypes.bfloat16))

    assert b"'<V2'" in file
    assert parse_header(file) == NpyHeader("bfloat16", False, False, (7, 2), 128)
    assert parse_header(file).file_bytes == len(file)


@pytest.mark.parametrize(("shape", "fortran"), [((4, 3), True), ((4, 3, 2), True), ((4,), False), ((4, 1), False)])
def test_fortran_order_is_read(shape: tuple[int, ...], fortran: bool) -> None:
    parsed = parse_header(saved(np.zeros(shape, "f4", order="F")))

    assert (parsed.shape, parsed.fortran_order) == (shape, fortran)


def test_one_axis_alone_is_in_no_order() -> None:
    assert not parse_header(header_of(fortran_order="True", shape="(3,)")).fortran_order
    assert parse_header(header_of(fortran_order="True", shape="(3, 1)")).fortran_order


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_one_to_three_are_read(version: tuple[int, int]) -> None:
    file = saved(np.zeros((6, 2), ">i2"), version)

    assert file[6:8] == bytes(version)
    assert parse_header(file) == NpyHeader("int16", True, False, (6, 2), 128)
    assert header_bytes(file[:12]) == 128


def test_an_episode_may_have_no_steps() -> None:
    assert parse_header(saved(np.zeros((0, 3), "f8"))).shape == (0, 3)


def test_a_header_is_read_with_any_padding_and_order_of_keys() -> None:
    text = "{'shape': (2,), 'descr': '|u1', 'fortran_order': False}" + " " * 9000 + "\n"

    file = header(text, (2, 0))

    assert header_bytes(file[:12]) == len(file)
    assert parse_header(file + b"\x01\x02") == NpyHeader("uint8", False, False, (2,), len(file))


class Trap:
    """Unpickling one makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    array = np.empty(3, object)
    array[:] = Trap(sprung)
    file = tmp_path / "in" / "trap.npy"
    file.parent.mkdir()
    file.write_bytes(saved(array, allow_pickle=True))

    with pytest.raises(EpisodeError, match=r"trap\.npy holds Python objects, .* this tool never unpickles"):
        survey(find_episodes([str(file.parent)]))

    assert not sprung.exists()
    np.load(file, allow_pickle=True)  # the trap works
    assert sprung.exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["ab", "c"]), "holds text"),
        (np.array([b"ab", b"c"]), "holds byte strings"),
        (np.zeros(3, [("x", "f4"), ("y", "i4")]), "holds structured or void data"),
        (np.zeros(3, "V2"), "holds structured or void data"),
        (np.zeros(3, "V8"), "holds structured or void data"),
        (np.zeros(3, "M8[s]"), "holds dates"),
        (np.zeros(3, "m8[s]"), "holds time differences"),
        (np.zeros(3, np.longdouble), "dtype (longdouble|float128), which is none of bool, int8"),
        (np.array(3.0), r"holds a single value \(shape \(\)\), not an array along time"),
        (np.zeros((4, 0)), r"steps without any value: shape \(4, 0\)"),
        (np.zeros((4, 2, 0)), r"steps without any value: shape \(4, 2, 0\)"),
    ],
)
def test_what_cannot_be_windows_is_refused(array: np.ndarray, words: str) -> None:
    with pytest.raises(NpyError, match=words):
        parse_header(saved(array))


def test_structured_objects_are_refused() -> None:
    with pytest.raises(NpyError, match=r"holds (Python objects|structured)"):
        parse_header(header_of(descr="[('a', '|O'), ('b', '<f4')]"))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"", "is empty"),
        (b"hello, world", r"is no \.npy file: it does not begin with the \.npy magic bytes"),
        (b"\x93NUMP", r"is no \.npy file"),
        (b"PK\x03\x04" + bytes(60), r"is no \.npy file \(it is a zip archive, perhaps an \.npz file\)"),
        (b"\x93NUMPY", "ends within its header"),
        (b"\x93NUMPY\x01\x00\x76\x00", "ends within its header"),
        (header_of()[:40], "ends within its header"),
        (header_of()[:-1], "ends within its header"),
        (header("{}", (1, 1)), r"has \.npy version \(1, 1\), not 1\.0 to 3\.0"),
        (header("{}", (4, 0)), r"has \.npy version \(4, 0\)"),
        (header("{}", (2, 0), 70_000), "claims a header of 70000 bytes; 65536 at most are read"),
        (header("{}", (3, 0), 2**32 - 1), "claims a header of 4294967295 bytes"),
    ],
)
def test_what_is_no_npy_file_is_refused(start: bytes, words: str) -> None:
    with pytest.raises(NpyError, match=words):
        parse_header(start)


def test_a_header_of_70_kilobytes_is_refused() -> None:
    text = header_of()[10:].decode().rstrip() + " " * 70_000 + "\n"

    with pytest.raises(NpyError, match=r"claims a header of 70.* bytes; 65536 at most"):
        parse_header(header(text, (2, 0)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("3", "without exactly descr, fortran_order and shape"),
        ("{}", "without exactly"),
        ("{'descr': '<f4', 'shape': (3,)}", "without exactly"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}", "without exactly"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)", "cannot be read"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1 + 2,)}", "cannot be read"),
        ("__import__('os').getcwd()", "cannot be read"),
        ("\x00", "cannot be read"),
        ("(" * 60_000, "cannot be read"),
        ("[" * 30_000 + "]" * 30_000, "cannot be read"),
        ("{1:" * 20_000, "cannot be read"),
        ("-" * 60_000 + "1", "cannot be read"),
        ("~" * 60_000 + "1", "cannot be read"),
        ("not " * 15_000 + "1", "cannot be read"),
        ("1" + "+1" * 30_000, "cannot be read"),
        ("a" + ".a" * 30_000, "cannot be read"),
        ("a" + "()" * 30_000, "cannot be read"),
        ("lambda:" * 9_000 + "1", "cannot be read"),
        ("1 if 1 else " * 5_000 + "1", "cannot be read"),
        ("9" * 60_000, "cannot be read"),
    ],
    ids=lambda value: value[:12] if len(value) < 100 else f"{value[:7]}...",
)
def test_a_header_that_is_no_plain_dict_is_refused(text: str, words: str) -> None:
    with pytest.raises(NpyError, match=words):
        parse_header(header(text, (3, 0)))


def test_a_header_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(NpyError, match="cannot be read"):
        parse_header(header(b"{'descr': '\xff'}", (3, 0)))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("(-1, 2)", r"impossible shape \(-1, 2\)"),
        ("(2, -3)", r"impossible shape \(2, -3\)"),
        ("(True, 2)", r"impossible shape \(True, 2\)"),
        ("(2.0,)", "impossible shape"),
        ("('2',)", "impossible shape"),
        ("(None,)", "impossible shape"),
        ("[2, 3]", r"impossible shape \[2, 3\]"),
        ("3", "impossible shape 3"),
        ("(9223372036854775808,)", "impossible shape"),
        ("(" + "9" * 4000 + ",)", "impossible shape"),
        ("(0x" + "f" * 20_000 + ",)", "impossible shape"),
        ("0x" + "f" * 20_000, "impossible shape"),
        ("(" + "1," * 65 + ")", "impossible shape|dimensions"),
        ("(" + "9223372036854775807," * 3000 + ")", "impossible shape|dimensions"),
        ("(9223372036854775807, 9223372036854775807)", "impossible shape"),
    ],
    ids=lambda value: value[:20],
)
def test_an_impossible_shape_is_refused(shape: str, words: str) -> None:
    with pytest.raises(NpyError, match=words) as caught:
        parse_header(header_of(shape=shape))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "descr",
    [
        "None",  # which np.dtype takes for float64
        "True",
        "4",
        "4.5",
        "''",
        "'hello'",
        "'\\x00'",
        "'<f3'",
        "'<f99999999999999999999'",
        "'f4,f4'",
        "'(2,3)f4'",
        "'1f4'",
        "'(1)f4'",
        "'2f4'",
        "'a5'",
        "('<f4', (2,))",
        "('<f4', (-1,))",
        "('<f4', 2**3)",
        "{}",
        "{'names': ['a'], 'formats': ['<f4']}",
        "{'a': ('<f4', 99999999999999999999)}",
        "[('a', '<f4'), ('a', '<f4')]",
        "[('a',)]",
        "[[[]]]",
        "b'<f4'",
        "0x" + "f" * 20_000,
        "('<f4', 0x" + "f" * 20_000 + ")",
    ],
    ids=lambda value: value[:24],
)
def test_an_unknown_dtype_is_refused(descr: str) -> None:
    with pytest.raises(NpyError) as caught:
        parse_header(header_of(descr=descr))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("fortran_order", ["0", "1", "None", "'False'", "()"])
def test_fortran_order_is_true_or_false_and_nothing_else(fortran_order: str) -> None:
    with pytest.raises(NpyError, match="fortran_order that is neither True nor False"):
        parse_header(header_of(fortran_order=fortran_order))


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=3)
    | st.sampled_from(["<f4", ">i8", "|u1", "|b1", "O", "a5", "f4,f4", "=f2", "names", "formats", "offsets"]),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(
            st.sampled_from(["names", "formats", "titles", "offsets", "itemsize", "a"]), inside, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(descr=literals, shape=literals | st.just((3, 2)))
@example(descr={"names": ["a"], "formats": ["f4"], "offsets": [2**70]}, shape=(1,))
def test_any_literals_give_a_header_or_a_refusal(descr: object, shape: object) -> None:
    parsed = header_or_refusal(header_of(repr(descr), "False", repr(shape)))

    if isinstance(parsed, str):
        assert 0 < len(parsed) < 400
    else:
        assert isinstance(descr, str)
        assert (np.dtype(descr).name, shape) == (parsed.dtype, parsed.shape)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda text: header(text, (2, 0))))
def test_any_bytes_give_a_refusal(start: bytes) -> None:
    with pytest.raises(NpyError):
        parse_header(start)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(NATIVE),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    big_endian=st.booleans(),
    fortran=st.booleans(),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_headers_say_of_an_array_what_numpy_reads(
    name: str, shape: tuple[int, ...], big_endian: bool, fortran: bool, version: tuple[int, int]
) -> None:
    dtype = np.dtype(name).newbyteorder(">" if big_endian else "<")
    file = saved(np.zeros(shape, dtype, order="F" if fortran else "C"), version)

    parsed = parse_header(file)

    assert parsed.file_bytes == len(file)
    assert parsed.dtype == name
    assert parsed.big_endian == (big_endian and dtype.itemsize > 1)
    data = file[parsed.offset :]
    read = np.ndarray(parsed.shape, dtype, data, order="F" if parsed.fortran_order else "C")
    assert np.array_equal(read, np.load(io.BytesIO(file)))


def test_hostile_headers_are_refused_at_once() -> None:
    begin = time.perf_counter()
    for text in ("(" * 65_000, "1" + "+1" * 32_000, "'" + "f4," * 20_000 + "'", "{" * 65_000, "1," * 32_000, "{[]: 1}"):
        with pytest.raises(NpyError):
            parse_header(header(text, (2, 0)))
        with pytest.raises(NpyError):
            parse_header(header_of(descr=text[:50_000]))
    assert time.perf_counter() - begin < 5
