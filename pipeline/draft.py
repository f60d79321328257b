"""The planned dataset: everything about it but the shards' digests, and the files that hand the plan to the workers.

A job's plan does not travel through Beam: it lies in the output's staging folder, where each worker reads the lines of
the shards that it is given. So the job's graph and its messages stay small however many episodes there are.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise

import numpy as np

from shards.features import Feature
from shards.manifest import FORMAT_VERSION, Manifest, Shard, Source, Split, format_manifest
from shards.naming import EPISODES, FEATURES, ShardName
from shards.record import RecordLayout, record_layout
from shards.tfds import features_json
from shards.windows import count_covered, count_windows

from .episodes import Episodes
from .files import delete_folder, is_remote, join, make_folder, read_file, write_file
from .options import BuildOptions
from .plan import SplitPlan
from .write import Recipe, ShardTask, SourceEpisode, Span

#: The folder in the output where a build keeps its files until the dataset is whole.
STAGING = "incomplete.tmp"
_DRAFT, _TASKS, _TASK_INDEX = "draft.json", "tasks.jsonl", "tasks.index.json"
_NO_DIGEST = "0" * 64


def _quoted(text: str) -> str:
    """A field of a CSV file; csv.writer's rules for a carriage return differ between versions of Python."""
    return '"' + text.replace('"', '""') + '"' if re.search('[",\r\n]', text) else text


@dataclass(frozen=True)
class DatasetPlan:
    """What a build will write: the options, the episodes, the one feature of a window, and each split's plan."""

    options: BuildOptions
    episodes: Episodes
    feature: Feature
    splits: tuple[SplitPlan, ...]

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout([self.feature])

    @property
    def output(self) -> str:
        """The output folder, for processes in any working folder."""
        output = self.options.output
        return output if is_remote(output) else os.path.abspath(output)

    @property
    def staging(self) -> str:
        """The folder where the build keeps its files until the dataset is whole."""
        return join(self.output, STAGING)

    @property
    def recipe(self) -> Recipe:
        """What the workers need besides their tasks."""
        options = self.options
        return Recipe(
            root=self.episodes.root,
            staging=self.staging,
            feature=self.feature,
            length=options.window_length,
            shift=options.step_shift,
            shard_bytes=max(shard.bytes for split in self.manifest.splits for shard in split.shards),
        )

    @cached_property
    def source(self) -> Source:
        """What the dataset is made from."""
        episodes, options = self.episodes, self.options
        windows = count_windows(episodes.steps, options.window_length, options.step_shift)
        used = windows > 0
        covered = count_covered(windows, options.window_length, options.step_shift)
        return Source(
            episodes=int(used.sum()),
            steps=int(episodes.steps[used].sum()),
            dtype=episodes.dtype,
            step_shape=episodes.step_shape,
            short=int((~used).sum()) - len(episodes.problems),
            skipped=len(episodes.problems),
            uncovered=int((episodes.steps - covered)[used].sum()),
        )

    @cached_property
    def episodes_csv(self) -> bytes:
        """The bytes of episodes.csv: a row an episode, also those left out."""
        episodes, options = self.episodes, self.options
        windows = count_windows(episodes.steps, options.window_length, options.step_shift).tolist()
        split_of = [""] * len(windows)
        for split in self.splits:
            for episode in split.episodes.tolist():
                split_of[episode] = split.name
        rows = ["episode,path,split,steps,windows,left_out\n"]
        for i, (path, steps) in enumerate(zip(episodes.paths, episodes.steps.tolist(), strict=True)):
            why = episodes.problems.get(i, "") or ("" if windows[i] else "shorter than one window")
            rows.append(f"{i},{_quoted(path)},{split_of[i]},{steps},{windows[i]},{_quoted(why)}\n")
        return "".join(rows).encode(errors="surrogateescape")

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, with zeros for the digests of shards that are still to be written."""
        options, record_bytes = self.options, self.layout.record_bytes
        splits = []
        for split in self.splits:
            names = (ShardName(options.dataset_name, split.name, i, split.shards) for i in range(split.shards))
            shards = tuple(
                Shard(str(name), records, records, records * record_bytes, _NO_DIGEST)
                for name, records in zip(names, split.shard_windows().tolist(), strict=True)
            )
            splits.append(Split(split.name, options.splits[split.name], len(split.episodes), shards))
        episodes_sha256 = sha256(self.episodes_csv).hexdigest()
        draft = Manifest(
            name=options.dataset_name,
            length=options.window_length,
            shift=options.step_shift,
            seed=options.seed,
            features=(self.feature,),
            source=self.source,
            splits=tuple(splits),
            episodes_sha256=episodes_sha256,
            fingerprint=_NO_DIGEST,
        )
        # The draft names all that the shards' bytes depend on, but for the episodes' values.
        return replace(draft, fingerprint=sha256(b"%d" % FORMAT_VERSION + format_manifest(draft)).hexdigest())

    def tasks(self) -> Iterator[ShardTask]:
        """The task of each shard, split by split."""
        episodes, seed = self.episodes, self.options.seed
        for number, (split, planned) in enumerate(zip(self.splits, self.manifest.splits, strict=True)):
            columns = np.stack([split.span_episodes, split.first, split.count], axis=1)
            for index, shard in enumerate(planned.shards):
                rows = columns[split.shard_spans[index] : split.shard_spans[index + 1]].tolist()
                named = {
                    i: SourceEpisode(
                        episodes.paths[i],
                        int(episodes.steps[i]),
                        int(episodes.offsets[i]),
                        bool(episodes.big_endian[i]),
                        bool(episodes.fortran_order[i]),
                    )
                    for i in sorted({row[0] for row in rows})
                }
                yield ShardTask(shard.file, (seed, 2, number, index), tuple(Span(*row) for row in rows), named)


def stage_plan(plan: DatasetPlan) -> None:
    """Write the staging folder anew: the tasks with their index, the draft of the manifest and the small files."""
    delete_folder(plan.staging)
    make_folder(plan.staging)
    lines = [task.to_json() for task in plan.tasks()]
    ends = np.cumsum([0, *map(len, lines)]).tolist()
    places = [(begin, end - begin) for begin, end in pairwise(ends)]
    files = {
        EPISODES: plan.episodes_csv,
        FEATURES: features_json((plan.feature,)),
        _TASKS: b"".join(lines),
        _TASK_INDEX: json.dumps(places).encode(),
        _DRAFT: format_manifest(plan.manifest),
    }
    for name, data in files.items():
        write_file(join(plan.staging, name), data)


def read_draft(staging: str) -> bytes:
    """The draft of the manifest, as it was staged."""
    return read_file(join(staging, _DRAFT))


def task_places(staging: str) -> list[tuple[int, int]]:
    """(first byte, bytes) of each task in the staged tasks."""
    return [(begin, size) for begin, size in json.loads(read_file(join(staging, _TASK_INDEX)))]


def read_task(staging: str, place: tuple[int, int]) -> ShardTask:
    """One staged task."""
    return ShardTask.from_json(read_file(join(staging, _TASKS), *place))
