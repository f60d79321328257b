"""The job as Beam transforms: thin wiring around the plain functions of write.py, staging.py and publish.py.

Only Create, Map, FlatMap, Reshuffle and GroupByKey, with one branch and no side inputs (`ToList` has one): a graph that
local, Dask, Flink, Spark and Dataflow runners all carry out alike. Elements are tuples of numbers and strings; no
window ever passes through Beam.
"""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from .program import check_program, program_digest
from .publish import publish
from .staging import read_task, task_places
from .tally import Tally
from .tasks import Recipe, ShardDone
from .write import write_shard

Place = tuple[int, int]
METRICS = "episode_windows"  # the namespace of all counters


def write_dataset(
    pipeline: beam.Pipeline, recipe: Recipe, output: str, fingerprint: str, parts: int = 1
) -> beam.PCollection:
    """The graph of the job, from a staged plan to the published dataset: a collection of the manifest's path.

    The plan comes in so many parts: one, unless the runner spreads nothing but what is there from the beginning.
    """
    return (
        pipeline
        | "Plan" >> beam.Create(range(parts))  # number of a part
        | "Shards" >> WriteShards(recipe, parts)  # ShardDone
        | "Dataset" >> PublishDataset(output, recipe.staging, fingerprint)  # manifest path
    )


class WriteShards(beam.PTransform):  # type: ignore[misc]
    """From the staged plan to shards in the staging folder: a collection of `ShardDone`, as plain tuples."""

    def __init__(self, recipe: Recipe, parts: int) -> None:
        super().__init__()
        self._recipe, self._parts = recipe, parts

    def expand(self, numbers: beam.PCollection) -> beam.PCollection:
        """numbers: the collection of all of range(parts)."""
        return (
            numbers
            | "Tasks"
            >> beam.FlatMap(_part_of_places, self._recipe.staging, self._parts)  # (first byte, bytes) of a task
            | "Spread" >> beam.Reshuffle()  # over all workers, instead of one; Dask leaves each where it is
            | "Write" >> beam.Map(_write_staged, self._recipe, program_digest())  # ShardDone
        )


class PublishDataset(beam.PTransform):  # type: ignore[misc]
    """From all `ShardDone` to the dataset: a collection of one element, the manifest's path."""

    def __init__(self, output: str, staging: str, fingerprint: str) -> None:
        super().__init__()
        self._arguments = output, staging, fingerprint

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        """done: the collection that `WriteShards` gives."""
        return (
            done
            | "Key" >> beam.Map(_under_one_key).with_output_types(tuple[int, tuple[Any, ...]])  # (0, ShardDone)
            | "Gather" >> beam.GroupByKey()  # (0, [ShardDone])
            | "Publish" >> beam.Map(_publish, *self._arguments)  # manifest path
        )


def _part_of_places(part: int, staging: str, parts: int) -> list[Place]:
    return task_places(staging)[part::parts]


def _under_one_key(done: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    return 0, done


def _write_staged(place: Place, recipe: Recipe, program: str) -> tuple[Any, ...]:
    check_program(program)
    tally = Tally()
    done = write_shard(recipe, read_task(recipe.staging, place), tally)
    _count(tally)
    return tuple(done._replace(nonfinite=()))  # which the shard's note has; a list of 10^5 shards must stay small


def _publish(gathered: tuple[int, Iterable[tuple[Any, ...]]], output: str, staging: str, fingerprint: str) -> str:
    shards, tally = [ShardDone(*shard) for shard in gathered[1]], Tally()
    with tally.timed("publish"):
        manifest = publish(output, staging, shards, fingerprint)
    windows = sum(shard.windows for shard in shards)
    tally.add("publish", windows, windows, sum(shard.bytes for shard in shards))
    _count(tally)
    return manifest


def _count(tally: Tally) -> None:
    for name, value in tally.metrics().items():
        Metrics.counter(METRICS, name).inc(value)
