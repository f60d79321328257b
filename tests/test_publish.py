import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes, WindowsOf
from pipeline import BuildOptions, DatasetPlan, plan
from pipeline.notes import read_note, write_note
from pipeline.publish import describe_failures, publish, published_manifest, staged_failures
from pipeline.staging import read_draft, read_task, stage_plan, task_places
from pipeline.tasks import ShardDone
from pipeline.write import write_shard
from shards import BuildError, Dataset, load_manifest, open_dataset
from shards.manifest import Nonfinite
from shards.manifest_file import parse_manifest

LENGTH, SHIFT = 4, 3
ARRAYS = [np.random.default_rng(steps).integers(0, 999, (steps, 2)) for steps in (25, 3, 40, 18, 4, 31)]
FILES = [
    "dataset_info.json",
    "episodes.csv",
    "features.json",
    "manifest.json",
    "out-test.tfrecord-00000-of-00001",
    "out-train.tfrecord-00000-of-00002",
    "out-train.tfrecord-00001-of-00002",
]


@dataclass(frozen=True)
class Job:
    """A staged plan and what became of its tasks."""

    plan: DatasetPlan
    done: list[ShardDone]

    def publish(self) -> str:
        return publish(self.plan.options.output, self.plan.staging, self.done, self.plan.manifest.fingerprint)


RunJob = Callable[..., Job]


@pytest.fixture
def inputs(tmp_path: Path, save_episodes: SaveEpisodes) -> str:
    return save_episodes(tmp_path / "in", ARRAYS)


@pytest.fixture
def options(tmp_path: Path, inputs: str) -> BuildOptions:
    return BuildOptions(
        inputs=(inputs,),
        output=str(tmp_path / "out"),
        window_length=LENGTH,
        shift=SHIFT,
        splits={"train": "0.7", "test": "0.3"},
        num_shards={"train": 2, "test": 1},
    )


def run_job(options: BuildOptions, between: Callable[[], object] = lambda: None) -> Job:
    """Stage a plan, and write its shards after `between` was called."""
    planned = plan(options)
    stage_plan(planned)
    between()
    tasks = [read_task(planned.staging, place) for place in task_places(planned.staging)]
    return Job(planned, [write_shard(planned.recipe, task) for task in tasks])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder and below, but for the staging folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        name: path.read_bytes()
        for path in files
        if not (name := str(path.relative_to(folder))).startswith("incomplete.tmp")
    }


def windows_in(dataset: Dataset) -> list[tuple[int, int, bytes]]:
    """(episode, first step, bytes) of every window of a dataset, sorted."""
    found = []
    for windows in dataset.values():
        where = windows.provenance()
        rows = zip(where["episode"].tolist(), where["start"].tolist(), windows, strict=True)
        found += [(episode, start, window["window"].tobytes()) for episode, start, window in rows]
    return sorted(found)


def test_a_published_dataset_holds_every_window_once(
    tmp_path: Path, options: BuildOptions, windows_of: WindowsOf
) -> None:
    manifest_path = run_job(options).publish()

    assert manifest_path == f"{tmp_path}/out/manifest.json"
    assert sorted(contents(tmp_path / "out")) == FILES
    assert not (tmp_path / "out/incomplete.tmp").exists()
    expected = [(*place, window) for place, window in windows_of(ARRAYS, LENGTH, SHIFT).items()]
    assert windows_in(open_dataset(tmp_path / "out")) == sorted(expected)


def test_no_episode_is_in_two_splits(tmp_path: Path, options: BuildOptions) -> None:
    run_job(options).publish()

    dataset = open_dataset(tmp_path / "out")
    train, test = (set(dataset[split].provenance()["episode"].tolist()) for split in ("train", "test"))
    assert train & test == set()
    assert train | test == {0, 2, 3, 4, 5}


