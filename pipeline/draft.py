"""The planned dataset: everything about it but the shards' digests and statistics."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards.episode_table import EpisodeRow, format_episodes
from shards.features import Feature
from shards.files import FileState
from shards.manifest import Manifest, Shard, Source, Split, Splitting
from shards.manifest_file import NO_DIGEST, fingerprint_of
from shards.naming import STAGING, ShardName
from shards.record import RecordLayout, record_layout
from shards.windows import WindowSpec

from .episodes import Episodes
from .files import is_remote, join
from .options import BuildOptions
from .plan import SplitPlan
from .tally import Tally
from .tasks import Recipe, ShardTask, SourceEpisode, Span

_ROWS_AT_ONCE = 2**16  # as numbers of Python, which take 20 times the memory of NumPy's
_STAGED_VERSION = 1  # of what shards and their notes hold, as far as the plan does not tell


@dataclass(frozen=True)
class DatasetPlan:
    """What a build will write: the options, how windows are cut, the episodes, and each split's plan.

    `groups` are the names of the episodes' groups, if there are any; `tally` says what planning took.
    """

    options: BuildOptions
    window: WindowSpec
    episodes: Episodes
    groups: Sequence[str] | None
    splits: tuple[SplitPlan, ...]
    tally: Tally = field(default_factory=Tally, compare=False)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """The features of a window."""
        return features_of(self.episodes, self.window)

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout(self.features, self.window)

    @property
    def output(self) -> str:
        """The output folder, for processes in any working folder."""
        output = self.options.output
        return output if is_remote(output) else os.path.abspath(output)

    @property
    def staging(self) -> str:
        """The folder where builds of this very plan keep their files until the dataset is whole."""
        return join(self.output, STAGING, self.key)

    @cached_property
    def key(self) -> str:
        """What two plans have in common whose builds may go on with each other's shards, and no others."""
        parts = [str(_STAGED_VERSION), self.manifest.fingerprint, self.options.nonfinite, self.episodes.root]
        key = sha256("\0".join(parts).encode(errors="surrogateescape"))
        key.update(self.episodes.states[self.used].astype("<i8").tobytes())
        return key.hexdigest()[:16]

    @cached_property
    def asked(self) -> dict[str, Any]:
        """What the shards depend on besides the episodes, as JSON types: to tell what has changed from plan to plan."""
        options = self.options
        return {
            "input": self.episodes.root,
            "window_length": options.window_length,
            "shift": options.step_shift,
            "stride": options.stride,
            "tail": options.tail,
            "windows_per_record": self.window.per_record,
            "features": [feature.name for feature in self.features],
            "dtype": [feature.dtype for feature in self.features],
            "labels": sha256(repr([column.values for column in self.episodes.labels]).encode()).hexdigest()[:16],
            "name": options.dataset_name,
            "splits": options.splits if options.fractions is None else dict(options.fractions),
            "split_by": options.split_by,
            "splits_from": options.splits_from,
            "group_by": options.group_by,
            "purge": options.purge,
            "seed": options.seed,
            "num_shards": {split.name: split.shards for split in self.splits},
            "on_error": options.on_error,
            "nonfinite": options.nonfinite,
        }

    @property
    def recipe(self) -> Recipe:
        """What the workers need besides their tasks."""
        return Recipe(
            root=self.episodes.root,
            staging=self.staging,
            spec=self.window,
            features=tuple(replace(feature, classes=()) for feature in self.features),  # a job's graph stays small
            labels=tuple(column.feature.name for column in self.episodes.labels),
            picked=self.options.features,
            forms=self.episodes.forms,
            fail_nonfinite=self.options.nonfinite == "fail",
            shard_bytes=max(shard.bytes for split in self.manifest.splits for shard in split.shards),
        )

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """The rows of the episodes that have windows, ascending."""
        return np.unique(np.concatenate([split.sections.episodes for split in self.splits]))

    @cached_property
    def source(self) -> Source:
        """What the dataset is made from."""
        steps = int(self.episodes.steps[self.used].sum())
        covered = sum(int(self.window.covered(split.sections.steps).sum()) for split in self.splits)
        return Source(
            episodes=len(self.used),
            steps=steps,
            bytes=steps * self.episodes.step_bytes,
            short=len(self.episodes.paths) - len(self.used) - len(self.episodes.problems),
            skipped=len(self.episodes.problems),
            uncovered=steps - covered,
        )

    @cached_property
    def episodes_csv(self) -> bytes:
        """The bytes of episodes.csv: a row for each section of an episode, and for each episode left out."""
        episodes = self.episodes
        columns = [(split.sections, self.window.count(split.sections.steps)) for split in self.splits]
        sections = [
            np.stack([part.episodes, np.full(len(windows), number), part.begin, part.begin + part.steps, windows])
            for number, (part, windows) in enumerate(columns)
        ]
        left_out = np.delete(np.arange(len(episodes.paths)), self.used)
        none = np.zeros_like(left_out)
        table = np.concatenate([*sections, np.stack([left_out, none - 1, none, none, none])], axis=1)
        names = [*(split.name for split in self.splits), ""]  # the last one is that of number -1
        order = np.lexsort((table[2], table[0]))
        rows = (
            row
            for first in range(0, len(order), _ROWS_AT_ONCE)
            for row in table[:, order[first : first + _ROWS_AT_ONCE]].T.tolist()
        )
        return format_episodes(
            EpisodeRow(
                episode=i,
                path=episodes.paths[i],
                steps=int(episodes.steps[i]),
                split=names[split],
                begin=begin,
                end=end,
                windows=windows,
                group="" if self.groups is None else self.groups[i],
                left_out="" if windows else episodes.problems.get(i, "shorter than one window"),
            )
            for i, split, begin, end, windows in rows
        )

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, with zeros for the digests of shards that are still to be written, and no statistics yet."""
        options, record_bytes = self.options, self.layout.record_bytes
        splits = []
        for split in self.splits:
            names = (ShardName(options.dataset_name, split.name, i, split.shards) for i in range(split.shards))
            records, windows = split.shard_sums(split.count), split.shard_sums(split.windows)
            shards = tuple(
                Shard(str(name), in_records, in_windows, in_records * record_bytes, NO_DIGEST)
                for name, in_records, in_windows in zip(names, records.tolist(), windows.tolist(), strict=True)
            )
            fraction = None if options.fractions is None else options.fractions[split.name]
            splits.append(Split(split.name, fraction, len(split.sections.episodes), shards))
        by = "given" if options.fractions is None else options.split_by
        draft = Manifest(
            name=options.dataset_name,
            window=self.window,
            seed=options.seed,
            features=self.features,
            source=self.source,
            splitting=Splitting(by, options.group_by, options.purge),
            splits=tuple(splits),
            statistics=(),
            nonfinite=(),
            episodes_sha256=sha256(self.episodes_csv).hexdigest(),
            fingerprint=NO_DIGEST,
        )
        return replace(draft, fingerprint=fingerprint_of(draft, (column.values for column in self.episodes.labels)))

    def tasks(self) -> Iterator[ShardTask]:
        """The task of each shard, split by split."""
        episodes, seed, training = self.episodes, self.options.seed, self.manifest.training_split
        members = np.array([len(form) for form in episodes.forms])
        for number, (split, planned) in enumerate(zip(self.splits, self.manifest.splits, strict=True)):
            columns = np.stack([split.span_episodes, split.first, split.count], axis=1)
            sections = split.sections
            for index, shard in enumerate(planned.shards):
                rows = columns[split.shard_spans[index] : split.shard_spans[index + 1]]
                named = np.unique(rows[:, 0])
                place = np.searchsorted(sections.episodes, named)
                numbers = zip(
                    named.tolist(),
                    episodes.states[named].tolist(),
                    episodes.steps[named].tolist(),
                    episodes.form[named].tolist(),
                    episodes.offsets[named].tolist(),
                    members[episodes.form[named]].tolist(),
                    sections.begin[place].tolist(),
                    sections.steps[place].tolist(),
                    strict=True,
                )
                sources = {
                    i: SourceEpisode(
                        episodes.paths[i],
                        FileState(*state),
                        file_steps,
                        form,
                        tuple(offsets[:arrays]),
                        begin,
                        steps,
                        tuple(column.values[i] for column in episodes.labels),
                    )
                    for i, state, file_steps, form, offsets, arrays, begin, steps in numbers
                }
                spans = tuple(Span(*row) for row in rows.tolist())
                yield ShardTask(shard.file, (seed, 2, number, index), split.name == training, spans, sources)


def features_of(episodes: Episodes, window: WindowSpec) -> tuple[Feature, ...]:
    """The features that windows of these episodes have."""
    arrays = (
        Feature(array.name, array.dtype, () if array.shape is None else (window.length, *array.shape))
        for array in episodes.arrays
    )
    return (*arrays, *(column.feature for column in episodes.labels))
