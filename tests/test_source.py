import io
import os
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline import source
from pipeline.npy import NpyError, NpyField
from pipeline.source import Member, SourceArray, SourceHeader, arrays_of, open_source, read_source_header
from shards.features import DTYPES

FLOATS = np.arange(12, dtype="<f4").reshape(4, 3)
ACTIONS = np.arange(4, dtype=">i2")
RECORD = np.dtype([("observation", ">f4", (2,)), ("action", "<i8")])


def npy(array: np.ndarray) -> bytes:
    """The bytes of a `.npy` file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers in UTF-8
        np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def npz(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    """The bytes of an `.npz` archive, as NumPy saves it."""
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """The bytes of a zip archive of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in members:
            opened.writestr(name, data)
    return file.getvalue()


def header_of(file: bytes, picked: Collection[str] | None = None) -> SourceHeader:
    path = "e.npy" if file.startswith(b"\x93") else "e.npz"
    return read_source_header(io.BytesIO(file), path, len(file), picked)


def refusal_of(file: bytes, picked: Collection[str] | None = None, path: str = "e.npz") -> str:
    with pytest.raises(NpyError) as caught:
        read_source_header(io.BytesIO(file), path, len(file), picked)
    return str(caught.value)


def read(file: bytes, *ranges: tuple[int, int], picked: Collection[str] | None = None) -> list[dict[str, np.ndarray]]:
    opened = io.BytesIO(file)
    with open_source(opened, header_of(file, picked)) as reading:
        return [reading.steps(first, count) for first, count in ranges]


def values(file: bytes) -> dict[str, np.ndarray]:
    opened = io.BytesIO(file)
    with open_source(opened, header_of(file)) as reading:
        return reading.values()


def test_a_lone_array_is_the_window() -> None:
    file = npy(FLOATS)

    header = header_of(file)

    field = NpyField("", "float32", False, (), 0)
    assert header == SourceHeader((Member("", False, (field,), 4, False, (3,)),), 4, (128,))
    assert arrays_of(header.form) == (SourceArray("window", "float32", (3,)),)
    assert header_of(file, ["window"]) == header
    assert {name: steps.tolist() for name, steps in read(file, (1, 2))[0].items()} == {"window": [[3, 4, 5], [6, 7, 8]]}
    assert values(file) == {}


def test_every_field_is_a_feature() -> None:
    array = np.zeros(3, RECORD)
    array["observation"] = [[1, 2], [3, 4], [5, 6]]
    array["action"] = [7, 8, 9]

    header = header_of(npy(array))

    assert header.form[0].fields == (
        NpyField("observation", "float32", True, (2,), 0),
        NpyField("action", "int64", False, (), 8),
    )
    assert (header.form[0].itemsize, header.steps) == (16, 3)
    assert arrays_of(header.form) == (
        SourceArray("action", "int64", ()),
        SourceArray("observation", "float32", (2,)),
    )
    (steps,) = read(npy(array), (1, 2))
    assert steps["observation"].tolist() == [[3, 4], [5, 6]]
    assert steps["observation"].dtype == np.dtype(">f4")
    assert steps["action"].tolist() == [8, 9]


def test_fields_may_be_picked_and_have_a_step_shape_before_their_own() -> None:
    array = np.zeros((3, 5), RECORD)
    array["observation"][2, 4] = 6, 7

    header = header_of(npy(array), ["observation"])

    assert arrays_of(header.form) == (SourceArray("observation", "float32", (5, 2)),)
    assert header.form[0].itemsize == 16
    (steps,) = read(npy(array), (2, 1), picked=["observation"])
    assert list(steps) == ["observation"]
    assert steps["observation"].shape == (1, 5, 2)
    assert steps["observation"][0, 4].tolist() == [6, 7]


