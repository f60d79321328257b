import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from shards import Dataset, ManifestError, open_dataset
from shards.episode_table import EpisodeRow, episode_paths, find_leaks, format_episodes, parse_episodes
from shards.manifest_file import format_manifest
from shards.verify import verify

Build = Callable[..., Dataset]


@pytest.fixture
def build(save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path: Path) -> Build:
    random = np.random.default_rng(5)
    lengths = (40, 7, 23, 64, 31, 12)
    inputs = save_episodes(tmp_path / "in", [random.standard_normal((n, 2)).astype("float32") for n in lengths])

    def run(**options: object) -> Dataset:
        return build_here(inputs, tmp_path / "out", **{"window_length": 6, "shift": 2, "num_shards": 2, **options})

    return run


def patch(file: Path, begin: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(data)


def rewrite_episodes(dataset: Dataset, change: Callable[[list[EpisodeRow]], list[EpisodeRow]]) -> None:
    """Replace episodes.csv and its digest in the manifest, as only somebody who means to could."""
    file = dataset.folder / "episodes.csv"
    data = format_episodes(change(list(parse_episodes(file.read_bytes()))))
    file.write_bytes(data)
    changed = replace(dataset.manifest, episodes_sha256=sha256(data).hexdigest())
    (dataset.folder / "manifest.json").write_bytes(format_manifest(changed))


@pytest.mark.parametrize("tail", ["drop", "pad", "align"])
@pytest.mark.parametrize("per_record", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "splitting",
    [
        {"splits": {"train": "0.6", "test": "0.4"}},
        {"splits": {"train": "0.6", "test": "0.4"}, "split_by": "time", "purge": 1},
    ],
    ids=["episode", "time"],
)
def test_a_built_dataset_has_no_fault(
    build: Build, tail: str, per_record: int, stride: int, splitting: dict[str, object]
) -> None:
    dataset = build(tail=tail, windows_per_record=per_record, stride=stride, **splitting)
    assert verify(dataset.folder) == []


def test_a_flipped_byte_is_found_in_its_record(build: Build) -> None:
    dataset = build()
    shard, layout = dataset["train"].split.shards[1], dataset.manifest.layout
    patch(dataset.folder / shard.file, 3 * layout.record_bytes + layout.field("window").offset, b"\xff\xff")
    assert verify(dataset.folder) == [
        f"{shard.file} is damaged in record 3",
        f"{shard.file} is not the file that manifest.json describes: its SHA-256 is another",
        f"train lacks {window(dataset, shard.file, 3)}",
    ]


def window(dataset: Dataset, file: str, record: int) -> str:
    split = dataset["train"]
    before = sum(shard.windows for shard in split.split.shards if shard.file < file)
    path, start = split.locate(before + record)
    return f"the window of {path} from step {start} on"


def test_a_record_in_the_place_of_another_is_found(build: Build) -> None:
    dataset = build()
    first, second = (dataset.folder / shard.file for shard in dataset["train"].split.shards)
    lost, size = window(dataset, second.name, 0), dataset.manifest.layout.record_bytes
    doubled = window(dataset, first.name, 2)
    patch(second, 0, first.read_bytes()[2 * size : 3 * size])
    assert verify(dataset.folder) == [
        f"{second.name} is not the file that manifest.json describes: its SHA-256 is another",
        f"train has twice {doubled}",
        f"train lacks {lost}",
    ]


def test_shards_that_are_missing_or_cut_short_are_named_and_the_others_still_checked(build: Build) -> None:
    dataset = build(num_shards=3)
    files = [dataset.folder / shard.file for shard in dataset["train"].split.shards]
    files[0].unlink()
    os.truncate(files[1], 100)
    faults = verify(dataset.folder)
    assert f"shard {files[0]} cannot be read" in faults[0]
    assert f"shard {files[1]} has 100 bytes where the manifest says" in faults[1]
    assert not any(files[2].name in fault for fault in faults)
    assert faults[2].startswith("train lacks the window of ")
    assert len(faults) == 2 + 11
    assert faults[-1].endswith(" more such faults")


def test_a_record_of_another_split_is_found(build: Build) -> None:
    dataset = build(splits={"train": "0.5", "test": "0.5"}, num_shards=1)
    train, test = (dataset.folder / dataset[name].split.shards[0].file for name in ("train", "test"))
    patch(train, 0, test.read_bytes()[: dataset.manifest.layout.record_bytes])
    assert f"{train.name} has what its split does not, in record 0" in verify(dataset.folder)


def test_splits_that_share_steps_or_groups_are_found(build: Build) -> None:
    dataset = build(splits={"train": "0.5", "test": "0.5"}, split_by="time", num_shards=1)

    def widen(rows: list[EpisodeRow]) -> list[EpisodeRow]:
        at = next(i for i, row in enumerate(rows) if row.split == "test" and row.begin)
        wider = rows[at]._replace(begin=rows[at].begin - 4, windows=rows[at].windows + 2)
        return [*rows[:at], wider, *rows[at + 1 :]]

    begin = next(
        row.begin for row in parse_episodes((dataset.folder / "episodes.csv").read_bytes()) if row.split == "test"
    )
    rewrite_episodes(dataset, widen)
    assert verify(dataset.folder)[0] == f"e000.npy: steps [{begin - 4}, {begin}) are in train and test"

    def regroup(rows: list[EpisodeRow]) -> list[EpisodeRow]:
        return [row._replace(group="Ann") if row.split else row for row in rows]

    rewrite_episodes(open_dataset(dataset.folder), regroup)
    assert "group 'Ann' is in train and test" in verify(dataset.folder)


def test_episodes_that_do_not_give_their_windows_are_found(build: Build) -> None:
    dataset = build()
    rewrite_episodes(dataset, lambda rows: [rows[0]._replace(windows=rows[0].windows - 1), *rows[1:]])
    assert verify(dataset.folder) == ["episodes.csv does not give train the windows that its steps have"]
    rewrite_episodes(open_dataset(dataset.folder), lambda rows: [row._replace(split="other") for row in rows])
    assert "episodes.csv names a split that is none, for e000.npy" in verify(dataset.folder)


def test_files_for_tfds_must_be_those_of_the_manifest(build: Build) -> None:
    dataset = build()
    (dataset.folder / "features.json").unlink()
    (dataset.folder / "dataset_info.json").write_text("{}")
    assert verify(dataset.folder) == ["dataset_info.json is not what manifest.json gives", "features.json is missing"]


def test_a_changed_episodes_file_is_refused(build: Build) -> None:
    dataset = build()
    (dataset.folder / "episodes.csv").write_text("mine")
    with pytest.raises(ManifestError, match=r"episodes\.csv is not the file that the manifest describes"):
        verify(dataset.folder)


def test_the_command_says_so_and_exits_with_1_on_a_fault(build: Build) -> None:
    dataset = build()

    def run() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "shards", "verify", str(dataset.folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    whole = run()
    assert (whole.returncode, whole.stderr) == (0, "")
    assert f"is whole: {dataset.manifest.windows} windows in 2 shards" in whole.stdout
    shard = dataset["train"].split.shards[0]
    patch(dataset.folder / shard.file, 100, b"\x01\x02\x03")
    broken = run()
    assert broken.returncode == 1
    assert f"{shard.file} is damaged in record 0" in broken.stdout
    assert "3 faults; copy or build the dataset again" in broken.stderr


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
rows = st.builds(
    EpisodeRow,
    episode=st.integers(0, 2**35),
    path=st.one_of(texts, st.binary(max_size=5).filter(lambda b: b"\0" not in b).map(os.fsdecode)).map("a".__add__),
    steps=st.integers(0, 2**42),
    split=st.sampled_from(["", "train", "test"]),
    begin=st.integers(0, 2**42),
    end=st.integers(0, 2**42),
    windows=st.integers(0, 2**42),
    group=texts,
    left_out=texts,
)


@given(st.lists(rows, max_size=4))
def test_rows_come_back_from_their_file(rows: list[EpisodeRow]) -> None:
    assert list(parse_episodes(format_episodes(rows))) == rows


@pytest.mark.parametrize("text", ["", "episode,path\n", None, "x"])
def test_a_file_that_is_no_table_of_episodes_is_refused(text: str | None) -> None:
    header = ",".join(EpisodeRow._fields) + "\n"
    broken = text if text in {"", "episode,path\n"} else header + (text or "1,a,two,train,0,1,1,,\n")
    with pytest.raises(ManifestError, match=r"episodes\.csv is damaged, near line \d"):
        list(parse_episodes(broken.encode()))


def test_paths_are_by_episode_not_by_line() -> None:
    row = EpisodeRow(0, "a", 9, "train", 0, 5, 1, "", "")
    assert episode_paths([row, row._replace(split="test"), row._replace(episode=1, path="b")]) == ("a", "b")


@given(
    sections=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 9)), max_size=5
    )
)
def test_a_leak_is_any_step_in_two_sections(sections: list[tuple[int, str, int, int]]) -> None:
    rows = [EpisodeRow(e, str(e), 20, split, begin, begin + n, 1, "", "") for e, split, begin, n in sections]
    steps = [(row.episode, step) for row in rows for step in range(row.begin, row.end)]
    assert bool(find_leaks(rows)) == (len(set(steps)) < len(steps))
