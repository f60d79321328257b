"""Whatever the files of a dataset hold, they are read or refused by name: in bounded memory, touching nothing else."""

import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_manifest import DOCUMENT, MANIFEST

from conftest import BuildHere, SaveEpisodes
from shards import Dataset, ManifestError, ShardError, load_manifest, open_dataset
from shards.__main__ import describe, format_info, main
from shards.episode_table import EpisodeRow, episode_paths, find_leaks, format_episodes, parse_episodes, read_episodes
from shards.errors import DatasetError, DatasetNotFoundError
from shards.features import Feature
from shards.manifest_file import MAX_MANIFEST_BYTES, format_manifest, parse_manifest
from shards.naming import parse_shard_name
from shards.record import decode_varints, record_layout
from shards.tfds import tfds_files
from shards.verify.record_faults import Words
from shards.windows import WindowSpec

BOUNDED = settings(max_examples=400, derandomize=True, deadline=None, database=None)
TEXT = json.dumps(DOCUMENT).encode()


def parsed_or_refused(text: bytes) -> bool:
    """Whether a manifest is read, and then as it was written and fit to be shown; a refusal is one short line."""
    message = ""
    try:
        manifest = parse_manifest(text)
    except DatasetError as error:
        message = str(error)
    else:
        assert parse_manifest(format_manifest(manifest)) == manifest
        assert all(len(name) < 130 and "/" not in name and name.isprintable() for name in tfds_files(manifest))
        assert all(parse_shard_name(shard.file) for split in manifest.splits for shard in split.shards)
        assert [split.firsts[-1] for split in manifest.splits] == [split.windows for split in manifest.splits]
        assert json.dumps(describe(manifest))
        assert format_info(manifest)
    assert message.isprintable()
    assert len(message) < 1200
    return not message


def test_a_manifest_that_ends_early_is_refused_wherever_it_ends() -> None:
    assert parsed_or_refused(TEXT)
    assert not any(parsed_or_refused(TEXT[:end]) for end in range(len(TEXT)))


def test_a_manifest_with_any_byte_changed_is_read_or_refused() -> None:
    read = 0
    for place in range(len(TEXT)):
        text = bytearray(TEXT)
        text[place] ^= 1 << place % 7
        read += parsed_or_refused(bytes(text))
    assert read < len(TEXT) / 4  # digits of digests, names of classes and the like


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, part in inside for each in places(part, (*place, key)))]


PLACES = places(DOCUMENT)[1:]
hostile = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 10**19, 1.0, 1e3, -0.0, 1e308),
        *(float("nan"), float("inf"), "", "1", "\ud800", "../../etc/passwd", "/etc/passwd", "a\0b", "\x1b[2J\n"),
        *([], {}, [[]], [0], [1] * 40, [2**62] * 300, ["a"], ["\ud800"], ["a"] * 2, {"a": 1}, {"\n": 1}, "x" * 5000),
    ]
) | st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inside: st.lists(inside, max_size=3))


@BOUNDED
@given(st.lists(st.tuples(st.sampled_from(PLACES), hostile), min_size=1, max_size=3))
def test_a_manifest_with_any_values_changed_is_read_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document: Any = deepcopy(DOCUMENT)
    for (*way, last), value in changes:
        inner = document
        for key in way:
            inner = inner[key] if isinstance(inner, dict | list) and key in places_of(inner) else None
        if isinstance(inner, dict) or (isinstance(inner, list) and last in places_of(inner)):
            inner[last] = deepcopy(value)
    parsed_or_refused(json.dumps(document).encode())


