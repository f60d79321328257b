"""One shard, from the byte ranges of its spans to a finished file. Plain NumPy; Beam only calls `write_shard`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from shards.errors import BuildError, EpisodeError
from shards.keyed_hash import keyed_hash
from shards.memory import Buffers
from shards.moments import Moments
from shards.record import INDEX, Field
from shards.text import printable
from shards.windows import Int64s, WindowSpec

from .files import AHEAD, file_state, join, open_file, write_file
from .measures import Measures
from .notes import finished_shard, write_note
from .npy import NpyError
from .source import ARCHIVE_SUFFIX, HEADER_BYTES, SourceHeader, open_source, read_source_header
from .tally import Tally
from .tasks import Recipe, ShardDone, ShardTask, SourceEpisode, Span


def write_shard(recipe: Recipe, task: ShardTask, tally: Tally | None = None) -> ShardDone:
    """Write one shard into the staging folder, unless it is there already, from a build that was interrupted.

    Trouble with the source is returned, not raised, so that all of it is told. Memory: the shard, and some spans of the
    source. Errors: BuildError if the shard cannot be written, since all others could not be, either.
    """
    tally = tally or Tally()
    records = sum(span.size for span in task.spans)
    with tally.timed("keep"):
        kept = finished_shard(recipe.staging, task.file, records, records * recipe.layout.record_bytes)
    if kept is not None:
        tally.add("keep", kept.windows, kept.windows, kept.bytes)
        return kept
    try:
        shard = make_shard(recipe, task, tally)
    except EpisodeError as error:
        return ShardDone(task.file, error=str(error))
    data = shard.records.data.cast("B")
    try:
        with tally.timed("write"), ThreadPoolExecutor(1) as pool:  # the disk is waited for while the processor hashes
            digest = pool.submit(lambda: sha256(data).hexdigest())
            write_file(join(recipe.staging, task.file), data)
            done = ShardDone(
                task.file, len(shard.records), shard.windows, len(data), digest.result(), "", shard.nonfinite
            )
            write_note(recipe.staging, done, shard.moments)
    except OSError as error:
        raise BuildError(f"{task.file} could not be written to {recipe.staging}: {error.strerror or error}") from error
    tally.add("write", done.windows, done.windows, done.bytes)
    return done


class Shard(NamedTuple):
    """A shard in memory: its (n, record_bytes) uint8 records, their windows, and what was measured of their steps.

    `moments` are of the steps that count for the statistics, each covered step once.
    """

    records: NDArray[np.uint8]
    windows: int
    moments: dict[str, Moments]
    nonfinite: tuple[tuple[int, str, int, int], ...]


def make_shard(recipe: Recipe, task: ShardTask, tally: Tally) -> Shard:
    """All records of the task's spans, in an order keyed by `task.key`.

    Errors: EpisodeError, which names the file, for an episode that cannot be read, is no longer as it was planned or
    holds what the dataset must not.
    """
    spec, layout = recipe.spec, recipe.layout
    counts = [span.size for span in task.spans]
    rows = _places(sum(counts), task.key)  # the row of each record, counted through the spans
    begins = dict(zip(task.spans, np.cumsum([0, *counts]).tolist(), strict=False))
    records = _memory(recipe.shard_bytes).array((len(rows), layout.record_bytes), np.dtype(np.uint8))
    integers = [feature.name for feature in recipe.features if not feature.shape and feature.dtype == "int64"]
    index = {name: np.empty(len(rows), np.int64) for name in (*INDEX, *integers) if name in layout}
    measures = Measures(recipe, task.measured)
    windows = 0
    with tally.timed("cut"):
        layout.write_constants(records)
    for number, spans in groupby(sorted(task.spans), key=itemgetter(0)):  # an episode is opened once
        episode = task.episodes[number]
        for cut, arrays in read_spans(recipe, episode, spans, tally):
            chosen = rows[begins[cut.span] : begins[cut.span] + cut.span.size]
            windows += int(cut.counts.sum())
            with tally.timed("cut"):
                for feature in recipe.features:
                    if feature.shape:
                        put_steps(records, layout.field(feature.name), chosen, arrays[feature.name], cut, spec)
                    elif feature.dtype == "int64":
                        index[feature.name][chosen] = arrays[feature.name]
                    else:
                        layout.field(feature.name).values(records)[chosen] = arrays[feature.name]
                index["episode"][chosen] = number
                index["start"][chosen] = episode.begin + cut.begin + cut.starts
                if "count" in index:
                    index["count"][chosen] = cut.counts
                if "valid" in index:
                    index["valid"][chosen] = cut.valid
            with tally.timed("measure"):
                measured = measures.add(number, episode, episode.begin + cut.begin, cut.fresh, arrays)
            tally.add("measure", cut.end - cut.begin, measured, measured * recipe.step_bytes)
            tally.add("cut", cut.end - cut.begin, int(cut.counts.sum()), len(chosen) * layout.record_bytes)
    with tally.timed("cut"):
        for name, numbers in index.items():
            layout.write_integers(records, name, numbers)
        layout.write_checksums(records)
    return Shard(records, windows, measures.moments(), measures.nonfinite())


@lru_cache(maxsize=1)
def _memory(shard_bytes: int) -> Buffers:
    return Buffers(shard_bytes, idle=1)  # a process writes one shard after another


def _places(count: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    """A permutation of range(count) that the key alone decides."""
    return np.argsort(keyed_hash(np.arange(count), *key), kind="stable")


class Cut(NamedTuple):
    """How the records of a span lie on the steps [begin, end) of its section.

    Each record starts `starts` after `begin`, holds `counts` windows and stores `valid` real steps. Of the steps,
    `fresh`, counted from `begin`, are in no window of an earlier span.
    """

    span: Span
    begin: int
    end: int
    starts: Int64s
    counts: Int64s
    valid: Int64s
    fresh: slice | Int64s


def cut_span(spec: WindowSpec, span: Span, steps: int) -> Cut:
    """Cut a span of a section of so many steps."""
    first = (span.first + np.arange(span.size)) * spec.per_record  # the first window of each record
    counts, valid = spec.record(first, steps)
    windows = np.arange(first[0], first[-1] + counts[-1])
    starts = spec.start(first, steps)
    begin, end = int(starts[0]), int(np.minimum(spec.start(windows[-1], steps) + spec.extent, steps))
    return Cut(span, begin, end, starts - begin, counts, valid, _fresh(spec, windows, steps, begin, end))


def _fresh(spec: WindowSpec, windows: Int64s, steps: int, begin: int, end: int) -> slice | Int64s:
    starts, fresh, valid = spec.start(windows, steps) - begin, spec.fresh(windows, steps), spec.valid(windows, steps)
    if spec.stride == 1 and spec.shift <= spec.length:  # each window's fresh steps follow on the one's before
        return slice(int(starts[0] + fresh[0]), end - begin)
    places = []
    for low, high in np.unique(np.stack([fresh, valid]), axis=1).T.tolist():  # two or three of them
        alike = starts[(fresh == low) & (valid == high)]
        places.append((alike[:, np.newaxis] + spec.stride * np.arange(low, high)).ravel())
    return np.sort(np.concatenate(places))


def put_steps(
    records: NDArray[np.uint8], field: Field, rows: Int64s, steps: np.ndarray, cut: Cut, spec: WindowSpec
) -> None:
    """Copy what each record of a cut stores of `steps`, an array (end - begin, ...), into a field of the given rows.

    What a record has room for beyond its real steps is filled with zeros.
    """
    stored, apart = spec.record_steps, spec.stride if spec.per_record == 1 else 1
    values = field.values(records).reshape(len(records), stored, -1)  # views all: (records, steps, values a step)
    flat = steps.reshape(len(steps), -1)
    lacking = int(cut.starts[-1]) + (stored - 1) * apart + 1 - len(flat)
    if lacking > 0:
        flat = np.concatenate([flat, np.zeros((lacking, flat.shape[1]), flat.dtype)])
    step, value = flat.strides
    hop = spec.shift * spec.per_record
    regular = len(rows) if cut.starts[-1] == (len(rows) - 1) * hop else len(rows) - 1  # an aligned window comes last
    shape, strides = (stored, flat.shape[1]), (apart * step, value)
    values[rows[:regular]] = as_strided(flat, (regular, *shape), (hop * step, *strides), writeable=False)
    if regular < len(rows):
        values[rows[-1]] = as_strided(flat[cut.starts[-1] :], shape, strides, writeable=False)


def read_spans(
    recipe: Recipe, episode: SourceEpisode, spans: Iterable[Span], tally: Tally
) -> Iterator[tuple[Cut, dict[str, np.ndarray]]]:
    """Each span's cut with its arrays: {feature: (end - begin, ...)}, and those of values of the whole episode.

    Errors: EpisodeError, which names the file, when it can no longer be read as it was planned; at the end, too, if it
    was written to in the meantime.
    """
    path = recipe.root + episode.path
    name = printable(path)
    planned = SourceHeader(recipe.forms[episode.form], episode.file_steps, episode.offsets)
    labels = {name: np.asarray(value) for name, value in zip(recipe.labels, episode.labels, strict=True)}
    try:
        with open_file(path, AHEAD if path.endswith(ARCHIVE_SUFFIX) else HEADER_BYTES) as opened:
            if _header(opened, path, recipe.picked) != planned:
                raise EpisodeError(f"{name} is not the file that was planned with: it changed while the build ran")
            with open_source(opened, planned) as source:
                values = _stored(recipe, name, 0, source.values() | labels)
                for span in spans:
                    cut = cut_span(recipe.spec, span, episode.steps)
                    first, steps = episode.begin + cut.begin, cut.end - cut.begin
                    with tally.timed("read"):
                        arrays = _stored(recipe, name, first, source.steps(first, steps)) | values
                    tally.add("read", 1, steps, steps * recipe.step_bytes)
                    yield cut, arrays
        if file_state(path) != episode.state:
            raise EpisodeError(f"{name} was written to, or went away, while the build ran")
    except NpyError as error:
        raise EpisodeError(f"{name} {error}") from None
    except EOFError:
        raise EpisodeError(
            f"{name} ended before its {episode.file_steps} steps: it changed while the build ran"
        ) from None
    except OSError as error:
        raise EpisodeError(f"{name} could not be read while the build ran: {error.strerror or error}") from error


def _header(opened: BinaryIO, path: str, picked: Collection[str] | None) -> SourceHeader | None:
    try:
        return read_source_header(opened, path, None, picked)
    except NpyError:
        return None


def _stored(recipe: Recipe, name: str, first: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays in the dtypes that they are stored as; those of the same dtype stay in the file's byte order."""
    stored = {}
    for feature in recipe.features:
        if feature.name not in arrays:
            continue
        array, dtype = arrays[feature.name], feature.numpy_dtype
        if array.dtype.newbyteorder("<") != dtype:
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite, and is told as such
                cast = array.astype(dtype)
            if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype) and (wrong := cast != array).any():
                step, value = np.argwhere(wrong)[0], array[wrong].flat[0]
                where = f"step {first + int(step[0])} of {feature.name}" if array.ndim else feature.name
                raise EpisodeError(f"{name} holds {value} in {where}, which {feature.dtype} cannot store")
            array = cast
        stored[feature.name] = array
    return stored
