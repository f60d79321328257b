import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import BuildOptions, plan, source
from pipeline.episodes import survey
from pipeline.inputs import find_episodes
from pipeline.notes import read_note
from pipeline.tally import Tally
from pipeline.tasks import Recipe, ShardTask, SourceEpisode, Span
from pipeline.write import make_shard, write_shard
from shards import BuildError, EpisodeError, Feature
from shards.features import DTYPES
from shards.files import FileState
from shards.moments import merge
from shards.windows import Tail, WindowSpec

LENGTH, SHIFT = 5, 2
KEY = (7, 2, 0, 0)

Sources = dict[int, SourceEpisode]
Prepare = Callable[[list[np.ndarray]], tuple[Recipe, Sources]]
Found = list[tuple[int, int, bytes]]  # (episode, first step, the bytes of the window)


def random_values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values of any bits at all: NaNs of every payload, signalling ones included."""
    raw = np.random.default_rng(seed).integers(0, 256, prod(shape) * DTYPES[dtype].itemsize, np.uint8)
    if dtype == "bool":
        return (raw & 1).view(bool).reshape(shape)
    if DTYPES[dtype].kind in "fcV":
        raw[: 2 * DTYPES[dtype].itemsize] = 0xFF  # NaNs whatever the seed
        raw[3 :: 16 * DTYPES[dtype].itemsize] |= 0x80
    return raw.view(DTYPES[dtype]).reshape(shape)


def stored(array: np.ndarray, order: str, big_endian: bool) -> np.ndarray:
    """The same bits of each value, as they may lie in a file."""
    if big_endian:
        array = array.byteswap().view(array.dtype.newbyteorder(">"))
    return np.asfortranarray(array) if order == "F" else np.ascontiguousarray(array)


def recipe_of(
    folder: Path, episodes: list[np.ndarray], length: int = LENGTH, shift: int = SHIFT
) -> tuple[Recipe, Sources]:
    """Save episodes; what it takes to write shards of them."""
    (folder / "in").mkdir()
    for i, episode in enumerate(episodes):
        np.save(folder / f"in/{i:03d}.npy", episode)
    table = survey(find_episodes([str(folder / "in")]))
    columns = (table.states, table.steps, table.form, table.offsets)
    rows = zip(table.paths, *(column.tolist() for column in columns), strict=True)
    sources = {
        i: SourceEpisode(path, FileState(*state), steps, form, tuple(offsets), 0, steps, ())
        for i, (path, state, steps, form, offsets) in enumerate(rows)
    }
    (window,) = table.arrays
    assert window.shape is not None
    recipe = Recipe(
        root=table.root,
        staging=str(folder),
        spec=WindowSpec(length, shift),
        features=(Feature(window.name, window.dtype, (length, *window.shape)),),
        labels=(),
        picked=None,
        forms=table.forms,
        fail_nonfinite=False,
        shard_bytes=2**22,
    )
    return recipe, sources


def make_records(recipe: Recipe, task: ShardTask) -> np.ndarray:
    return make_shard(recipe, task, Tally()).records


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    return lambda episodes: recipe_of(tmp_path, episodes)


def task_of(spans: list[Span], sources: Sources, key: tuple[int, ...] = KEY) -> ShardTask:
    named = {span.episode: sources[span.episode] for span in spans}
    return ShardTask("d-train.tfrecord-00000-of-00001", key, True, tuple(spans), named)


def read_back(recipe: Recipe, records: np.ndarray) -> Found:
    """What each record holds, in order."""
    assert recipe.layout.damaged(records).tolist() == []
    episodes, starts, windows = (recipe.layout.field(name).values(records) for name in ("episode", "start", "window"))
    return [
        (episode, start, window.tobytes())
        for episode, start, window in zip(episodes.tolist(), starts.tolist(), windows, strict=True)
    ]


def slices(spans: list[Span], arrays: list[np.ndarray], length: int = LENGTH, shift: int = SHIFT) -> Found:
    """What `read_back` must give, sorted."""
    return sorted(
        (episode, i * shift, arrays[episode][i * shift : i * shift + length].tobytes())
        for episode, first, size in spans
        for i in range(first, first + size)
    )


LAYOUTS = [
    (dtype, order, big_endian)
    for dtype in DTYPES
    for order in "CF"
    for big_endian in (False, True)
    if not big_endian or (DTYPES[dtype].itemsize > 1 and dtype != "bfloat16")
]


@pytest.mark.parametrize("step_shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "order", "big_endian"),
    LAYOUTS,
    ids=[f"{dtype}-{order}-{'big' if big_endian else 'little'}" for dtype, order, big_endian in LAYOUTS],
)
def test_windows_are_the_slices_of_the_episodes_bit_for_bit(
    prepare: Prepare, dtype: str, order: str, big_endian: bool, step_shape: tuple[int, ...]
) -> None:
    arrays = [random_values(dtype, (steps, *step_shape), seed=steps) for steps in (11, 6, 24)]
    recipe, sources = prepare([stored(array, order, big_endian) for array in arrays])
    spans = [Span(2, 4, 6), Span(0, 0, 4), Span(1, 0, 1), Span(2, 0, 3)]

    records = make_records(recipe, task_of(spans, sources))

    assert recipe.features == (Feature("window", dtype, (LENGTH, *step_shape)),)
    assert sorted(read_back(recipe, records)) == slices(spans, arrays)


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("step_shape", [(3,), (2, 3)], ids=str)
def test_a_large_fortran_range_is_read_column_by_column(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, step_shape: tuple[int, ...], big_endian: bool
) -> None:
    arrays = [random_values("float64", (40, *step_shape), seed) for seed in range(2)]
    recipe, sources = prepare([stored(array, "F", big_endian) for array in arrays])
    task = task_of([Span(0, 3, 9), Span(1, 0, 18), Span(0, 15, 1)], sources)
    in_one_read = make_records(recipe, task)
    monkeypatch.setattr(source, "_ONE_READ_BYTES", 0)

    column_by_column = make_records(recipe, task)

    assert column_by_column.tobytes() == in_one_read.tobytes()
    assert sorted(read_back(recipe, column_by_column)) == slices(list(task.spans), arrays)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    length=st.integers(1, 9),
    shift=st.integers(1, 12),
    order=st.sampled_from("CF"),
    whole=st.booleans(),
    data=st.data(),
)
def test_any_spans_give_their_windows(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    shift: int,
    order: str,
    whole: bool,
    data: st.DataObject,
) -> None:
    arrays = [random_values("int16", (steps, 2), seed) for seed, steps in enumerate(lengths)]
    folder = tmp_path_factory.mktemp("spans")
    recipe, sources = recipe_of(folder, [stored(array, order, False) for array in arrays], length, shift)
    every = [(episode, i) for episode, array in enumerate(arrays) for i in range((len(array) - length) // shift + 1)]
    chosen = every if whole else data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    spans = [Span(episode, i, 1) for episode, i in data.draw(st.permutations(chosen))]

    records = make_records(recipe, task_of(spans, sources))

    assert sorted(read_back(recipe, records)) == slices(spans, arrays, length, shift)


def test_one_episode_may_hold_many_spans_and_steps_between_windows(tmp_path: Path) -> None:
    array = random_values("uint8", (100, 2))
    recipe, sources = recipe_of(tmp_path, [array], length=3, shift=20)
    spans = [Span(0, 3, 2), Span(0, 0, 1), Span(0, 2, 1), Span(0, 1, 1)]

    records = make_records(recipe, task_of(spans, sources))

    assert sorted(read_back(recipe, records)) == slices(spans, [array], 3, 20)


def test_the_order_within_a_shard_is_pinned_and_keyed(prepare: Prepare) -> None:
    recipe, sources = prepare([np.arange(40, dtype="u1"), np.arange(40, dtype="u1")])
    spans = [Span(1, 2, 5), Span(0, 0, 4)]

    records, again, other = (
        make_records(recipe, task_of(spans, sources, key)) for key in ((7, 2, 0, 0), (7, 2, 0, 0), (7, 2, 0, 1))
    )

    places = [(episode, start) for episode, start, _ in read_back(recipe, records)]
    assert places == [(0, 2), (1, 10), (0, 0), (1, 8), (0, 6), (1, 12), (0, 4), (1, 6), (1, 4)]
    assert again.tobytes() == records.tobytes()
    assert sorted(read_back(recipe, other)) == sorted(read_back(recipe, records))
    assert other.tobytes() != records.tobytes()


def test_a_shard_is_written_whole_and_described(prepare: Prepare, tmp_path: Path) -> None:
    array = random_values("float32", (20, 3))
    recipe, sources = prepare([array])
    task = task_of([Span(0, 0, 8)], sources)

    done = write_shard(recipe, task)

    data = (tmp_path / task.file).read_bytes()
    (moments,) = make_shard(recipe, task, Tally()).moments.values()
    nbytes = 8 * recipe.layout.record_bytes
    assert done[:6] == (task.file, 8, 8, nbytes, sha256(data).hexdigest(), "")
    note = read_note(str(tmp_path), task.file)
    assert note.done == done
    assert [(name, part.to_bytes()) for name, part in note.moments.items()] == [("window", moments.to_bytes())]
    assert moments.count.tolist() == [19 - (~np.isfinite(array[:19])).sum(axis=0)[i] for i in range(3)]
    assert data == make_records(recipe, task).tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [task.file, task.file + ".note.json", "in"]


def test_what_an_attempt_that_was_cut_short_left_is_written_over(prepare: Prepare, tmp_path: Path) -> None:
    recipe, sources = prepare([random_values("float32", (20, 3))])
    task = task_of([Span(0, 0, 8)], sources)
    (tmp_path / task.file).write_text("of an attempt that was cut short")

    write_shard(recipe, task)

    assert (tmp_path / task.file).read_bytes() == make_records(recipe, task).tobytes()


def test_a_finished_shard_is_kept(prepare: Prepare, tmp_path: Path) -> None:
    recipe, sources = prepare([np.array([[1], [np.nan], *[[3]] * 18], "f4")])
    task = task_of([Span(0, 0, 8)], sources)
    first = write_shard(recipe, task)
    (tmp_path / "in/000.npy").unlink()  # it need not be read again
    tally = Tally()

    assert write_shard(recipe, task, tally) == first
    assert first.nonfinite == ((0, "window", 1, 1),)
    assert tally.counts["keep"].given == 8
    assert tally.counts["keep"].bytes == 8 * recipe.layout.record_bytes
    assert set(tally.counts) == {"keep"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda shard, note: shard.unlink(),
        lambda shard, note: note.unlink(),
        lambda shard, note: os.truncate(shard, 100),
        lambda shard, note: shard.write_bytes(shard.read_bytes()[:-1] + b"\0"),
        lambda shard, note: shard.write_bytes(shard.read_bytes() + b"\0"),
        lambda shard, note: os.truncate(note, 30),
        lambda shard, note: note.write_bytes(b""),
        lambda shard, note: note.write_text('{"done": [], "moments": {}}'),
        lambda shard, note: note.write_text("[]"),
        lambda shard, note: note.write_text(
            note.read_text().replace('"moments": {"window": "', '"moments": {"window": "!')
        ),
    ],
    ids=["gone", "no note", "cut", "flipped", "longer", "note cut", "note empty", "note of nothing", "list", "moments"],
)
def test_a_shard_that_is_not_as_noted_is_written_again(
    prepare: Prepare, tmp_path: Path, spoil: Callable[[Path, Path], object]
) -> None:
    recipe, sources = prepare([random_values("float32", (20, 3))])
    task = task_of([Span(0, 0, 8)], sources)
    first = write_shard(recipe, task)
    data = (tmp_path / task.file).read_bytes()

    spoil(tmp_path / task.file, tmp_path / (task.file + ".note.json"))

    tally = Tally()
    assert write_shard(recipe, task, tally) == first
    assert tally.counts["write"].bytes == len(data)
    assert (tmp_path / task.file).read_bytes() == data
    assert read_note(str(tmp_path), task.file).done == first


@pytest.mark.parametrize("when", ["before", "between"])
def test_an_episode_that_was_written_to_since_the_plan_is_named(
    prepare: Prepare, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, sources = prepare([np.zeros((40, 3), "f4")])
    file, real = tmp_path / "in/000.npy", source.Source.steps

    def change() -> None:
        with file.open("r+b") as opened:  # the same header and size, other values
            opened.seek(-1, os.SEEK_END)
            opened.write(b"\1")
        os.utime(file, ns=(0, sources[0].state.modified + 1))

    def steps(self: source.Source, first: int, count: int) -> dict[str, np.ndarray]:
        found = real(self, first, count)
        if when == "between":
            change()
        return found

    monkeypatch.setattr(source.Source, "steps", steps)
    if when == "before":
        change()

    done = write_shard(recipe, task_of([Span(0, 0, 4), Span(0, 6, 4)], sources))

    assert done.error == f"{file} was written to, or went away, while the build ran"
    assert not list(tmp_path.glob("*.tfrecord*"))


def test_a_pipe_in_place_of_an_episode_is_not_waited_for(prepare: Prepare, tmp_path: Path) -> None:
    recipe, sources = prepare([np.zeros((40, 3), "f4")])
    (tmp_path / "in/000.npy").unlink()
    os.mkfifo(tmp_path / "in/000.npy")

    done = write_shard(recipe, task_of([Span(0, 0, 4)], sources))

    why = "could not be read while the build ran: it is no regular file (a pipe or a device)"
    assert done.error == f"{tmp_path}/in/000.npy {why}"


def test_a_disk_that_fails_in_the_middle_of_an_episode_is_named(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, sources = prepare([np.zeros((40, 3), "f4")])
    reads, real = [0], source._read

    def read(opened: Any, begin: int, count: int, dtype: Any) -> np.ndarray:
        reads[0] += 1
        if reads[0] == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(opened, begin, count, dtype)

    monkeypatch.setattr(source, "_read", read)

    done = write_shard(recipe, task_of([Span(0, 0, 4), Span(0, 6, 4)], sources))

    assert done.error == f"{tmp_path}/in/000.npy could not be read while the build ran: Input/output error"


def test_a_shard_that_cannot_be_written_leaves_nothing(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, sources = prepare([np.zeros((40, 3), "f4")])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(
        BuildError, match=r"^d-train\.tfrecord-00000-of-00001 could not be written .*: No space left on"
    ):
        write_shard(recipe, task_of([Span(0, 0, 4)], sources))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("left", [0, 100, 128, 150, 400])
def test_a_file_that_shrank_since_the_plan_is_named(prepare: Prepare, tmp_path: Path, order: str, left: int) -> None:
    recipe, sources = prepare(
        [random_values("float32", (40, 3)), stored(random_values("float32", (40, 3)), order, False)]
    )
    os.truncate(tmp_path / "in/001.npy", left)
    task = task_of([Span(0, 0, 8), Span(1, 10, 8)], sources)

    with pytest.raises(EpisodeError, match=r"/in/001\.npy .*changed while the build ran"):
        make_records(recipe, task)
    done = write_shard(recipe, task)
    assert (done.file, done.records, done.bytes, done.sha256) == (task.file, 0, 0, "")
    assert f"{tmp_path}/in/001.npy" in done.error
    assert not (tmp_path / task.file).exists()


@pytest.mark.parametrize(
    "other",
    [np.zeros((40, 3), "f8"), np.zeros((41, 3), "f4"), np.zeros((40, 3), ">f4"), np.zeros((40, 3), "f4", order="F")],
    ids=["dtype", "steps", "byte order", "memory order"],
)
def test_a_file_that_was_replaced_since_the_plan_is_named(prepare: Prepare, tmp_path: Path, other: np.ndarray) -> None:
    recipe, sources = prepare([random_values("float32", (40, 3))])
    np.save(tmp_path / "in/000.npy", other)

    done = write_shard(recipe, task_of([Span(0, 0, 8)], sources))

    assert f"{tmp_path}/in/000.npy" in done.error
    assert "changed" in done.error


def test_a_file_that_is_gone_since_the_plan_is_named(prepare: Prepare, tmp_path: Path) -> None:
    recipe, sources = prepare([random_values("float32", (40, 3))])
    (tmp_path / "in/000.npy").unlink()

    with pytest.raises(EpisodeError, match=r"/in/000\.npy could not be read while the build ran: No such file"):
        make_records(recipe, task_of([Span(0, 0, 8)], sources))


def test_a_shard_that_cannot_be_written_is_named(prepare: Prepare, tmp_path: Path) -> None:
    recipe, sources = prepare([random_values("float32", (40, 3))])
    task = task_of([Span(0, 0, 8)], sources)
    (tmp_path / task.file).mkdir()

    with pytest.raises(
        BuildError, match=rf"^{re.escape(task.file)} could not be written to {tmp_path}: Is a directory$"
    ):
        write_shard(recipe, task)


paths = st.text(st.characters(exclude_characters="\0"), max_size=9)


@given(
    key=st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
    measured=st.booleans(),
    spans=st.lists(st.tuples(st.integers(0, 2**35 - 1), st.integers(0, 2**42), st.integers(1, 9)), max_size=4),
    path=st.one_of(paths, st.binary(max_size=5).map(os.fsdecode)),
    numbers=st.tuples(
        st.integers(0, 2**42),
        st.integers(0, 2**20),
        st.lists(st.integers(0, 2**62), max_size=3).map(tuple),
        st.integers(0, 2**42),
        st.integers(0, 2**42),
    ),
    labels=st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), max_size=3).map(tuple),
)
def test_a_task_comes_back_from_its_line(
    key: tuple[int, ...],
    measured: bool,
    spans: list[tuple[int, int, int]],
    path: str,
    numbers: tuple[int, int, tuple[int, ...], int, int],
    labels: tuple[int | float, ...],
) -> None:
    episodes = {span[0]: SourceEpisode(path, FileState(8, 9), *numbers, labels) for span in spans}
    task = ShardTask("d-train.tfrecord-00000-of-00001", key, measured, tuple(Span(*span) for span in spans), episodes)

    line = task.to_json()

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = ShardTask.from_json(line)
    assert back == task
    assert repr(back) == repr(task)  # 1 stays 1, and 1.0 stays 1.0


def test_a_label_that_is_not_a_number_comes_back_from_its_line() -> None:
    labels = (float("nan"), float("inf"), float("-inf"), -0.0)
    task = ShardTask(
        "f", (1,), True, (Span(0, 0, 1),), {0: SourceEpisode("a.npy", FileState(36, 7), 9, 0, (128,), 0, 9, labels)}
    )

    assert repr(ShardTask.from_json(task.to_json())) == repr(task)


@settings(max_examples=120, deadline=None)
@given(
    total=st.integers(1, 60),
    section=st.tuples(st.integers(0, 30), st.integers(1, 60)),
    length=st.integers(1, 6),
    shift=st.integers(1, 9),
    stride=st.integers(1, 4),
    tail=st.sampled_from(["drop", "pad", "align"]),
    per_record=st.integers(1, 5),
    data=st.data(),
)
def test_a_section_is_cut_and_each_of_its_covered_steps_measured_once_in_whatever_shard(
    tmp_path_factory: pytest.TempPathFactory,
    total: int,
    section: tuple[int, int],
    length: int,
    shift: int,
    stride: int,
    tail: Tail,
    per_record: int,
    data: st.DataObject,
) -> None:
    spec = WindowSpec(length, shift, stride, tail, per_record)
    begin = min(section[0], total - 1)
    steps = min(section[1], total - begin)
    windows = int(spec.count(steps))
    if not windows:
        return
    array = np.stack([np.arange(total)] * 2, axis=1).astype("f4")
    bad = data.draw(st.sets(st.integers(0, total - 1)))
    array[sorted(bad), 1] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    recipe, sources = recipe_of(tmp_path_factory.mktemp("section"), [array])
    recipe = replace(recipe, spec=spec, features=(Feature("window", "float32", (length, 2)),))
    episode = sources[0]._replace(begin=begin, steps=steps)
    records = -(-windows // per_record)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, records - 1)))), records] if records > 1 else [0, 1]
    spans = [Span(0, first, end - first) for first, end in pairwise(cuts)]
    in_first = data.draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))

    shards = []
    for number, chosen in enumerate([in_first, [not one for one in in_first]]):
        part = [span for span, one in zip(spans, chosen, strict=True) if one]
        if part:
            key = (7, 2, 0, number)
            shard = make_shard(recipe, ShardTask("f", key, True, tuple(part), {0: episode}), Tally())
            shards.append(shard._replace(records=shard.records.copy()))

    held = [
        [step for k in range(length) if (step := int(spec.start(i, steps)) + k * stride) < steps]
        for i in range(windows)
    ]
    found = {}
    for shard in shards:
        assert recipe.layout.damaged(shard.records).tolist() == []
        columns = {field.feature.name: field.values(shard.records) for field in recipe.layout.fields}
        counts = columns.get("count", np.ones(len(shard.records), np.int64))
        for row, (start, count) in enumerate(zip(columns["start"].tolist(), counts.tolist(), strict=True)):
            first = next(i for i, window in enumerate(held) if window[0] == start - begin)
            stored = columns["window"][row]
            for i in range(count):
                offset = held[first + i][0] - held[first][0]
                apart = stride if per_record > 1 else 1
                window = stored[offset : offset + (length - 1) * apart + 1 : apart]
                real = len(held[first + i])
                expected = array[begin + np.array(held[first + i])]
                assert np.array_equal(window[:real], expected, equal_nan=True)
                assert not window[real:].any() or per_record > 1
                assert first + i not in found
                found[first + i] = real
            last = held[first + count - 1]
            if "valid" in columns:
                real = len(last) if per_record == 1 else min(last[0] + spec.extent, steps) - held[first][0]
                assert columns["valid"][row] == real
                assert not stored[real:].any()
    assert sorted(found) == list(range(windows))

    covered = sorted({step + begin for window in held for step in window})
    moments = merge([shard.moments["window"] for shard in shards])
    lost = [step for step in covered if step in bad]
    assert moments.count.tolist() == [len(covered), len(covered) - len(lost)]
    assert (moments.nan + moments.infinite).tolist() == [0, len(lost)]
    assert moments.mean[0] == pytest.approx(np.mean(covered))
    assert (moments.low[0], moments.high[0]) == (covered[0], covered[-1])
    told = [place for shard in shards for place in shard.nonfinite]
    assert sum(values for _, _, values, _ in told) == len(lost)
    assert {(number, feature) for number, feature, _, _ in told} == ({(0, "window")} if lost else set())
    assert min((step for *_, step in told), default=None) == min(lost, default=None)


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize(
    ("source_dtype", "dtype", "values", "expected"),
    [
        ("float64", "float32", [0.1, -1e300, 1e-300, np.nan], [np.float32(0.1), -np.inf, 0, np.nan]),
        ("float64", "float16", [65504, 65520, -1e9, 0.1], [65504, np.inf, -np.inf, np.float16(0.1)]),
        ("float32", "bfloat16", [1.0, 3.4e38, 2.0, np.nan], [1.0, np.inf, 2.0, np.nan]),
        ("int64", "int16", [-(2**15), 2**15 - 1, 0, 7], [-(2**15), 2**15 - 1, 0, 7]),
        ("int32", "float16", [70_000, 2048, -70_000, 1], [np.inf, 2048, -np.inf, 1]),
        ("uint64", "int64", [0, 2**63 - 1, 3, 4], [0, 2**63 - 1, 3, 4]),
        ("bool", "uint8", [True, False, True, True], [1, 0, 1, 1]),
        ("bool", "float32", [True, False, True, True], [1, 0, 1, 1]),
        ("float32", "complex64", [1.5, -2, 0, 1], [1.5, -2, 0, 1]),
        ("complex128", "complex64", [1 + 2j, 1e300, 0, 1], [1 + 2j, complex(np.inf, 0), 0, 1]),
        ("float16", "float64", [0.5, 65504, 0, -1], [0.5, 65504, 0, -1]),
    ],
)
def test_steps_are_stored_as_another_dtype(
    tmp_path: Path, source_dtype: str, dtype: str, values: list[Any], expected: list[Any], big_endian: bool
) -> None:
    array = stored(np.array(values, DTYPES[source_dtype]), "C", big_endian)
    recipe, sources = recipe_of(tmp_path, [array], length=4, shift=4)
    recipe = replace(recipe, features=(Feature("window", dtype, (4,)),))

    shard = make_shard(recipe, task_of([Span(0, 0, 1)], sources), Tally())

    window = recipe.layout.field("window").values(shard.records)[0]
    assert window.dtype == DTYPES[dtype]
    wanted = np.array(expected, np.complex128 if "complex" in dtype else np.float64 if "float" in dtype else dtype)
    assert np.array_equal(window.astype(wanted.dtype), wanted, equal_nan="int" not in dtype)
    lost = np.flatnonzero(~np.isfinite(wanted))
    assert shard.nonfinite == (((0, "window", len(lost), int(lost[0])),) if len(lost) else ())


@pytest.mark.parametrize(
    ("source_dtype", "dtype", "value"),
    [
        ("int64", "int16", 2**15),
        ("int64", "int16", -(2**15) - 1),
        ("int64", "uint8", 256),
        ("int8", "uint64", -1),
        ("uint64", "int64", 2**63),
        ("uint16", "int16", 2**16 - 1),
    ],
)
def test_an_integer_that_does_not_fit_is_named_with_its_step(
    tmp_path: Path, source_dtype: str, dtype: str, value: int
) -> None:
    array = np.zeros((30, 2), source_dtype)
    array[17, 1] = array[18, 0] = value
    recipe, sources = recipe_of(tmp_path, [np.zeros((30, 2), source_dtype), array], length=4, shift=4)
    recipe = replace(recipe, features=(Feature("window", dtype, (4, 2)),))
    sources[1] = sources[1]._replace(begin=3, steps=27)

    done = write_shard(recipe, task_of([Span(0, 0, 7), Span(1, 0, 2), Span(1, 2, 4)], sources))

    assert done.error == f"{tmp_path}/in/001.npy holds {value} in step 17 of window, which {dtype} cannot store"


@pytest.mark.parametrize(
    ("source_dtype", "dtype"), [("float64", "float32"), ("float64", "bfloat16"), ("float32", "float64")]
)
def test_signalling_nans_are_cast_without_a_warning(tmp_path: Path, source_dtype: str, dtype: str) -> None:
    bits = {"float64": np.uint64(0x7FF0_0000_0000_0001), "float32": np.uint32(0x7F80_0001)}[source_dtype]
    recipe, sources = recipe_of(tmp_path, [np.full(40, bits).view(source_dtype)], length=40, shift=1)
    recipe = replace(recipe, features=(Feature("window", dtype, (40,)),))

    shard = make_shard(recipe, task_of([Span(0, 0, 1)], sources), Tally())

    assert shard.nonfinite == ((0, "window", 40, 0),)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "complex64"])
def test_what_is_not_finite_fails_a_shard_that_must_be(tmp_path: Path, dtype: str) -> None:
    array = np.zeros((40, 3), DTYPES[dtype])
    array[[11, 30], 2] = np.inf
    recipe, sources = recipe_of(tmp_path, [array])
    task = task_of([Span(0, 9, 5), Span(0, 0, 9)], sources)

    done = write_shard(replace(recipe, fail_nonfinite=True), task)

    told = f"holds NaN or infinite values in window, stored as {dtype}, from step 11 on"
    assert done.error == f"{tmp_path}/in/000.npy {told}"
    assert not (tmp_path / task.file).exists()
    assert write_shard(recipe, task).nonfinite == ((0, "window", 2, 11),)


def test_steps_that_are_not_measured_have_no_moments_but_are_looked_at(tmp_path: Path) -> None:
    array = np.zeros((40, 3), "f4")
    array[11, 2] = np.nan
    recipe, sources = recipe_of(tmp_path, [array])
    task = task_of([Span(0, 0, 18)], sources)._replace(measured=False)

    shard = make_shard(recipe, task, Tally())

    assert shard.moments == {}
    assert shard.nonfinite == ((0, "window", 1, 11),)
    assert shard.records.tobytes() == make_records(recipe, task._replace(measured=True)).tobytes()


def test_labels_and_values_of_the_episode_are_in_every_record(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(2):
        np.savez(
            tmp_path / f"in/{i}.npz", x=np.arange(12, dtype="i2") + i, gain=np.array(i + 0.5, ">f8"), run=np.int64(-i)
        )
    table = survey(find_episodes([str(tmp_path / "in")]))
    recipe = Recipe(
        root=table.root,
        staging=str(tmp_path),
        spec=WindowSpec(4, 4),
        features=(
            Feature("gain", "float64", ()),
            Feature("run", "int64", ()),
            Feature("x", "int16", (4,)),
            Feature("task", "int64", (), classes=("a", "b")),
            Feature("score", "float32", ()),
        ),
        labels=("task", "score"),
        picked=None,
        forms=table.forms,
        fail_nonfinite=False,
        shard_bytes=2**20,
    )
    sources = {
        i: SourceEpisode(
            f"{i}.npz", FileState(*table.states[i]), 12, 0, tuple(table.offsets[i].tolist()), 0, 12, (1 - i, 0.25 * i)
        )
        for i in range(2)
    }

    records = make_records(recipe, task_of([Span(1, 1, 2), Span(0, 0, 1)], sources))

    columns = {field.feature.name: field.values(records) for field in recipe.layout.fields}
    assert columns["gain"].dtype == "<f8"
    rows = zip(*(columns[name].tolist() for name in ("episode", "start", "gain", "run", "task", "score")), strict=True)
    assert sorted(rows) == [(0, 0, 0.5, 0, 1, 0.0), (1, 4, 1.5, -1, 0, 0.25), (1, 8, 1.5, -1, 0, 0.25)]
    first_steps = dict(
        zip(
            zip(columns["episode"].tolist(), columns["start"].tolist(), strict=True), columns["x"].tolist(), strict=True
        )
    )
    assert first_steps == {(0, 0): [0, 1, 2, 3], (1, 4): [5, 6, 7, 8], (1, 8): [9, 10, 11, 12]}


def test_a_label_that_its_dtype_cannot_store_is_named(tmp_path: Path) -> None:
    recipe, sources = recipe_of(tmp_path, [np.zeros(20, "f4")])
    recipe = replace(recipe, features=(*recipe.features, Feature("reward", "int8", ())), labels=("reward",))
    sources[0] = sources[0]._replace(labels=(300,))

    done = write_shard(recipe, task_of([Span(0, 0, 1)], sources))

    assert done.error == f"{tmp_path}/in/000.npy holds 300 in reward, which int8 cannot store"


def test_an_episode_larger_than_memory_is_written_shard_by_shard(tmp_path: Path) -> None:
    steps = 2**36  # 64 GiB of zeros that take no room on the disk
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "sparse.npy").open("wb") as file:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({steps},)}}".encode()
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.seek(128 + 3 * 2**32)
        file.write(b"\x07" * 2**20)
        file.truncate(128 + steps)
    code = f"""
import resource
from pipeline import BuildOptions, plan
from pipeline.staging import read_task, stage_plan, task_places
from pipeline.write import write_shard
options = BuildOptions(("{tmp_path}/in",), "{tmp_path}/out", window_length=2**20, shift=2**20, num_shards=4096)
planned = plan(options)
stage_plan(planned)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for place in task_places(planned.staging)[:3]:
    done = write_shard(planned.recipe, read_task(planned.staging, place))
    assert (done.records, done.error) == (16, "")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 2**10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    shard_mib = 16 * (2**20 + 80) / 2**20
    assert int(done.stdout) < 3 * shard_mib


def test_fortran_order_is_read_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.asfortranarray(np.zeros((2**18, 16), np.float32)))
    planned = plan(BuildOptions((str(tmp_path / "in"),), str(tmp_path / "out"), window_length=64, shift=64))
    (task,) = planned.tasks()
    read, real = [0], source._read

    def count(opened: Any, begin: int, count: int, dtype: Any) -> np.ndarray:
        read[0] += count * dtype.itemsize
        return real(opened, begin, count, dtype)

    monkeypatch.setattr(source, "_read", count)
    make_records(planned.recipe, task)
    assert read[0] < 2 * 2**24