def test_the_manifest_is_the_plan_with_the_shards_digests(tmp_path: Path, options: BuildOptions) -> None:
    job = run_job(options)
    job.publish()

    manifest = load_manifest(tmp_path / "out")

    shards = [shard for split in manifest.splits for shard in split.shards]
    assert [(shard.file, shard.records, shard.windows, shard.bytes, shard.sha256, "") for shard in shards] == [
        done[:6] for done in job.done
    ]
    assert [shard.windows for shard in shards] == [shard.records for shard in shards]
    for shard in shards:
        assert sha256((tmp_path / "out" / shard.file).read_bytes()).hexdigest() == shard.sha256
    planned = job.plan.manifest
    assert {shard.sha256 for split in planned.splits for shard in split.shards} == {"0" * 64}
    assert (planned.statistics, planned.nonfinite) == ((), ())
    assert replace(manifest, splits=planned.splits, statistics=()) == planned
    assert sha256((tmp_path / "out/episodes.csv").read_bytes()).hexdigest() == manifest.episodes_sha256


def test_the_metadata_are_those_of_tfds(tmp_path: Path, options: BuildOptions) -> None:
    run_job(options).publish()

    info, features = (
        json.loads((tmp_path / "out" / name).read_bytes()) for name in ("dataset_info.json", "features.json")
    )

    manifest = load_manifest(tmp_path / "out")
    assert (info["name"], info["fileFormat"]) == ("out", "tfrecord")
    assert [(split["name"], split["shardLengths"], split["numBytes"]) for split in info["splits"]] == [
        (split.name, [str(shard.records) for shard in split.shards], str(split.bytes)) for split in manifest.splits
    ]
    tensors = {name: value["tensor"] for name, value in features["featuresDict"]["features"].items()}
    assert tensors == {
        "window": {"shape": {"dimensions": ["4", "2"]}, "dtype": "int64", "encoding": "bytes"},
        "episode": {"shape": {"dimensions": []}, "dtype": "int64", "encoding": "none"},
        "start": {"shape": {"dimensions": []}, "dtype": "int64", "encoding": "none"},
    }


def test_publishing_again_changes_nothing(tmp_path: Path, options: BuildOptions) -> None:
    job = run_job(options)
    first = job.publish()
    before = contents(tmp_path / "out")

    assert job.publish() == first

    assert contents(tmp_path / "out") == before


def test_who_wrote_which_shard_and_when_makes_no_difference(tmp_path: Path, options: BuildOptions) -> None:
    random = np.random.default_rng(3)
    arrays = [random.standard_normal((steps, 2)) * 10.0 ** random.integers(-9, 9) for steps in (90, 40, 200, 77)]
    arrays[1][5] = np.nan
    folder = tmp_path / "floats"
    folder.mkdir()
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array)
    options = replace(options, inputs=(str(folder),), num_shards={"train": 9, "test": 4}, tail="align")
    manifests = set()
    for number in range(6):
        job = run_job(replace(options, output=str(tmp_path / f"{number}/out")))
        order = random.permutation(len(job.done)).tolist() if number else range(len(job.done))
        replace(job, done=[job.done[i] for i in order]).publish()
        manifests.add((tmp_path / f"{number}/out/manifest.json").read_bytes())

    assert len(manifests) == 1
    manifest = parse_manifest(manifests.pop())
    assert manifest.statistics[0].total.count > 0
    assert [(each.episode, each.values, each.step) for each in manifest.nonfinite] == [(1, 2, 5)]


def test_what_is_not_finite_is_added_up_over_shards(options: BuildOptions) -> None:
    job = run_job(options)
    places = [((4, "window", 3, 9), (2, "window", 1, 30)), ((2, "window", 5, 7),), ((2, "window", 1, 8),)]
    for shard, found in zip(job.done, places, strict=True):
        write_note(job.plan.staging, shard._replace(nonfinite=found), read_note(job.plan.staging, shard.file).moments)

    job.publish()

    manifest = load_manifest(options.output)
    assert manifest.nonfinite == (Nonfinite(2, "window", 7, 7), Nonfinite(4, "window", 3, 9))