@pytest.mark.parametrize("compressed", [False, True])
def test_every_array_of_an_archive_is_a_feature_or_a_value(compressed: bool) -> None:
    file = npz(
        {"reward": ACTIONS, "image": FLOATS, "success": np.array(True), "goal": np.array(2.5, ">f8")}, compressed
    )

    header = header_of(file)

    assert [member.name for member in header.form] == ["goal", "image", "reward", "success"]
    assert {member.compressed for member in header.form} == {compressed}
    assert header.steps == 4
    assert arrays_of(header.form) == (
        SourceArray("goal", "float64", None),
        SourceArray("image", "float32", (3,)),
        SourceArray("reward", "int16", ()),
        SourceArray("success", "bool", None),
    )
    (steps,) = read(file, (2, 2))
    assert {name: array.tolist() for name, array in steps.items()} == {
        "image": [[6, 7, 8], [9, 10, 11]],
        "reward": [2, 3],
    }
    assert steps["reward"].dtype == np.dtype(">i2")
    read_values = values(file)
    assert {name: (array.shape, array.item()) for name, array in read_values.items()} == {
        "goal": ((), 2.5),
        "success": ((), True),
    }


def test_offsets_are_where_the_data_lie() -> None:
    stored, deflated = npz({"x": FLOATS}), npz({"x": FLOATS}, compressed=True)

    (offset,) = header_of(stored).offsets

    assert stored[offset : offset + FLOATS.nbytes] == FLOATS.tobytes()
    assert header_of(deflated).offsets == (128,)


def test_the_order_of_members_makes_no_other_form() -> None:
    assert header_of(npz({"a": FLOATS, "b": ACTIONS})).form == header_of(npz({"b": ACTIONS, "a": FLOATS})).form


def test_a_header_is_equal_only_to_that_of_a_file_laid_out_alike() -> None:
    header = header_of(npz({"a": FLOATS}))

    assert header == read_source_header(io.BytesIO(npz({"a": FLOATS + 1})), "e.npz", None)
    others = [
        npz({"a": FLOATS}, compressed=True),
        npz({"a": FLOATS[:3]}),
        npz({"a": FLOATS.astype(">f4")}),
        npz({"a": np.asfortranarray(FLOATS)}),
        npz({"a": FLOATS.T}),
        npz({"a": FLOATS, "b": FLOATS}),
        npz({"b": FLOATS}),
        archive(("padding", b"x" * 64), ("a.npy", npy(FLOATS))),
    ]
    for other in others:
        picked = ["a"] if b"padding" in other else None
        assert read_source_header(io.BytesIO(other), "e.npz", None, picked) != header


