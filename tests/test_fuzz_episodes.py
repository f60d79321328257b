"""Whatever an episode file, its name or labels hold, it is read or refused: in bounded memory, running nothing."""

import io
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BuildHere
from pipeline.episodes import read_header
from pipeline.files import file_state
from pipeline.inputs import EpisodeFile, find_episodes
from pipeline.labels import label_columns, read_labels
from pipeline.npy import NpyError, header_bytes, parse_header
from pipeline.source import SourceHeader, open_source, read_source_header
from shards.errors import EpisodeError
from shards.files import FileState

BOUNDED = settings(max_examples=400, derandomize=True, deadline=None, database=None)


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


FIELDS = np.zeros(5, [("a", "<f4", (2,)), ("b", "?")])
ARRAYS = {"x": np.arange(12.0).reshape(4, 3), "y": np.arange(4, dtype=">i2"), "z": np.array(3.0)}
FILES = {
    "plain.npy": saved(np.save, np.arange(12, dtype="<f4").reshape(4, 3)),
    "fields.npy": saved(np.save, FIELDS),
    "stored.npz": saved(np.savez, **ARRAYS),
    "deflated.npz": saved(np.savez_compressed, **ARRAYS),
}


def read_or_refusal(folder: Path, name: str, data: bytes) -> SourceHeader | str:
    """The header of a real file that holds this, all of whose steps are then read; or why it is refused."""
    (folder / name).write_bytes(data)
    found = read_header(EpisodeFile(f"{folder}/", name, FileState(len(data), 0)))
    if isinstance(found, NpyError):
        assert str(found).isprintable()
        assert 0 < len(str(found)) < 600
        return str(found)
    with (folder / name).open("rb") as opened, open_source(opened, found) as source:
        try:
            steps = source.steps(0, found.steps) | source.values()
        except NpyError as error:
            return str(error)
    assert sum(array.nbytes for array in steps.values()) < 50 * len(data)
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_ends_early_is_refused_wherever_it_ends(tmp_path: Path, name: str) -> None:
    assert isinstance(read_or_refusal(tmp_path, name, FILES[name]), SourceHeader)
    for end in range(len(FILES[name])):
        assert isinstance(read_or_refusal(tmp_path, name, FILES[name][:end]), str), end


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path: Path, name: str) -> None:
    refused = 0
    for place in range(len(FILES[name])):
        data = bytearray(FILES[name])
        data[place] ^= 1 << place % 8 if place % 3 else 0xFF
        refused += isinstance(read_or_refusal(tmp_path, name, bytes(data)), str)
    assert refused > 50


# What means something in a zip archive: signatures, and the largest and smallest of its numbers.
pieces = st.sampled_from(
    [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"\x01\x00\x18\x00"]
    + [struct.pack("<Q", value) for value in (0, 2**63 - 1, 2**63, 2**64 - 1)]
    + [struct.pack("<I", value) for value in (0, 2**31 - 1, 2**31, 2**32 - 1)]
) | st.binary(min_size=1, max_size=4)


@BOUNDED
@given(
    name=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.floats(0, 1), pieces, st.booleans()), min_size=1, max_size=4),
)
def test_a_file_changed_in_places_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[float, bytes, bool]]
) -> None:
    data = bytearray(FILES[name])
    for where, piece, inserted in changes:
        place = int(where * len(data))
        data[place : place if inserted else place + len(piece)] = piece
    read_or_refusal(tmp_path_factory.getbasetemp(), name, bytes(data))


texts = st.text("'\"\\(){}[],:; <>|=fiOSUV0123456789.-+*#\n\tabx\0\x7f\xe9\u20ac", max_size=40)


@BOUNDED
@given(descr=texts, shape=texts, version=st.sampled_from([1, 2, 3]), claimed=st.none() | st.integers(0, 2**32 - 1))
def test_any_header_is_read_or_refused(descr: str, shape: str, version: int, claimed: int | None) -> None:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = (len(text) if claimed is None else claimed).to_bytes(4, "little")[: 2 if version == 1 else 4]
    start = b"\x93NUMPY" + bytes([version, 0]) + size + text
    with suppress(NpyError):
        assert header_bytes(start) <= 65536 + 12
        parse_header(start)


