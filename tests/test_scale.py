"""What stays small however many episodes and shards there are: graph, messages, tasks, and what planning holds."""

import io
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from conftest import SaveEpisodes
from pipeline import BuildOptions, DatasetPlan, plan
from pipeline.episodes import Episodes, tabulate
from pipeline.inputs import EpisodeFile
from pipeline.job import plan_episodes
from pipeline.labels import LabelColumn
from pipeline.program import program_digest
from pipeline.runner import Job
from pipeline.source import SourceHeader, read_source_header
from pipeline.staging import read_task, stage_plan, task_places
from pipeline.tasks import ShardDone
from pipeline.transforms import write_dataset
from shards.errors import OptionError
from shards.features import Feature
from shards.files import FileState

MB = 10**6
GRAPH_LIMIT = 10 * MB  # of the largest job that Dataflow takes
MESSAGE_LIMIT = 80 * MB  # of an element in flight
SHARDS = 10**5


def header(steps: int, columns: int) -> SourceHeader:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (steps, columns)
    start = b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n"
    return read_source_header(io.BytesIO(start), "episode.npy", len(start) + steps * columns * 4)


def table(count: int) -> Episodes:
    """Episodes of 1000 steps."""
    files = [EpisodeFile("/data/", f"robot/episode_{i:09d}.npy", FileState(128_128, i)) for i in range(count)]
    return tabulate(files, iter([header(1000, 32)] * count))


def options(output: Path, **others: object) -> BuildOptions:
    return replace(BuildOptions(("/data",), str(output), window_length=64, shift=64), **others)  # type: ignore[arg-type]


def graph_bytes(planned: DatasetPlan) -> int:
    pipeline = beam.Pipeline(options=PipelineOptions([]))
    write_dataset(pipeline, planned.recipe, planned.output, planned.manifest.fingerprint)
    return len(pipeline.to_runner_api().SerializeToString())


def encoded(element: object) -> int:
    """The bytes of an element between two steps of a job."""
    return len(beam.coders.registry.get_coder(type(element)).encode(element))


def test_the_graph_does_not_know_how_many_episodes_there_are(tmp_path: Path) -> None:
    sizes = [graph_bytes(plan_episodes(options(tmp_path / "o"), table(count))) for count in (10, 50_000)]

    assert max(sizes) < 100_000 < GRAPH_LIMIT
    assert abs(sizes[1] - sizes[0]) < 500


def test_the_graph_does_not_know_the_classes_of_labels(tmp_path: Path) -> None:
    episodes, sizes = table(1000), []
    for count in (2, 500):
        words = tuple(f"a class of some name, {i}" for i in range(count))
        column = LabelColumn(Feature("task", "int64", (), classes=words), tuple(i % count for i in range(1000)))
        sizes.append(graph_bytes(plan_episodes(options(tmp_path / "o"), replace(episodes, labels=(column,)))))

    assert abs(sizes[1] - sizes[0]) < 500


def test_the_graph_does_not_know_the_files_that_are_left_out(tmp_path: Path) -> None:
    sizes = []
    for strange in (1, 900):
        files = [EpisodeFile("/data/", f"{i:04d}.npy", FileState(128_128, i)) for i in range(2000)]
        headers: Iterator[SourceHeader] = (header(1000, 32 if i >= strange else 100 + i) for i in range(2000))
        episodes = tabulate(files, headers, on_error="skip")
        assert len(episodes.problems) == strange
        assert len(episodes.forms) == 1
        assert episodes.form.tolist() == [-1] * strange + [0] * (2000 - strange)
        sizes.append(graph_bytes(plan_episodes(options(tmp_path / "o", on_error="skip"), episodes)))

    assert abs(sizes[1] - sizes[0]) < 500


def test_what_a_hundred_thousand_shards_send_is_one_small_message(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    from pipeline.transforms import _write_staged

    inputs = save_episodes(tmp_path / "in", [np.full(50, np.nan, np.float32)] * 40)
    planned = plan(BuildOptions((inputs,), str(tmp_path / "out"), window_length=5))
    stage_plan(planned)
    (place,) = task_places(planned.staging)

    done = ShardDone(*_write_staged(place, planned.recipe, program_digest()))

    assert (done.windows, done.nonfinite) == (400, ())  # which the note tells
    longest = ("n" * 200 + "-train.tfrecord-00000-of-00001", 2**40, 2**40, 2**40, done.sha256, "", ())
    assert encoded([tuple(done)] * 1000) / 1000 * SHARDS < 20 * MB
    assert encoded([longest] * 1000) / 1000 * SHARDS < 50 * MB < MESSAGE_LIMIT
    assert encoded([(2**40, 2**20)] * 1000) / 1000 * SHARDS < 5 * MB  # places, all together


def test_planning_grows_with_the_episodes_and_not_faster(tmp_path: Path) -> None:
    counts, peaks, staged = (3_000, 30_000), [], []
    for count in counts:
        episodes = table(count)
        tracemalloc.start()
        planned = plan_episodes(options(tmp_path / f"{count}"), episodes)
        stage_plan(planned)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes = {file.name: file.stat().st_size for file in Path(planned.staging).iterdir()}
        staged.append(sum(sizes.values()))
        (size, _) = max((size, begin) for begin, size in task_places(planned.staging))
        assert size < 200_000
        task = read_task(planned.staging, task_places(planned.staging)[-1])
        assert task.file == planned.manifest.splits[-1].shards[-1].file

    assert peaks[1] < 12 * peaks[0]
    assert staged[1] < 10.5 * staged[0]
    assert peaks[1] / counts[1] < 900  # bytes an episode, besides those of the table
    assert staged[1] / counts[1] < 250


def test_what_the_job_is_told_is_small(tmp_path: Path) -> None:
    import pickle

    planned = plan_episodes(options(tmp_path / "o"), table(50_000))

    job = Job(planned.recipe, planned.output, planned.manifest.fingerprint, 2, 98, (), False)
    assert len(pickle.dumps(job)) < 3000


@pytest.mark.parametrize("shards", [1000, 10_000])
def test_the_places_of_tasks_grow_with_the_shards(tmp_path: Path, shards: int) -> None:
    planned = plan_episodes(options(tmp_path / "o", num_shards={"train": shards}), table(1000))

    stage_plan(planned)

    places = task_places(planned.staging)
    assert len(places) == shards
    begins, sizes = zip(*places, strict=True)
    assert begins == tuple(np.cumsum((0, *sizes[:-1])).tolist())
    assert sum(sizes) == (Path(planned.staging) / "tasks.jsonl").stat().st_size
    assert max(sizes) < 20_000
    last = read_task(planned.staging, places[-1])
    assert last.file.endswith(f"-{shards - 1:05d}-of-{shards:05d}")


def test_more_episodes_than_a_dataset_can_name_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shards.episode_table._MAX_BYTES", 5000)
    assert len(plan_episodes(options(tmp_path / "o"), table(80)).episodes_csv) < 5000

    with pytest.raises(OptionError, match=r"episodes\.csv would have \d+ bytes, of which 5000 at most are read: build"):
        _ = plan_episodes(options(tmp_path / "o"), table(100)).manifest