def test_what_is_not_picked_is_not_looked_at(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung")], object)
    file = archive(
        ("trap.npy", npy(trap)),
        ("x.npy", npy(FLOATS)),
        ("short.npy", npy(FLOATS[:2])),
        ("a b.npy", npy(FLOATS)),
        ("a b.npy", npy(FLOATS)),
        ("notes.txt", b"hello"),
    )

    assert arrays_of(header_of(file, ["x"]).form) == (SourceArray("x", "float32", (3,)),)
    (steps,) = read(file, (0, 4), picked=["x"])
    assert np.array_equal(steps["x"], FLOATS)


class Trap:
    """Unpickling one makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("compressed", [False, True])
def test_objects_are_refused_and_never_unpickled(tmp_path: Path, compressed: bool) -> None:
    sprung = tmp_path / "sprung"
    array = np.empty(2, object)
    array[:] = Trap(sprung)
    file = npz({"x": FLOATS, "trap": array}, compressed)

    message = refusal_of(file)

    assert message == (
        "has an array 'trap' that holds Python objects, which only unpickling could read and which this tool never "
        "unpickles (--features can leave it out)"
    )
    assert not sprung.exists()
    np.load(io.BytesIO(file), allow_pickle=True)["trap"]  # the trap works
    assert sprung.exists()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "is empty"),
        (npy(np.array(3.0)), "holds a single value (shape ()), not an array along time"),
        (npy(np.zeros((), RECORD)), "holds a single value (shape ()), not an array along time"),
        (npy(np.zeros((3, 0), RECORD)), "has steps without any value: shape (3, 0)"),
        (npy(FLOATS)[:-1], "is cut short: 175 bytes, where its header promises 176"),
        (npy(FLOATS) + b"123", "has 3 bytes after its array (several arrays saved into one file?)"),
        (
            npz({"x": FLOATS}),
            "is no .npy file (it is a zip archive, perhaps an .npz file): it does not begin with the .npy magic bytes",
        ),
        (
            npy(np.zeros(3, [("start", "f4")])),
            "has the field 'start', which cannot name a feature: rename it to up to 100 letters, digits, underscores, "
            "dots and dashes, beginning with a letter or an underscore, and none of episode, start, count, valid, "
            "mask; or leave it out with --features",
        ),
        (
            npy(np.zeros(3, [("name", "U2"), ("x", "f4")])),
            "has a field 'name' that holds text (dtype <U2), which cannot be windows (--features can leave it out)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:40],
)
def test_what_is_wrong_with_a_npy_file_is_told(file: bytes, message: str) -> None:
    assert refusal_of(file, path="e.npy") == message


def test_a_size_that_is_not_known_is_not_checked() -> None:
    assert read_source_header(io.BytesIO(npy(FLOATS)[:-1]), "e.npy", None).steps == 4


def test_what_is_picked_must_be_there() -> None:
    assert refusal_of(npy(FLOATS), ["action"], "e.npy") == "has no array 'action'; it holds window"
    records = npy(np.zeros(3, RECORD))
    assert refusal_of(records, ["reward", "action"], "e.npy") == "has no array 'reward'; it holds action, observation"
    file = npz({"observation": FLOATS, "reward": ACTIONS})
    assert refusal_of(file, ["reward", "action"]) == "has no array 'action'; it holds observation, reward"
    many = npz({f"x{i:02d}": ACTIONS for i in range(30)})
    assert refusal_of(many, ["y"]).endswith("x18, x19, and 10 more")
    assert refusal_of(archive(), ["y"]) == "has no array 'y'; it holds none"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "is empty"),
        (b"hello", "is no .npz file: it does not begin as a zip archive"),
        (npy(FLOATS), "is no .npz file but a .npy file: rename it"),
        (npz({"x": FLOATS})[:-30], "is a damaged .npz archive: File is not a zip file"),
        (b"PK\x03\x04" + bytes(100), "is a damaged .npz archive: File is not a zip file"),
        (archive(), "has no array along time"),
        (npz({"b": np.array(1), "a": np.array(2)}), "has no array along time, only single values: a, b"),
        (
            npz({"observation": FLOATS, "action": ACTIONS[:3]}),
            "has arrays of different lengths: action has 3 steps, observation 4; name those that go together with "
            "--features",
        ),
        (
            npz({"x": FLOATS, "rate": np.array([30.0])}),
            "has arrays of different lengths: rate has 1 steps, x 4; name those that go together with --features",
        ),
        (
            npz({"x": FLOATS, "env": np.array("maze")}),
            "has an array 'env' that holds text (dtype <U4), which cannot be windows (--features can leave it out)",
        ),
        (
            npz({"x": np.zeros((4, 0))}),
            "has an array 'x' that has steps without any value: shape (4, 0) (--features can leave it out)",
        ),
        (
            npz({"x": np.zeros(4, RECORD)}),
            "has an array 'x' that has fields; save each as an array of its own, or all as a .npy file "
            "(--features can leave it out)",
        ),
        (
            npz({"x": np.zeros((), RECORD)}),
            "has an array 'x' that has fields; save each as an array of its own, or all as a .npy file "
            "(--features can leave it out)",
        ),
        (
            npz({"x": np.zeros(4, [("name", "U2")])}),
            "has an array 'x' that has a field 'name' that holds text (dtype <U2), which cannot be windows "
            "(--features can leave it out)",
        ),
        (
            npz({"mask": FLOATS}),
            "has the array 'mask', which cannot name a feature: rename it to up to 100 letters, digits, underscores, "
            "dots and dashes, beginning with a letter or an underscore, and none of episode, start, count, valid, "
            "mask; or leave it out with --features",
        ),
        (
            archive(("x.npy", npy(FLOATS)), ("notes.txt", b"hello")),
            "has the member 'notes.txt', which is no .npy array; name the arrays to take with --features",
        ),
        (archive(("x.npy", npy(FLOATS)), ("x.npy", npy(FLOATS))), "has two arrays of the name 'x'"),
        (archive(("x.npy", b"")), "has an array 'x' that is empty (--features can leave it out)"),
        (
            archive(("x.npy", npy(FLOATS)[:50]), ("y.npy", npy(FLOATS))),
            "has an array 'x' that ends within its header (--features can leave it out)",
        ),
        (
            archive(("x.npy", npy(FLOATS)[:-1])),
            "has an array 'x' that is cut short: 175 bytes, where its header promises 176 "
            "(--features can leave it out)",
        ),
        (
            archive(("x.npy", npy(FLOATS) + b"1"), method=zipfile.ZIP_DEFLATED),
            "has an array 'x' that has 1 bytes after its data (--features can leave it out)",
        ),
        (
            archive(("x.npy", npy(FLOATS)), method=zipfile.ZIP_LZMA),
            "has an array 'x' that is compressed by method 14, neither stored nor deflated as NumPy saves it "
            "(--features can leave it out)",
        ),
        (archive(*((f"x{i}.npy", b"") for i in range(1001))), "has 1001 members; 1000 at most are read"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:50],
)
def test_what_is_wrong_with_an_archive_is_told(file: bytes, message: str) -> None:
    assert refusal_of(file) == message


@pytest.mark.parametrize("name", ["", "a b", "obs/image", "2nd", "x" * 101, "episode", "é", "a\nb"])
def test_names_that_cannot_name_a_feature_are_refused(name: str) -> None:
    assert f"has the array {name[:100]!r}, which cannot name a feature" in refusal_of(
        archive((f"{name}.npy", npy(FLOATS)))
    )


LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"


def patched(file: bytes, signature: bytes, place: int, new: bytes) -> bytes:
    """An archive with bytes of its first local or central header replaced."""
    at = file.index(signature) + place
    return file[:at] + new + file[at + len(new) :]


STORED = archive(("x.npy", npy(FLOATS)))
DEFLATED = archive(("x.npy", npy(FLOATS)), method=zipfile.ZIP_DEFLATED)
LARGE = archive(("x.npy", npy(np.zeros(5000))))
SQUEEZED = archive(("x.npy", npy(np.zeros(5000))), method=zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (patched(STORED, LOCAL, 30, b"y"), r"is a damaged \.npz archive: File name in directory 'x\.npy' and header"),
        (b"PK\x01\x01" + STORED[4:], r"is a damaged \.npz archive: Bad magic number for file header"),
        (patched(STORED, CENTRAL, 0, b"PK\x01\x01"), r"damaged \.npz archive: Bad magic number for central directory"),
        (patched(STORED, CENTRAL, 8, b"\x01"), "has an array 'x' that is encrypted; save it without a password"),
        (patched(STORED, CENTRAL, 8, b"\x41"), "has an array 'x' that is encrypted"),
        (patched(STORED, CENTRAL, 8, b"\x40"), r"damaged \.npz archive: strong encryption"),
        (patched(STORED, CENTRAL, 6, b"\xff"), r"is a damaged \.npz archive: zip file version"),
        (patched(STORED, CENTRAL, 20, b"\x09"), r"is a damaged \.npz archive: Bad CRC-32"),
        (
            patched(LARGE, CENTRAL, 20, struct.pack("<I", 5000)),
            "has an array 'x' that has 40128 bytes stored as 5000: the archive is damaged",
        ),
        (patched(STORED, CENTRAL, 24, struct.pack("<I", 2**31)), "has an array 'x' that has .* bytes after its data"),
        (patched(STORED, CENTRAL, 42, struct.pack("<I", 2**30)), r"is a damaged \.npz archive: "),
        (patched(STORED, LOCAL, 28, b"\xff\xff"), r"has an array 'x' that|is a damaged \.npz archive"),
        (patched(DEFLATED, LOCAL, 35, b"\xff" * 8), r"is a damaged \.npz archive: Error -3 while decompressing"),
        (patched(DEFLATED, CENTRAL, 20, struct.pack("<I", 2**30)), "'x' that reaches beyond the .* bytes|Overlapped"),
        (patched(DEFLATED, CENTRAL, 20, b"\x05"), r"is a damaged \.npz archive: Bad CRC-32"),
        (patched(SQUEEZED, CENTRAL, 20, b"\x05\x00"), r"is a damaged \.npz archive: "),
    ],
    ids=range(16),
)
def test_hostile_archives_are_refused(file: bytes, message: str) -> None:
    with pytest.raises(NpyError, match=message) as caught:
        header_of(file)
    assert len(str(caught.value)) < 400


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    file = archive(("é.npy", npy(FLOATS))).replace("é".encode(), b"\xff\xff")

    assert refusal_of(file).startswith("is a damaged .npz archive: 'utf-8' codec can't decode")


def test_a_claim_of_a_huge_directory_takes_no_memory() -> None:
    name = b"x" * 60_000
    head = CENTRAL + bytes(24) + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0)
    directory = (head + name) * 20
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 20, 20, len(directory), 4, 0)

    message = refusal_of(LOCAL + directory + end)

    assert message.startswith("is a damaged .npz archive: it claims a directory of 1200920 bytes; 1048576 at most are")


def test_an_archive_that_unpacks_to_a_thousandfold_takes_no_more_memory_than_was_asked_for() -> None:
    file = npz({"x": np.zeros((2**15, 2**10), np.uint8)}, compressed=True)
    assert len(file) < 2**16

    tracemalloc.start()
    try:
        steps = read(file, (20_000, 100), (2**15 - 10, 10))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert steps[0]["x"].shape == (100, 1024)
    assert peak < 2**21


@pytest.mark.parametrize("file", [npy(FLOATS), npz({"x": FLOATS, "goal": np.array(3)})])
def test_a_file_that_shrank_ends_early(file: bytes) -> None:
    header = header_of(file)

    with (
        open_source(io.BytesIO(file[: header.offsets[-1] + 20]), header) as reading,
        pytest.raises(EOFError),
    ):
        reading.steps(0, 4)


def test_damage_in_compressed_data_is_told_when_it_is_read() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    file = bytearray(npz({"x": noise}, compressed=True))
    header = header_of(bytes(file))
    file[50_000] ^= 0xFF

    with open_source(io.BytesIO(bytes(file)), header) as reading:
        assert np.array_equal(reading.steps(0, 1000)["x"], noise[:1000])
        with pytest.raises(NpyError, match=r"^is a damaged \.npz archive: (Bad CRC-32|Error -3)"):
            reading.steps(0, 100_000)

    with (
        pytest.raises(NpyError, match=r"^is a damaged \.npz archive: File is not a zip file"),
        open_source(io.BytesIO(bytes(file[:50_000])), header),
    ):
        pass


def test_a_compressed_member_that_ends_early_is_told() -> None:
    file = archive(("x.npy", npy(np.zeros(5000))), method=zipfile.ZIP_DEFLATED)
    short = archive(("x.npy", npy(np.zeros(5000))[:20_000]), method=zipfile.ZIP_DEFLATED)

    with (
        open_source(io.BytesIO(short), header_of(file)) as reading,
        pytest.raises(NpyError, match=r"^is a damaged \.npz archive: array 'x' ends early$"),
    ):
        reading.steps(0, 5000)
    with (
        open_source(io.BytesIO(archive(("y.npy", b""))), header_of(file)) as reading,
        pytest.raises(NpyError, match=r"^is a damaged \.npz archive: .*x\.npy"),
    ):
        reading.steps(0, 5000)


def test_more_steps_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(AssertionError):
        read(npy(FLOATS), (2, 3))


def test_no_more_is_read_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    got = []

    def counting(opened: Any, begin: int, count: int, dtype: np.dtype) -> np.ndarray:
        got.append(count * dtype.itemsize)
        return whole(opened, begin, count, dtype)

    whole = source._read
    monkeypatch.setattr(source, "_read", counting)

    read(npz({"x": FLOATS, "y": ACTIONS}), (1, 2))
    assert sorted(got) == [4, 24]
    got.clear()
    read(npy(np.zeros(100, RECORD)), (10, 5))  # all fields at once
    assert got == [80]
    got.clear()
    read(npz({"x": np.zeros(100)}, compressed=True), (0, 50), (40, 50), (60, 10))  # what overlaps is read once
    assert got == [400, 320]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("one_read", "gap"), [(2**26, 2**17), (0, 0)])
def test_fortran_order_is_read_in_one_go_or_by_columns(
    monkeypatch: pytest.MonkeyPatch, compressed: bool, one_read: int, gap: int
) -> None:
    monkeypatch.setattr(source, "_ONE_READ_BYTES", one_read)
    monkeypatch.setattr(source, "_GAP_BYTES", gap)
    array = np.asfortranarray(np.arange(60, dtype=">i4").reshape(10, 2, 3))
    file = npz({"x": array}, compressed)
    assert header_of(file).form[0].fortran_order

    for (first, count), steps in zip(ranges := [(0, 4), (2, 8), (9, 1), (0, 10)], read(file, *ranges), strict=True):
        assert np.array_equal(steps["x"], array[first : first + count])


def filled(dtype: np.dtype, shape: tuple[int, ...], fortran: bool) -> np.ndarray:
    """Random bytes as an array."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.random.default_rng(size).integers(0, 2, size, np.uint8)  # 0 and 1 are what truth values can be
    array = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    return np.asfortranarray(array) if fortran else array


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


names = st.sampled_from(["a", "b", "c.d", "_e-f", "G9"])
dtypes = st.sampled_from(
    [DTYPES[name].newbyteorder(order) for name in DTYPES if name != "bfloat16" for order in "<>"] + [DTYPES["bfloat16"]]
)
step_shapes = st.lists(st.integers(1, 4), max_size=2).map(tuple)
spans = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4)