def places_of(value: Any) -> Any:
    return value if isinstance(value, dict) else range(len(value))


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"seed": 7', '"seed": 7, "seed": 8', "an object has the key 'seed' twice"),
        ('"tail": "pad"', '"tail": "drop", "tail": "pad"', "an object has the key 'tail' twice"),
        ('"seed": 7', '"seed": "7"', "seed is '7', not a whole number"),
        ('"seed": 7', '"seed": true', "seed is True, not a whole number"),
        ('"seed": 7', '"seed": 7.0', r"seed is 7\.0, not a whole number"),
        ('"seed": 7', '"seed": 7e0', r"seed is 7\.0, not a whole number"),
        ('"seed": 7', '"seed": NaN', "it has NaN for a number"),
        ('"seed": 7', '"seed": -Infinity', "it has -Infinity for a number"),
        ('"seed": 7', '"seed": 1e999', "seed is inf, not a whole number"),
        ('"seed": 7', '"seed": ' + "7" * 100_000, "an integer has 100000 digits"),
        ('"seed": 7', '"seed": -' + "7" * 5000, "an integer has 5001 digits"),
        ('"seed": 7', '"seed": 7, "\\u001b[2J\\n": 1', r"damaged: \\x1b\[2J\\n is unknown"),
        ('"seed": 7', f'"seed": {nested(900)}', "damaged: "),
        ('"seed": 7', f'"seed": {nested(100_000)}', "damaged: not JSON"),
        ('"classes": []', f'"classes": {nested(950)}', "damaged: "),
        ('"encoding": "bytes"', f'"encoding": {nested(950)}', "damaged: "),
        ('"ann"', '"a\\ud800"', r"classes has 'a\\ud800', which is no Unicode text"),
        ('"shape": [6, 3]', '"shape": [6' + ", 3" * 100_000 + "]", "shape has 100001 axes; 30 at most are allowed"),
        ('"shape": [6, 3]', '"shape": [6' + f", {2**62}" * 29 + "]", "shape makes an array of .* bytes"),
        ('"name": "demo"', '"name": "../demo"', "which is no name"),
        ('"name": "demo"', '"name": "/demo"', "which is no name"),
        ('"name": "demo"', '"name": "demo\\u0000"', "which is no name"),
        ('"name": "train"', '"name": "../train"', "which is no name"),
        ('"file": "demo-test.tfrecord', '"file": "../demo-test.tfrecord', r"file is '\.\./demo-test"),
        ("-00000-of-00001", "-00000-of-1000000000", "file is 'demo-test.tfrecord-00000-of-1000000000' where"),
        ('"name": "window"', '"name": "../window"', "cannot name a feature"),
    ],
    ids=range(26),
)
def test_a_hostile_value_is_named(old: str, new: str, words: str) -> None:
    text = TEXT.decode()
    assert old in text
    begin = time.perf_counter()

    with pytest.raises(ManifestError, match=words) as caught:
        parse_manifest(text.replace(old, new, 1).encode())

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xef\xbb\xbf" + TEXT,
        TEXT.decode().encode("utf-16"),
        TEXT.decode().encode("utf-32"),
        TEXT + b"\0",
        TEXT * 2,
    ],
    ids=["empty", "BOM", "UTF-16", "UTF-32", "zero byte", "twice"],
)
def test_what_is_no_json_in_utf_8_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError, match=r"^manifest\.json is damaged: not JSON"):
        parse_manifest(text)


def test_more_bytes_than_64_bits_count_are_refused() -> None:
    document = deepcopy(DOCUMENT)
    document["splits"][1] |= {"records": 2**56, "windows": 2**56, "bytes": 2**56 * 208}
    document["splits"][1]["shards"][0] |= {"records": 2**56, "windows": 2**56, "bytes": 2**56 * 208}

    with pytest.raises(ManifestError, match="splits have more bytes in all than 64 bits count"):
        parse_manifest(json.dumps(document).encode())


