import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from forgery import patch, rewrite_episodes, rewrite_manifest, rewrite_shard, window
from shards import Dataset, ManifestError, open_dataset
from shards.episode_table import EpisodeRow, episode_paths, find_leaks, format_episodes, parse_episodes
from shards.verify import examine, verify

Build = Callable[..., Dataset]


@pytest.fixture
def build(save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path: Path) -> Build:
    random = np.random.default_rng(5)
    lengths = (40, 7, 23, 64, 31, 12)
    inputs = save_episodes(tmp_path / "in", [random.standard_normal((n, 2)).astype("float32") for n in lengths])

    def run(**options: object) -> Dataset:
        return build_here(inputs, tmp_path / "out", **{"window_length": 6, "shift": 2, "num_shards": 2, **options})

    return run


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
    which = window(dataset, shard.file, 3)
    patch(dataset.folder / shard.file, 3 * layout.record_bytes + layout.field("window").offset, b"\xff\xff")
    assert verify(dataset.folder) == [
        sha_of(shard.file),
        f"{shard.file} is damaged in record 3, {which}",
        f"train lacks {which}",
    ]


def sha_of(file: str) -> str:
    return f"{file} is not the file that manifest.json describes: its SHA-256 is another"


def test_a_record_in_the_place_of_another_is_found(build: Build) -> None:
    dataset = build()
    first, second = (dataset.folder / shard.file for shard in dataset["train"].split.shards)
    lost, size = window(dataset, second.name, 0), dataset.manifest.layout.record_bytes
    doubled = window(dataset, first.name, 2)
    patch(second, 0, first.read_bytes()[2 * size : 3 * size])
    assert verify(dataset.folder) == [
        sha_of(second.name),
        f"{second.name} has once more in record 0, {doubled}",
        f"train lacks {lost}",
    ]
    patch(second, size, first.read_bytes()[2 * size : 3 * size])
    assert f"{second.name} has once more in record 1, {doubled}" in verify(dataset.folder)


def test_shards_that_are_missing_or_cut_short_are_named_and_all_else_is_still_checked(build: Build) -> None:
    dataset = build(num_shards=3)
    size, files = dataset.manifest.layout.record_bytes, [shard.file for shard in dataset["train"].split.shards]
    windows = [window(dataset, files[1], i) for i in range(3)]
    records = dataset["train"].split.shards
    (dataset.folder / files[0]).unlink()
    os.truncate(dataset.folder / files[1], 2 * size + 100)
    patch(dataset.folder / files[1], size, b"\0")
    faults = verify(dataset.folder)
    assert faults[:3] == [
        f"{files[0]} cannot be read: No such file or directory",
        f"{files[1]} has {2 * size + 100} bytes where manifest.json says {records[1].bytes}:"
        " it was cut short or replaced",
        f"{files[1]} is damaged in record 1, {windows[1]}",
    ]
    assert len(faults[3:]) == 11
    assert f"train lacks {windows[0]}" not in faults
    assert faults[3].startswith("train lacks the window of e")
    lacking = records[0].records + records[1].records - 1
    assert faults[-1] == f"train lacks {lacking - 10} more such records"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_shard_that_is_no_regular_file_is_not_waited_for(build: Build, kind: str) -> None:
    dataset = build(num_shards=1)
    file = dataset.folder / dataset["train"].split.shards[0].file
    file.unlink()
    file.mkdir() if kind == "folder" else os.mkfifo(file)
    (why,) = {"folder": ["Is a directory"], "pipe": ["it is no regular file (a pipe or a device)"]}[kind]
    assert verify(dataset.folder)[0] == f"{file.name} cannot be read: {why}"


def test_a_shard_that_is_longer_is_checked_as_far_as_it_should_go(build: Build) -> None:
    dataset = build(num_shards=1)
    shard = dataset["train"].split.shards[0]
    os.truncate(dataset.folder / shard.file, 2**40)  # sparse: it would take hours to read
    fault = f"{shard.file} has {2**40} bytes where manifest.json says {shard.bytes}: it was cut short or replaced"
    assert verify(dataset.folder) == [fault]