def within(steps: int, wishes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(min(first, steps), max(0, min(count, steps - first))) for first, count in wishes]


@settings(max_examples=150, deadline=None)
@given(
    arrays=st.dictionaries(names, st.tuples(dtypes, step_shapes, st.booleans()), min_size=1),
    single=st.none() | dtypes,
    steps=st.integers(0, 20),
    compressed=st.booleans(),
    wishes=spans,
)
def test_an_archive_is_read_as_it_was_saved(
    arrays: dict[str, tuple[np.dtype, tuple[int, ...], bool]],
    single: np.dtype | None,
    steps: int,
    compressed: bool,
    wishes: list[tuple[int, int]],
) -> None:
    saved = {name: filled(dtype, (steps, *shape), fortran) for name, (dtype, shape, fortran) in arrays.items()}
    alone = {} if single is None else {"alone": filled(single, (), False)}
    file = npz(saved | alone, compressed)

    assert [array.name for array in arrays_of(header_of(file).form)] == sorted(saved | alone)
    ranges = within(steps, wishes)
    for (first, count), found in zip(ranges, read(file, *ranges), strict=True):
        assert sorted(found) == sorted(saved)
        assert all(same(found[name], saved[name][first : first + count]) for name in saved)
    assert all(same(found, alone[name]) for name, found in values(file).items())