@pytest.mark.parametrize("filling", [b"{},", b'{"":0},', b"[],", b'"ab",', b"0.5,"])
def test_memory_is_bounded_by_the_size_of_a_manifest(filling: bytes) -> None:
    text = b'{"format": [' + filling * (2**20 // len(filling)) + b"0]}"

    tracemalloc.start()
    with pytest.raises(ManifestError, match=r"format is .* where 'episode-windows' belongs"):
        parse_manifest(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 40 * len(text)


def test_a_manifest_is_read_from_a_regular_file_of_bounded_size_alone(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    os.mkfifo(file)
    with pytest.raises(ManifestError, match=r"cannot be read: it is no regular file \(a pipe or a device\)$"):
        load_manifest(tmp_path)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(ManifestError, match="it is no regular file"):
        load_manifest(tmp_path)
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(ManifestError, match="cannot be read: Too many levels of symbolic links"):
        load_manifest(tmp_path)
    file.unlink()
    file.symlink_to(tmp_path / "nothing")
    with pytest.raises(DatasetNotFoundError, match=r"it holds no manifest\.json"):
        load_manifest(tmp_path)
    file.unlink()
    with file.open("wb") as opened:
        opened.truncate(2**40)
    with pytest.raises(ManifestError, match=f"it has 1099511627776 bytes; {MAX_MANIFEST_BYTES} at most are read"):
        load_manifest(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="there is no such folder"):
        load_manifest("a\0b")


ROW = EpisodeRow(0, "a.npy", 9, "train", 0, 6, 3, "", "")


def rows_or_refusal(data: bytes) -> list[EpisodeRow] | str:
    try:
        rows = list(parse_episodes(data))
        find_leaks(rows)
        episode_paths(rows)
    except ManifestError as error:
        return str(error)
    return rows


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (",6,", ",-6,", "a number is not written as a whole number"),
        (",6,", ",+6,", "a number is not"),
        (",6,", ", 6,", "a number is not"),
        (",6,", ",6_0,", "a number is not"),
        (",6,", ",06,", "a number is not"),
        (",6,", ",6.0,", "a number is not"),
        (",6,", ",\N{ARABIC-INDIC DIGIT SIX},", "a number is not"),
        (",6,", "," + "6" * 10_000 + ",", "a number is not"),
        (",6,", f",{2**63},", "a number is not"),
        (",6,", ",", "not enough values"),
        (",6,", ",6,6,", "too many values"),
        ("a.npy", '"a\n.npy', "unexpected end of data"),
        ("a.npy", "a\0.npy", "it holds zero bytes"),
        ("a.npy", "a" * 200_000, "field larger than field limit"),
        ("a.npy", "/etc/passwd", "the path '/etc/passwd' leads out of the episodes' folder"),
        ("a.npy", "..", "leads out"),
        ("a.npy", "../a.npy", "leads out"),
        ("a.npy", "x/../../a.npy", "leads out"),
        ("a.npy", '"x\n/.."', r"the path 'x\\n/\.\.' leads out"),
        ("\n0,", "\n1,", "it leaves out numbers of episodes"),
        ("\n0,", "\n9999999999999,", "it leaves out numbers of episodes"),
        ("episode,path", "path,episode", "its header is not episode,path,steps"),
    ],
    ids=range(22),
)
def test_what_is_wrong_with_a_table_of_episodes_is_told(old: str, new: str, words: str) -> None:
    text = format_episodes([ROW]).decode()
    assert old in text

    message = rows_or_refusal(text.replace(old, new, 1).encode())

    assert isinstance(message, str)
    assert message.isprintable()
    assert 0 < len(message) < 400
    with pytest.raises(ManifestError, match=words):
        raise ManifestError(message)


@pytest.mark.parametrize("path", ["..a.npy", "a..", "x/..a", ".../a", "a/b", ".", "line\nbreak", "-", 'a",b'])
def test_paths_below_the_folder_are_read(path: str) -> None:
    row = ROW._replace(path=path)
    assert rows_or_refusal(format_episodes([row])) == [row]


TABLE = format_episodes(
    [ROW, ROW._replace(episode=1, path='b,"\n.npy', split="test", group="g"), ROW._replace(begin=6)]
)


@BOUNDED
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(list(b',"\n\r\0 0123456789-_.\xff')), st.booleans())))
def test_a_changed_table_of_episodes_is_read_or_refused(changes: list[tuple[float, int, bool]]) -> None:
    data = bytearray(TABLE)
    for where, byte, inserted in changes:
        place = int(where * (len(data) - 1))
        data[place : place if inserted else place + 1] = bytes([byte])

    rows = rows_or_refusal(bytes(data))

    if isinstance(rows, str):
        assert rows.isprintable()
        assert len(rows) < 400
    else:
        assert list(parse_episodes(format_episodes(rows))) == rows