@pytest.mark.parametrize("moved", range(len(FILES)))
def test_publishing_goes_on_where_it_was_interrupted(
    tmp_path: Path, options: BuildOptions, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(options, output=str(tmp_path / "whole" / "out"))
    run_job(whole).publish()
    job = run_job(options)
    moves = []

    def move_some(sources: list[str], targets: list[str]) -> None:
        for source, target in zip(sources, targets, strict=True):
            if len(moves) == moved:
                raise OSError("the machine went away")
            moves.append(Path(source).replace(target))

    monkeypatch.setattr("pipeline.publish.move_files", move_some)
    with pytest.raises(OSError, match="the machine went away"):
        job.publish()
    monkeypatch.undo()
    assert not (tmp_path / "out/manifest.json").exists()

    job.publish()

    assert contents(tmp_path / "out") == contents(tmp_path / "whole/out")
    assert not (tmp_path / "out/incomplete.tmp").exists()


def test_the_same_plan_gives_the_same_bytes_wherever_it_is_built(
    tmp_path: Path, options: BuildOptions, save_episodes: SaveEpisodes
) -> None:
    run_job(options).publish()
    elsewhere = save_episodes(tmp_path / "else/where", ARRAYS)
    run_job(replace(options, inputs=(elsewhere,), output=str(tmp_path / "2/out"), workers=3)).publish()

    assert contents(tmp_path / "2/out") == contents(tmp_path / "out")
    assert b"tmp" not in b"".join(contents(tmp_path / "out").values())


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"window_length": 5},
        {"shift": 2},
        {"stride": 2},
        {"tail": "pad"},
        {"windows_per_record": 2, "num_shards": 1},
        {"dtype": {"window": "float32"}},
        {"split_by": "time"},
        {"split_by": "time", "purge": 1},
        {"group_by": "e0.."},
        {"name": "b"},
        {"num_shards": 2},
        {"splits": {"train": "1"}, "num_shards": 1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_the_fingerprint_is_of_all_that_decides_the_bytes(options: BuildOptions, changes: dict[str, Any]) -> None:
    assert plan(replace(options, **changes)).manifest.fingerprint != plan(options).manifest.fingerprint


def test_the_fingerprint_changes_with_the_list_of_episodes(inputs: str, options: BuildOptions) -> None:
    before = plan(options).manifest.fingerprint

    Path(inputs, "e005.npy").rename(Path(inputs, "e006.npy"))

    assert plan(options).manifest.fingerprint != before


def test_a_failed_shard_stops_it_and_leaves_the_output_as_it_was(
    tmp_path: Path, inputs: str, options: BuildOptions
) -> None:
    run_job(replace(options, seed=1)).publish()
    (tmp_path / "out/notes.txt").write_text("mine")
    before = contents(tmp_path / "out")

    job = run_job(options, between=Path(inputs, "e002.npy").unlink)

    with pytest.raises(BuildError, match=r"shards could not be written:\n  .*/in/e002\.npy could not be read"):
        job.publish()
    assert contents(tmp_path / "out") == before
    assert "e002.npy" in "".join(staged_failures(job.plan.staging))


def test_after_a_failure_the_same_build_can_be_run_again(
    tmp_path: Path, inputs: str, options: BuildOptions, windows_of: WindowsOf
) -> None:
    file, away = Path(inputs, "e002.npy"), tmp_path / "away.npy"
    job = run_job(options, between=lambda: file.rename(away))
    with pytest.raises(BuildError):
        job.publish()

    away.rename(file)
    run_job(options).publish()

    assert len(windows_in(open_dataset(tmp_path / "out"))) == len(windows_of(ARRAYS, LENGTH, SHIFT))
    assert sorted(contents(tmp_path / "out")) == FILES


def test_failures_are_told_once_each_and_twenty_at_most() -> None:
    text = describe_failures([f"e{i % 25:02d}.npy is gone" for i in range(100)])

    assert text.splitlines() == [
        "100 of the shards could not be written:",
        *(f"  e{i:02d}.npy is gone" for i in range(20)),
        "  and 5 more",
        "Mend the cause and run the same command again: it goes on with what is finished. If episodes were",
        "changed, it begins anew with --overwrite.",
    ]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda done: done[1:], r"shard out-train\.tfrecord-00000-of-00002 was planned as .* but came out as None"),
        (lambda done: [*done, done[0]], "wrote a shard twice"),
        (lambda done: [*done, done[0]._replace(file="x-y.tfrecord-00000-of-00001")], "not planned: x-y"),
        (lambda done: [done[0]._replace(records=1), *done[1:]], r"00000-of-00002 was planned as"),
        (lambda done: [done[0]._replace(bytes=1), *done[1:]], r"00000-of-00002 was planned as"),
        (lambda done: [done[0]._replace(windows=1), *done[1:]], r"00000-of-00002 was planned as"),
    ],
    ids=["missing", "twice", "unplanned", "records", "bytes", "windows"],
)
def test_shards_other_than_planned_stop_it(
    tmp_path: Path, options: BuildOptions, spoil: Callable[[list[ShardDone]], list[ShardDone]], words: str
) -> None:
    job = run_job(options)

    with pytest.raises(BuildError, match=words):
        replace(job, done=spoil(job.done)).publish()
    assert contents(tmp_path / "out") == {}