@settings(max_examples=150, deadline=None)
@given(
    fields=st.dictionaries(names, st.tuples(dtypes, step_shapes), min_size=1),
    align=st.booleans(),
    shape=step_shapes,
    fortran=st.booleans(),
    steps=st.integers(0, 20),
    wishes=spans,
    pick=st.booleans(),
)
@example({"a": (np.dtype(ml_dtypes.bfloat16), (2,)), "b": (np.dtype(">f8"), ())}, True, (3,), True, 9, [(2, 5)], False)
def test_fields_are_read_as_they_were_saved(
    fields: dict[str, tuple[np.dtype, tuple[int, ...]]],
    align: bool,
    shape: tuple[int, ...],
    fortran: bool,
    steps: int,
    wishes: list[tuple[int, int]],
    pick: bool,
) -> None:
    dtype = np.dtype([(name, *field) for name, field in fields.items()], align=align)
    array = filled(dtype, (steps, *shape), fortran)
    file = npy(array)
    picked = [next(iter(fields))] if pick else None

    ranges = within(steps, wishes)
    for (first, count), found in zip(ranges, read(file, *ranges, picked=picked), strict=True):
        assert sorted(found) == sorted(picked or fields)
        assert all(same(steps_, array[name][first : first + count]) for name, steps_ in found.items())