def test_many_splits_of_one_group_are_compared_in_linear_time() -> None:
    rows = [ROW._replace(episode=i, path=f"{i}", split=f"s{i}", group="g") for i in range(20_000)]
    begin = time.perf_counter()
    assert len(find_leaks(rows)) == 1
    assert time.perf_counter() - begin < 5


def test_a_table_of_episodes_is_read_from_a_regular_file_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "episodes.csv")
    with pytest.raises(ManifestError, match=r"episodes\.csv cannot be read: it is no regular file"):
        read_episodes(tmp_path, MANIFEST)


@BOUNDED
@given(raw=st.integers(1, 10).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1)))
def test_any_bytes_are_some_integer(raw: list[bytes]) -> None:
    values = decode_varints(np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1))
    for value, data in zip(values.tolist(), raw, strict=True):
        whole = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) % 2**64
        assert value == whole - 2**64 * (whole >> 63)


def test_records_that_protocol_buffers_would_read_otherwise_are_found() -> None:
    layout = record_layout([Feature("window", "float32", (3,))], WindowSpec(3, 1))
    records = np.zeros((2, layout.record_bytes), np.uint8)
    layout.write_constants(records)
    for name in ("episode", "start"):
        layout.write_integers(records, name, np.array([5, 6]))
    layout.write_checksums(records)
    words = Words(layout)
    assert words.differ(records).tolist() == [False, False]
    field = layout.field("window")
    outside = [place for place in range(layout.record_bytes - 4) if not 0 <= place - field.offset < field.nbytes]
    for place in outside:
        changed = records.copy()
        changed[1, place] ^= 0x80
        layout.write_checksums(changed)  # whoever changes a record can do that
        assert words.differ(changed).tolist() == [False, True]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> Dataset:
    folder = tmp_path_factory.mktemp("shared")
    arrays = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) for n in (30, 17, 5)]
    inputs = save_episodes(folder / "in", arrays)
    return build_here(inputs, folder / "out", window_length=4, shift=2, tail="align", windows_per_record=3)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_hostile_integers_of_records_are_refused_or_harmless(shared: Dataset, data: st.DataObject) -> None:
    (shard,) = shared["train"].split.shards
    file, layout = shared.folder / shard.file, shared.manifest.layout
    whole = file.read_bytes()
    records = np.frombuffer(whole, np.uint8).reshape(shard.records, -1).copy()
    for name in data.draw(st.sets(st.sampled_from(["count", "valid", "start", "episode"]), min_size=1)):
        values = layout.field(name).values(records)
        row = data.draw(st.integers(0, shard.records - 1))
        values[row] = data.draw(st.integers(0, 12) | st.integers(0, 2**35 - 1))
        layout.write_integers(records, name, values)
    try:
        file.write_bytes(records.tobytes())
        batch = open_dataset(shared.folder)["train"][:]
    except ShardError as error:
        assert "is damaged: it does not hold" in str(error)  # noqa: PT017
    else:
        assert np.isin(batch["window"], np.arange(60, dtype=np.float32)).all()  # no byte from elsewhere
    finally:
        file.write_bytes(whole)


def limit_memory() -> None:
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))


def test_the_commands_tell_what_is_hostile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = json.dumps(DOCUMENT | {"\x1b[2J\nall is well": 1}).encode()
    folders: list[tuple[str, bytes | None, int]] = [("evil", evil, 1), ("pipe", None, 1), ("bom", b"\xef\xbb\xbf{}", 1)]
    for name, text, _ in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_bytes(text) if text else os.mkfifo(tmp_path / name / "manifest.json")
    for name, _, status in [*folders, ("nowhere \x1b[2J", None, 2)]:
        for command in ("info", "verify"):
            assert main([command, str(tmp_path / name)]) == status
            told = capsys.readouterr()
            assert (told.out, told.err.count("\n")) == ("", 1)
            assert told.err.startswith("python -m shards: ")
            assert "\x1b" not in told.err


def test_an_endless_manifest_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to("/dev/zero")
    command = [sys.executable, "-m", "shards", "info", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit_memory)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "it is no regular file (a pipe or a device)" in done.stderr