def bomb(nbytes: int) -> bytes:
    """A deflated `.npy` array of so many zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (nbytes >> 10, 1024)})
    return head.getvalue() + bytes(nbytes)


def test_a_small_archive_of_a_huge_array_is_planned_and_read_in_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bomb(2**27))
    assert file.stat().st_size < 2**18

    tracemalloc.start()
    with file.open("rb") as opened:
        header = read_source_header(opened, "bomb.npz", file.stat().st_size)
        with open_source(opened, header) as source:
            steps = source.steps(2**16, 8)["x"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert header.steps == 2**17
    assert steps.shape == (8, 1024)
    assert peak < 2**21


def test_arrays_that_lie_one_on_the_other_are_refused(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("b.npy", FILES["plain.npy"])
        hidden = inner.getvalue()
        (info,) = archive.infolist()
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("a.npy", saved(np.save, np.frombuffer(hidden, np.uint8)))
        info.header_offset = outer.getvalue().index(hidden)
        archive.filelist.append(info)

    message = read_or_refusal(tmp_path, "e.npz", outer.getvalue())

    assert isinstance(message, str)
    assert "lie one on the other" in message or "Overlapped entries" in message  # as newer versions of Python say


def test_an_archive_in_zip64_is_read(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("x.npy", "w", force_zip64=True) as member:
        member.write(FILES["plain.npy"])

    header = read_or_refusal(tmp_path, "e.npz", file.getvalue())

    assert isinstance(header, SourceHeader)
    assert header.steps == 4


class Trap:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.file,)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = np.empty(3, object)
    trap[:] = Trap(str(sprung))
    fields = np.empty(3, [("x", "<f4"), ("t", "O")])
    fields["t"] = trap
    files = {
        "a.npy": saved(np.save, trap),
        "b.npy": saved(np.save, fields),
        "c.npz": saved(np.savez, t=trap),
        "d.npz": saved(np.savez_compressed, x=np.arange(3), t=fields),
        "e.npy": trap.dumps(),
        "f.npz": trap.dumps(),
    }
    for name, data in files.items():
        assert isinstance(read_or_refusal(tmp_path, name, data), str)
        for claimed in (b"|O", b"O8"):  # that they are no objects
            read_or_refusal(tmp_path, name, data.replace(b"'|O'", b"'<i8'").replace(claimed, b"f8"))
    assert not sprung.exists()
    np.load(io.BytesIO(files["a.npy"]), allow_pickle=True)  # the trap works
    assert sprung.exists()


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a pipe.npy")
    (tmp_path / "dangling.npy").symlink_to(tmp_path / "nothing")
    (tmp_path / "device.npz").symlink_to("/dev/zero")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    (tmp_path / "folder.npy" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "labels.csv")

    found = {file.path: str(read_header(file)) for file in find_episodes([str(tmp_path)])}

    assert found == dict.fromkeys(
        ["a pipe.npy", "dangling.npy", "device.npz", "loop.npy"],
        "is no file that can be read (a broken link, a pipe or a device)",
    )
    assert file_state(str(tmp_path / "labels.csv")).size == -1
    for labels in ("labels.csv", "device.npz"):
        with pytest.raises(EpisodeError, match=r"cannot be read: it is no regular file \(a pipe or a device\)$"):
            read_labels(str(tmp_path / labels))


NAMES = [
    b"--input",
    b"-",
    b"new\nline, and comma",
    b"carriage\rreturn",
    b'"',
    b'a"b""',
    b"'quoted'",
    b"no utf-8 \xff\xfe\x80",
    b"surrogate \xed\xa0\x80",
    b"\x1b[2J\x07",
    "right to left \u202e".encode(),
    b" ",
    b"..",
    b"x" * 251,
    b"%s{0}$HOME`ls`",
    b"*[a]?",
    b"a\\b",
    b"#",
]


def test_files_of_any_name_are_built_and_located(tmp_path: Path, build_here: BuildHere) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(NAMES):
        with open(os.fsencode(tmp_path) + b"/in/" + name + b".npy", "wb") as file:
            np.save(file, np.arange(100 * number, 100 * number + 6))

    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=3)

    windows = dataset["train"]
    located = {windows.locate(i): int(windows[i]["window"][0]) for i in range(len(windows))}
    assert located == {
        (os.fsdecode(name + b".npy"), start): 100 * number + start
        for number, name in enumerate(NAMES)
        for start in (0, 3)
    }


def test_plan_tells_what_is_hostile(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "pipe \x1b[2J.npy")
    (tmp_path / "in" / "endless.npz").symlink_to("/dev/zero")
    for name, data in FILES.items():
        (tmp_path / "in" / name).write_bytes(data[:-1])
    (tmp_path / "in" / "deep.npy").write_bytes(b"\x93NUMPY\x02\x00" + (60_000).to_bytes(4, "little") + b"-" * 60_000)
    (tmp_path / "in" / "escape.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00" + b"{'\\d': 1} # \x1b[2J".ljust(16))
    command = [sys.executable, "-W", "always", "-m", "pipeline", "plan", "--input", str(tmp_path / "in")]

    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out"), "--window_length", "3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "8 of 8 episode files cannot be used:\n" in done.stderr
    assert not any(words in done.stderr for words in ("\x1b", "Traceback", "Warning"))
    assert done.stderr.count("\n") == 10


cells = st.text("a,\"'\n\r\t 0123456789.eE+-naif\xe9\x1b\u2028", max_size=5)


@BOUNDED
@given(data=st.binary(max_size=80) | st.lists(cells, max_size=12).map(lambda parts: ",".join(parts).encode()))
def test_any_labels_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "labels.csv"
    file.write_bytes(b"path,x\n" + data)
    message = ""
    try:
        labels = read_labels(str(file))
        (column,) = label_columns(labels, np.arange(len(labels.lines)))
        assert len(column.values) == len(labels.lines) > 0
    except EpisodeError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 600