@settings(max_examples=150, deadline=None)
@given(dtype=dtypes, shape=step_shapes, fortran=st.booleans(), steps=st.integers(0, 20), wishes=spans)
def test_a_lone_array_is_read_as_it_was_saved(
    dtype: np.dtype, shape: tuple[int, ...], fortran: bool, steps: int, wishes: list[tuple[int, int]]
) -> None:
    array = filled(dtype, (steps, *shape), fortran)

    ranges = within(steps, wishes)
    for (first, count), found in zip(ranges, read(npy(array), *ranges), strict=True):
        assert same(found["window"], array[first : first + count])


WHOLE = npz({"x": FLOATS, "goal": np.array(3.0)})
PACKED = npz({"x": FLOATS, "goal": np.array(3.0)}, compressed=True)


@settings(max_examples=400, deadline=None)
@given(
    file=st.sampled_from([WHOLE, PACKED]),
    changes=st.dictionaries(st.integers(0, 2000), st.binary(min_size=1, max_size=4), max_size=3),
    end=st.none() | st.integers(0, 1500),
)
def test_a_changed_archive_is_read_or_refused(file: bytes, changes: dict[int, bytes], end: int | None) -> None:
    hostile = bytearray(file)
    for place, new in changes.items():
        place %= len(file)
        hostile[place : place + len(new)] = new
    del hostile[end if end is not None else len(hostile) :]
    opened = io.BytesIO(bytes(hostile))

    with suppress(NpyError, EOFError):
        header = read_source_header(opened, "e.npz", len(hostile))
        assert header.steps < 2**16
        with open_source(opened, header) as reading:
            reading.steps(0, header.steps)
            reading.values()


