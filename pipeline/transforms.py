"""The job as Beam transforms: thin wiring around the plain functions of write.py, staging.py and publish.py.

Only Create, Map, FlatMap, Reshuffle and ToList, with one branch: a graph that local, Dask, Spark and Dataflow runners
all carry out alike. Elements are strings and tuples of numbers and strings; no window ever passes through Beam.
"""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from .publish import publish
from .staging import read_task, task_places
from .tally import Tally
from .tasks import Recipe, ShardDone
from .write import write_shard

Place = tuple[int, int]
METRICS = "episode_windows"  # the namespace of all counters


def write_dataset(pipeline: beam.Pipeline, recipe: Recipe, output: str, fingerprint: str) -> beam.PCollection:
    """The graph of the job, from a staged plan to the published dataset: a collection of the manifest's path."""
    return (
        pipeline
        | "Plan" >> beam.Create([recipe.staging])  # staging folder
        | "Shards" >> WriteShards(recipe)  # ShardDone
        | "Dataset" >> PublishDataset(output, recipe.staging, fingerprint)  # manifest path
    )


class WriteShards(beam.PTransform):  # type: ignore[misc]
    """From the staged plan to shards in the staging folder: a collection of `ShardDone`, as plain tuples."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._recipe = recipe

    def expand(self, staging: beam.PCollection) -> beam.PCollection:
        """staging: a collection of one element, the path of the staging folder."""
        return (
            staging
            | "Tasks" >> beam.FlatMap(task_places)  # (first byte, bytes) of a task
            | "Spread" >> beam.Reshuffle()  # over all workers, instead of one
            | "Write" >> beam.Map(_write_staged, self._recipe)  # ShardDone
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
            | "Gather" >> beam.combiners.ToList()  # [ShardDone]
            | "Publish" >> beam.Map(_publish, *self._arguments)  # manifest path
        )


def _write_staged(place: Place, recipe: Recipe) -> tuple[Any, ...]:
    tally = Tally()
    done = write_shard(recipe, read_task(recipe.staging, place), tally)
    _count(tally)
    return tuple(done)


def _publish(done: Iterable[tuple[Any, ...]], output: str, staging: str, fingerprint: str) -> str:
    shards, tally = [ShardDone(*shard) for shard in done], Tally()
    with tally.timed("publish"):
        manifest = publish(output, staging, shards, fingerprint)
    windows = sum(shard.windows for shard in shards)
    tally.add("publish", windows, windows, sum(shard.bytes for shard in shards))
    _count(tally)
    return manifest


def _count(tally: Tally) -> None:
    for name, value in tally.metrics().items():
        Metrics.counter(METRICS, name).inc(value)