def test_a_record_of_another_split_is_found(build: Build) -> None:
    dataset = build(splits={"train": "0.5", "test": "0.5"}, num_shards=1)
    train, test = (dataset.folder / dataset[name].split.shards[0].file for name in ("train", "test"))
    patch(train, 0, test.read_bytes()[: dataset.manifest.layout.record_bytes])
    strange = window(dataset, test.name, 0, "test")
    assert f"{train.name} has what its split does not in record 0, {strange}" in verify(dataset.folder)


def test_a_valid_example_that_is_laid_out_otherwise_is_found(build: Build) -> None:
    dataset = build()
    where = window(dataset, dataset["train"].split.shards[0].file, 4)

    def rename(records: np.ndarray) -> None:
        at = records[4].tobytes().index(b"window")
        records[4, at : at + 6] = np.frombuffer(b"widnow", np.uint8)

    file = rewrite_shard(dataset, rename)
    assert verify(dataset.folder) == [
        f"{file} has another feature layout than manifest.json in record 4, {where}",
        f"train lacks {where}",
    ]


def test_an_integer_of_another_length_is_found(build: Build) -> None:
    dataset = build()

    def shorten(records: np.ndarray) -> None:
        field = dataset.manifest.layout.field("start")
        records[0, field.offset + field.nbytes - 1] = 0x80  # as if it went on in the next byte

    file = rewrite_shard(dataset, shorten)
    assert verify(dataset.folder)[0].startswith(
        f"{file} has another feature layout than manifest.json in record 0, the "
    )


@pytest.mark.parametrize(("per_record", "several"), [(1, ""), (3, "s")])
def test_padding_that_is_not_zeros_is_found(build: Build, per_record: int, several: str) -> None:
    dataset = build(tail="pad", windows_per_record=per_record, num_shards=1)
    layout = dataset.manifest.layout
    row = 0

    def fill(records: np.ndarray) -> None:
        nonlocal row
        values = layout.field("window").values(records)
        row = int(np.flatnonzero(layout.field("valid").values(records) < values.shape[1])[0])
        values[row, -1, 1] = -0.0

    file = rewrite_shard(dataset, fill)
    (fault,) = verify(dataset.folder)
    assert fault.startswith(
        f"{file} has window that is not 0 where no step is real in record {row}, the window{several} of e0"
    )


def test_no_integer_of_a_record_is_too_large(build: Build) -> None:
    dataset = build(tail="pad", windows_per_record=3, num_shards=1)
    layout = dataset.manifest.layout

    def widen(records: np.ndarray) -> None:
        for row, name in enumerate(("episode", "start", "count", "valid")):
            field = layout.field(name)
            most = 2 ** (7 * field.nbytes) - 1
            layout.write_integers(records[row : row + 1], name, np.array([most]))

    file = rewrite_shard(dataset, widen)
    faults = verify(dataset.folder)
    assert [fault.partition(", the")[0] for fault in faults[:4]] == [
        f"{file} has what its split does not in record {i}" for i in range(4)
    ]
    assert faults[0].startswith(
        f"{file} has what its split does not in record 0, the windows of episode {2**35 - 1} from "
    )
    assert len(faults) == 8