@pytest.mark.parametrize("compressed", [False, True])
def test_bools_are_zero_or_one_whatever_the_file_holds(compressed: bool) -> None:
    bools = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    fields = np.zeros(4, [("b", "?"), ("x", "u1")])
    fields["b"] = bools
    raw = npy(fields).replace(b"\1\0\1\0", b"\2\0\xff\0")

    (lone,), (archived,) = read(npy(bools), (0, 4)), read(npz({"b": bools}, compressed), (0, 4))

    assert lone["window"].view(np.uint8).tolist() == archived["b"].view(np.uint8).tolist() == [0, 1, 1, 1]
    assert read(raw, (0, 4))[0]["b"].view(np.uint8).tolist() == [0, 1, 1, 1]
    assert values(npz({"x": FLOATS, "done": np.uint8(7).view(np.bool_)}, compressed))["done"].view(np.uint8) == 1


def test_an_archive_that_points_to_before_its_begin_is_damaged(tmp_path: Path) -> None:
    end = STORED.index(b"PK\x05\x06")
    file = tmp_path / "e.npz"
    file.write_bytes(STORED[: end + 12] + struct.pack("<I", 2**19) + STORED[end + 16 :])

    with file.open("rb") as opened, pytest.raises(NpyError, match=r"is a damaged \.npz archive"):
        read_source_header(opened, "e.npz", len(STORED))