@pytest.mark.parametrize("older", [False, True], ids=["new folder", "over an older dataset"])
def test_a_shard_that_is_not_in_the_staging_folder_stops_it(tmp_path: Path, options: BuildOptions, older: bool) -> None:
    if older:
        run_job(replace(options, seed=1)).publish()
    before = contents(tmp_path / "out")
    job = run_job(options)
    Path(job.plan.staging, job.done[1].file).unlink()  # as by a worker that has another disk

    with pytest.raises(BuildError, match=r"out-train\.tfrecord-00001-of-00002"):
        job.publish()
    assert contents(tmp_path / "out") == before


def test_an_older_dataset_is_replaced_whole(tmp_path: Path, inputs: str, options: BuildOptions) -> None:
    older = replace(options, name="older", num_shards={"train": 5, "test": 3})
    run_job(older).publish()
    assert "older-train.tfrecord-00004-of-00005" in contents(tmp_path / "out")

    run_job(options).publish()

    assert sorted(contents(tmp_path / "out")) == FILES
    assert load_manifest(tmp_path / "out").name == "out"


def test_files_that_are_no_datasets_are_kept(tmp_path: Path, options: BuildOptions) -> None:
    mine = {
        "README.md": b"mine",
        "model.keras": b"weights",
        "train.tfrecord": b"records",
        "logs/manifest.json": b"{}",
        "old-train.tfrecord-00000-of-00001.bak": b"copy",
    }
    for name, data in mine.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(data)

    run_job(options).publish()

    after = contents(tmp_path / "out")
    assert sorted(after) == sorted([*FILES, *mine])
    assert {name: after[name] for name in mine} == mine


def test_tasks_are_staged_as_planned(options: BuildOptions) -> None:
    planned = plan(options)
    stage_plan(planned)

    tasks = [read_task(planned.staging, place) for place in task_places(planned.staging)]

    assert tasks == list(planned.tasks())
    assert [task.file for task in tasks] == FILES[5:] + FILES[4:5]
    assert parse_manifest(read_draft(planned.staging)) == planned.manifest


def test_the_list_of_episodes_says_what_became_of_each(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    folder = save_episodes(
        tmp_path / "in", {"a": np.zeros((9, 2)), "b": np.zeros((3, 2)), "c": np.zeros(9), "d": np.zeros((14, 2))}
    )
    Path(folder, "e.npy").touch()

    dataset = build_here(folder, tmp_path / "out", window_length=4, shift=2, on_error="skip")

    assert (tmp_path / "out/episodes.csv").read_text().splitlines() == [
        "episode,path,steps,split,begin,end,windows,group,left_out",
        "0,a.npy,9,train,0,9,3,,",
        "1,b.npy,3,,0,0,0,,shorter than one window",
        '2,c.npy,0,,0,0,0,,"is float64 with shape (steps,) where most episodes are float64 with shape (steps, 2)"',
        "3,d.npy,14,train,0,14,6,,",
        "4,e.npy,0,,0,0,0,,is empty",
    ]
    source = dataset.manifest.source
    assert (source.episodes, source.steps, source.short, source.skipped, source.uncovered) == (2, 23, 1, 2, 1)
    assert source.bytes == 23 * 2 * 8


def test_what_is_published_is_read_back(tmp_path: Path, options: BuildOptions) -> None:
    output = str(tmp_path / "out")
    assert published_manifest(output) is None

    run_job(options).publish()
    assert published_manifest(output) == load_manifest(output)

    (tmp_path / "out/manifest.json").write_text("{")
    assert published_manifest(output) is None