def test_bools_and_classes_are_what_they_can_be(build_here: BuildHere, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", x=np.arange(30) % 2 == 0, ok=np.asarray(True))
    (tmp_path / "labels.csv").write_text("path,task\na.npz,pick\n")
    dataset = build_here(
        str(tmp_path / "in"), tmp_path / "out", window_length=5, shift=5, labels=str(tmp_path / "labels.csv")
    )
    layout = dataset.manifest.layout
    assert verify(dataset.folder) == []

    def forge(records: np.ndarray) -> None:
        layout.field("x").values(records).view(np.uint8)[1, 2] = 2
        layout.field("ok").values(records).view(np.uint8)[2] = 255
        layout.write_integers(records[3:4], "task", np.array([1]))
        layout.write_integers(records[4:5], "task", np.array([-1]))

    rewrite_shard(dataset, forge)
    file, split = dataset["train"].split.shards[0].file, open_dataset(dataset.folder)["train"]
    starts = split.provenance()["start"].tolist()
    assert verify(dataset.folder)[:4] == [
        f"{file} has ok that is neither 0 nor 1 in record 2, the window of a.npz from step {starts[2]} on",
        f"{file} has x that is neither 0 nor 1 in record 1, the window of a.npz from step {starts[1]} on",
        f"{file} has task that is none of its classes in record 3, the window of a.npz from step {starts[3]} on",
        f"{file} has task that is none of its classes in record 4, the window of a.npz from step {starts[4]} on",
    ]


def test_files_that_pass_for_shards_are_found_and_others_are_not(build: Build) -> None:
    dataset = build()
    for name in ("out-train.tfrecord-00000-of-00003", "out-old.tfrecord-00000-of-00001", "out-train.tfrecord-00000~"):
        (dataset.folder / name).write_bytes(b"")
    for name in ("other-train.tfrecord-00000-of-00001", "notes.txt"):
        (dataset.folder / name).write_bytes(b"")
    assert verify(dataset.folder) == [
        f"{name} passes for a shard of this dataset, but is none"
        for name in (
            "out-old.tfrecord-00000-of-00001",
            "out-train.tfrecord-00000-of-00003",
            "out-train.tfrecord-00000~",
        )
    ]


def test_an_unfinished_build_is_told_and_no_fault(build: Build) -> None:
    dataset = build()
    (dataset.folder / "incomplete.tmp").mkdir()
    findings = examine(dataset.folder)
    assert (findings.faults, findings.notes) == (
        (),
        ("incomplete.tmp is there: a build is under way or was interrupted; the dataset is the one before",),
    )


def test_counts_of_the_source_are_those_of_the_episodes(build: Build) -> None:
    dataset = build()
    source = dataset.manifest.source
    rewrite_manifest(dataset, source=replace(source, steps=source.steps + 1, short=3, uncovered=0))
    assert verify(dataset.folder) == [
        "manifest.json has 178 as source.steps, where episodes.csv gives 177",
        "manifest.json has 3 as source.short + skipped, where episodes.csv gives 0",
        "manifest.json has 0 as source.uncovered, where episodes.csv gives 3",
        "manifest.json has been changed: its fingerprint is another",
    ]


@pytest.mark.parametrize("change", [{"seed": 5}, {"fingerprint": "0" * 64}])
def test_a_manifest_that_was_changed_is_found(build: Build, change: dict[str, object]) -> None:
    dataset = build()
    rewrite_manifest(dataset, **change)
    assert verify(dataset.folder) == ["manifest.json has been changed: its fingerprint is another"]


@pytest.mark.parametrize("key", ["mean", "std", "min", "max"])
def test_statistics_are_those_of_the_training_split(build: Build, key: str) -> None:
    dataset = build(splits={"train": "0.5", "test": "0.5"}, split_by="time")
    (told,) = dataset.manifest.statistics
    part = told.components[1]
    value = getattr(part, key)
    other = value * (1 - 1e-8) if key in {"mean", "std"} else value * (1 - 1e-15)
    if key in {"min", "max"}:
        assert other != value
    total = replace(told.total, **{key: other}) if getattr(told.total, key) == value else told.total
    changed = replace(told, components=(told.components[0], replace(part, **{key: other})), total=total)
    rewrite_manifest(dataset, statistics=(changed,))
    assert verify(dataset.folder) == ["manifest.json has statistics of window that are not those of train"]


@pytest.mark.parametrize("per_record", [1, 3])
def test_values_that_are_not_finite_are_those_of_the_manifest(
    save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path: Path, per_record: int
) -> None:
    episodes = [np.zeros(20, "float32") for _ in range(3)]
    episodes[1][[3, 4, 9]] = np.nan, np.inf, -np.inf
    episodes[2][0] = np.nan
    inputs = save_episodes(tmp_path / "in", episodes)
    dataset = build_here(inputs, tmp_path / "out", window_length=4, shift=2, windows_per_record=per_record)
    assert [vars(each) for each in dataset.manifest.nonfinite] == [
        {"episode": 1, "feature": "window", "values": 3, "step": 3},
        {"episode": 2, "feature": "window", "values": 1, "step": 0},
    ]
    assert verify(dataset.folder) == []
    rewrite_manifest(dataset, nonfinite=dataset.manifest.nonfinite[:1])
    wrong = "manifest.json has other values that are not finite than the shards, such as in window of episode "
    assert verify(dataset.folder) == [wrong + "2"]
    rewrite_manifest(
        dataset, nonfinite=(replace(dataset.manifest.nonfinite[0], values=4), dataset.manifest.nonfinite[1])
    )
    assert verify(dataset.folder) == [wrong + "1"]


def test_what_cannot_be_counted_again_is_told(build: Build) -> None:
    findings = examine(build(windows_per_record=3, stride=2).folder)
    note = "statistics and non-finite values are not counted again: records hold windows of steps apart"
    assert (findings.faults, findings.notes) == ((), (note,))


def test_no_memory_is_taken_for_windows_that_no_file_holds(build: Build) -> None:
    dataset = build(num_shards=1)
    windows = 2**38

    def claim(rows: list[EpisodeRow]) -> list[EpisodeRow]:
        steps = 6 + 2 * (windows - 1)
        return [rows[0]._replace(steps=steps, end=steps, windows=windows), *rows[1:]]

    rewrite_episodes(dataset, claim)
    faults = verify(dataset.folder)
    assert "episodes.csv gives train other episodes or windows than manifest.json" in faults
    records = windows + dataset.manifest.windows - 18
    assert f"train has {records} records by episodes.csv: its shards hold far fewer" in faults


@pytest.mark.parametrize(
    "change",
    [{"begin": -1}, {"end": 2**70}, {"steps": 2**63}, {"episode": -5}, {"episode": 2**63}, {"windows": 2**64}],
)
def test_numbers_of_episodes_may_be_any(build: Build, change: dict[str, int]) -> None:
    dataset = build(num_shards=1)
    rewrite_episodes(dataset, lambda rows: [rows[0]._replace(**change), *rows[1:]])
    (fault,) = verify(dataset.folder)
    why = "a number is not written as a whole number of 13 digits at most"
    assert fault == f"{dataset.folder}/episodes.csv is damaged, near line 2: {why}; copy the dataset again"


@pytest.mark.parametrize(
    "change", [{"begin": 1}, {"end": 10**12}, {"steps": 5}, {"windows": 19}, {"end": 0}], ids=lambda change: min(change)
)
def test_sections_that_cannot_be_are_told(build: Build, change: dict[str, int]) -> None:
    dataset = build(num_shards=1)
    rewrite_episodes(dataset, lambda rows: [rows[0]._replace(**change), *rows[1:]])
    assert "episodes.csv does not give train the windows that its steps have, of e000.npy" in verify(dataset.folder)


def test_rows_of_episodes_are_in_order_and_say_why_one_is_left_out(build: Build) -> None:
    dataset = build()
    rewrite_episodes(dataset, lambda rows: [rows[1], rows[0], rows[2]._replace(left_out="why"), *rows[3:]])
    assert verify(dataset.folder) == [
        "episodes.csv is out of order at e001.npy",
        "episodes.csv is out of order at e000.npy",
        "episodes.csv is out of order at e002.npy",
        "episodes.csv gives neither a split nor why it is left out, or both, to e002.npy",
    ]


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
    assert verify(dataset.folder) == [
        "episodes.csv gives train other episodes or windows than manifest.json",
        "episodes.csv does not give train the windows that its steps have, of e000.npy",
    ]
    rewrite_episodes(open_dataset(dataset.folder), lambda rows: [row._replace(split="other") for row in rows])
    assert "episodes.csv names a split that is none, for e000.npy" in verify(dataset.folder)


def test_files_for_tfds_must_be_those_of_the_manifest(build: Build) -> None:
    dataset = build()
    (dataset.folder / "features.json").unlink()
    (dataset.folder / "dataset_info.json").write_text("{}")
    assert verify(dataset.folder) == ["dataset_info.json is not what manifest.json gives", "features.json is missing"]


def test_records_are_checked_beside_a_changed_episodes_file_too(build: Build) -> None:
    dataset = build(num_shards=1)
    file = dataset["train"].split.shards[0].file
    (dataset.folder / "episodes.csv").write_text("mine")
    patch(dataset.folder / file, 100, b"\x01\x02\x03")
    assert verify(dataset.folder) == [
        f"{dataset.folder}/episodes.csv is not the file that the manifest describes; copy the dataset again",
        sha_of(file),
        f"{file} is damaged in record 0",
    ]


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
