"""The job with real Beam in real processes: the right windows, the same bytes, and an end in bounded time."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from conftest import PublishAndStop, SaveEpisodes, WindowsOf
from pipeline import BuildOptions, build, plan
from pipeline.preflight import check_output
from pipeline.staging import stage_plan
from shards import BuildError, Dataset, DatasetNotFoundError, OptionError, OutputError, open_dataset

LENGTH, SHIFT = 16, 5


@pytest.fixture(scope="module")
def episodes() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal((steps, 3)).astype(np.float32) for steps in (200, 10, 333, 64, 16, 90, 121)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, episodes: list[np.ndarray], save_episodes: SaveEpisodes) -> str:
    return save_episodes(tmp_path_factory.mktemp("build") / "in", episodes)


def options(inputs: str, output: Path, **more: object) -> BuildOptions:
    values = {
        "window_length": LENGTH,
        "shift": SHIFT,
        "name": "waves",
        "seed": 3,
        "splits": {"train": "0.7", "test": "0.3"},
        "num_shards": {"train": 5, "test": 2},
        **more,
    }
    return BuildOptions(inputs=(inputs,), output=str(output), **values)  # type: ignore[arg-type]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def found(dataset: Dataset) -> dict[tuple[int, int], bytes]:
    windows = {}
    for split in dataset.values():
        where, values = split.provenance(), split[:]["window"]
        for episode, start, value in zip(where["episode"].tolist(), where["start"].tolist(), values, strict=True):
            windows[episode, start] = value.tobytes()
    return windows


def test_a_build_holds_every_window_once_and_leaves_nothing_else(
    inputs: str, episodes: list[np.ndarray], windows_of: WindowsOf, tmp_path: Path
) -> None:
    told: list[set[str]] = []
    manifest = build(options(inputs, tmp_path / "out", workers=2), on_shards=told.append)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest == manifest
    assert manifest.windows == sum(len(windows) for windows in dataset.values())
    assert found(dataset) == windows_of(episodes, LENGTH, SHIFT)
    files = {shard.file for split in manifest.splits for shard in split.shards}
    assert told[-1] == files
    assert set(os.listdir(tmp_path / "out")) == files | {
        "manifest.json",
        "episodes.csv",
        "dataset_info.json",
        "features.json",
    }


def test_manifest_sizes_and_digests_are_those_of_the_files(inputs: str, tmp_path: Path) -> None:
    manifest = build(options(inputs, tmp_path / "out", workers=1))
    got = digests(tmp_path / "out")
    assert {s.file: s.sha256 for split in manifest.splits for s in split.shards} == {
        file: digest for file, digest in got.items() if ".tfrecord-" in file
    }
    assert manifest.episodes_sha256 == got["episodes.csv"]


def test_every_number_of_workers_and_order_of_files_gives_the_same_bytes(
    inputs: str, episodes: list[np.ndarray], save_episodes: SaveEpisodes, tmp_path: Path
) -> None:
    names = [f"e{i:03d}" for i in range(len(episodes))]
    other = tmp_path / "other"
    for name, episode in reversed(list(zip(names, episodes, strict=True))):  # listed by age, they come the other way
        save_episodes(other, {name: episode})
    results = []
    for number, (source, workers, beam_args) in enumerate(
        [
            (inputs, 1, ()),
            (inputs, 2, ()),
            (str(other), 3, ()),
            (inputs, 2, ("--direct_running_mode=multi_processing",)),
        ]
    ):
        output = tmp_path / str(number)
        build(options(source, output, workers=workers, beam_args=beam_args))
        results.append(digests(output))
    assert len(results[0]) == 11
    assert results == [results[0]] * 4


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Archives of two arrays and a value, of any scale, with a few values that are not finite, and their labels."""
    folder, random = tmp_path_factory.mktemp("several") / "in", np.random.default_rng(5)
    folder.mkdir()
    rows = ["path,who,reward"]
    for i, steps in enumerate((300, 10, 444, 64, 150, 90, 121)):
        x = (random.standard_normal((steps, 3)) * 10.0 ** random.integers(-6, 6)).astype(np.float32)
        x[steps // 2, i % 3] = [np.nan, np.inf, -np.inf][i % 3]
        save = np.savez_compressed if i % 2 else np.savez
        save(folder / f"e{i}.npz", x=x, y=random.integers(0, 256, (steps, 2, 2), np.uint8), gain=np.float64(i))
        rows.append(f"e{i}.npz,{'abc'[i % 3]},{i / 3}")
    (folder.parent / "labels.csv").write_text("\n".join(rows) + "\n")
    return str(folder)


@pytest.mark.parametrize(
    "how",
    [
        {"group_by": "who", "splits": {"train": "0.6", "test": "0.4"}, "windows_per_record": "auto", "tail": "pad"},
        {"split_by": "time", "purge": 3, "splits": {"train": "0.5", "test": "0.5"}, "stride": 2, "tail": "align"},
    ],
    ids=["grouped", "time"],
)
def test_every_number_of_workers_gives_the_same_statistics_and_everything(
    several: str, tmp_path: Path, how: dict[str, object]
) -> None:
    results = []
    for workers in (1, 2, 3):
        output, labels = tmp_path / str(workers), os.path.dirname(several) + "/labels.csv"
        manifest = build(options(several, output, workers=workers, labels=labels, num_shards={"train": 4}, **how))
        results.append(digests(output))
    assert results == [results[0]] * 3
    assert [each.feature for each in manifest.statistics] == ["x", "y"]
    assert {(each.episode, each.feature) for each in manifest.nonfinite} <= {(i, "x") for i in range(7)}
    assert manifest.nonfinite
    train = open_dataset(tmp_path / "1")["train"]
    assert set(train[:]) >= {"gain", "x", "y", "who", "reward"}


def test_a_single_huge_file_is_written_by_two_workers_in_bounded_memory(tmp_path: Path) -> None:
    steps, columns = 2**21, 48
    nbytes = 4 * steps * columns  # 384 MiB of zeros that take no room, but for the ends
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "huge.npy").open("wb") as file:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({steps}, {columns}), }}".encode()
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.write(np.ones(columns, "<f4").tobytes())
        file.truncate(128 + nbytes)
        file.seek(-4 * columns, os.SEEK_END)
        file.write(np.full(columns, 2, "<f4").tobytes())
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--window_length", "1024"]
    arguments += ["--shard_size", "8MiB", "--workers", "2"]
    measured = (
        "import resource, sys; from pipeline.__main__ import main; status = main(sys.argv[1:]);"
        "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024); sys.exit(status)"
    )
    command = [sys.executable, "-c", measured, "build", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(tmp_path / "out")
    manifest = dataset.manifest
    (split,) = manifest.splits
    assert len(split.shards) == 49
    assert (split.windows, manifest.source.bytes) == (steps // 1024, nbytes)
    for shard in split.shards:
        assert (tmp_path / "out" / shard.file).stat().st_size == shard.bytes
    where = dataset["train"].provenance()
    assert sorted(where["start"].tolist()) == list(range(0, steps, 1024))
    total = manifest.statistics[0].total
    assert (total.count, total.min, total.max) == (steps * columns, 0, 2)
    assert total.mean == pytest.approx(3 / steps, rel=1e-12)
    peak = int(done.stdout.rstrip().rpartition("peak ")[2])  # MiB, of the largest process; the shards are 8 MiB
    assert 0 < peak < 250


def test_the_seed_changes_the_order_and_the_splits(inputs: str, tmp_path: Path) -> None:
    got = [digests(tmp_path / str(seed)) for seed in (1, 2) if build(options(inputs, tmp_path / str(seed), seed=seed))]
    shards = [name for name in got[0] if ".tfrecord-" in name]
    assert all(got[0][name] != got[1].get(name) for name in shards)


def test_an_occupied_folder_is_refused_and_left_alone(inputs: str, tmp_path: Path) -> None:
    build(options(inputs, tmp_path / "out", workers=1))
    before = digests(tmp_path / "out")
    with pytest.raises(OutputError, match=r"already holds a dataset: choose another folder, or .* --overwrite"):
        build(options(inputs, tmp_path / "out", seed=9))
    assert digests(tmp_path / "out") == before

    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("all of it")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"is not empty, and what it holds is no dataset \(thesis\.tex\)"):
            build(options(inputs, tmp_path / "home", overwrite=overwrite))
    assert os.listdir(tmp_path / "home") == ["thesis.tex"]


def test_overwrite_replaces_a_dataset_and_only_that(inputs: str, tmp_path: Path) -> None:
    build(options(inputs, tmp_path / "out", workers=1))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    manifest = build(options(inputs, tmp_path / "out", workers=1, num_shards=3, name="ripples", overwrite=True))
    assert open_dataset(tmp_path / "out").manifest == manifest
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        ["manifest.json", "episodes.csv", "dataset_info.json", "features.json", "notes.txt"]
        + [f"ripples-{split}.tfrecord-{i:05d}-of-00003" for split in ("train", "test") for i in range(3)]
    )


def test_a_folder_without_room_is_refused_before_anything_is_written(inputs: str, tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.mkdir()
    with (huge / "sparse.npy").open("wb") as file:  # 4 TiB of zeros that take no room
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.truncate(128 + 4 * 2**40)
    with pytest.raises(OutputError, match=r"the dataset needs [\d,]+ bytes, but [\d,]+ are free where"):
        build(BuildOptions(inputs=(str(huge),), output=str(tmp_path / "out"), window_length=2**20))
    assert not (tmp_path / "out").exists()


def test_shards_larger_than_memory_are_refused(tmp_path: Path) -> None:
    huge = tmp_path / "in"
    huge.mkdir()
    steps = 64 * 2**30
    with (huge / "sparse.npy").open("wb") as file:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({steps},)}}".encode()
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.truncate(128 + steps)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory > steps:
        pytest.skip("this machine could hold the shard")
    window = 2**20
    with pytest.raises((OptionError, OutputError), match=r"ask for more shards, or fewer --workers|are free where"):
        build(BuildOptions(inputs=(str(huge),), output=str(tmp_path / "out"), window_length=window, num_shards=1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written_to_is_refused(inputs: str, tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="cannot be written: no permission in"):
        build(options(inputs, tmp_path / "fixed" / "out"))


def test_a_file_in_the_way_is_refused(inputs: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"cannot be a folder: .* is a file"):
        build(options(inputs, tmp_path / "out"))


def test_an_episode_that_shrinks_after_planning_fails_the_build_by_name(
    episodes: list[np.ndarray], save_episodes: SaveEpisodes, tmp_path: Path
) -> None:
    source = save_episodes(tmp_path / "in", episodes)
    planned = plan(options(source, tmp_path / "out", workers=2))
    train, test = (split.sections.episodes.tolist() for split in planned.splits)
    assert 2 in train
    os.truncate(tmp_path / "in" / "e002.npy", 1000)
    (tmp_path / "in" / f"e{test[0]:03d}.npy").unlink()
    with pytest.raises(BuildError) as caught:
        build(planned)
    message = str(caught.value)
    assert "e002.npy ended before its 333 steps: it changed while the build ran" in message
    assert f"e{test[0]:03d}.npy could not be read while the build ran: No such file or directory" in message
    assert "Mend the cause and run the same command again: it goes on with what is finished." in message
    assert os.listdir(tmp_path / "out") == ["incomplete.tmp"]


def test_a_failed_build_can_be_run_again(
    episodes: list[np.ndarray], save_episodes: SaveEpisodes, windows_of: WindowsOf, tmp_path: Path
) -> None:
    source = save_episodes(tmp_path / "in", episodes)
    planned = plan(options(source, tmp_path / "out", workers=1))
    (tmp_path / "in" / "e002.npy").rename(tmp_path / "away.npy")
    with pytest.raises(BuildError, match=r"e002\.npy could not be read"):
        build(planned)
    (tmp_path / "away.npy").rename(tmp_path / "in" / "e002.npy")
    build(options(source, tmp_path / "out", workers=1))
    assert found(open_dataset(tmp_path / "out")) == windows_of(episodes, LENGTH, SHIFT)


def test_somebody_elses_dataset_is_not_touched(inputs: str, tmp_path: Path) -> None:
    theirs = {"dataset_info.json": "{}", "features.json": "{}", "mnist-train.tfrecord-00000-of-00001": "digits"}
    for number, more in enumerate([{}, {"manifest.json": '{"name": "a web app"}'}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in (theirs | more).items():
            (folder / name).write_text(text)
        for overwrite in (False, True):
            with pytest.raises(OutputError, match=r"is no dataset|cannot take a dataset"):
                build(options(inputs, folder, overwrite=overwrite))
        assert {file.name: file.read_text() for file in folder.iterdir()} == theirs | more


def test_overwrite_does_not_replace_a_file_that_is_not_of_the_dataset(inputs: str, tmp_path: Path) -> None:
    build(options(inputs, tmp_path / "out", workers=1))
    (tmp_path / "out" / "ripples-test.tfrecord-00000-of-00002").write_text("mine")
    with pytest.raises(OutputError, match=r"holds ripples-test\.tfrecord-00000-of-00002, which is not of the dataset"):
        build(options(inputs, tmp_path / "out", name="ripples", overwrite=True))
    assert open_dataset(tmp_path / "out").manifest.name == "waves"


@pytest.mark.parametrize("moves", range(4))
def test_a_replacement_interrupted_while_it_is_moved_is_finished_by_the_next_build(
    inputs: str, tmp_path: Path, publish_and_stop: PublishAndStop, moves: int
) -> None:
    build(options(inputs, tmp_path / "out", workers=1))
    expected = build(options(inputs, tmp_path / "other", workers=1, seed=8)).fingerprint
    planned = plan(options(inputs, tmp_path / "out", seed=8, overwrite=True))
    publish_and_stop(planned, moves)
    if moves:
        with pytest.raises(DatasetNotFoundError):
            open_dataset(tmp_path / "out")
    else:
        assert open_dataset(tmp_path / "out").manifest.seed == 3
    assert build(planned).fingerprint == expected
    assert digests(tmp_path / "out") == digests(tmp_path / "other")


def test_what_a_dead_build_left_counts_as_free(inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(options(inputs, tmp_path / "out"))
    stage_plan(planned)
    (tmp_path / "out" / "incomplete.tmp" / "waves-train.tfrecord-00000-of-00005").write_bytes(bytes(20_000))
    monkeypatch.setattr("pipeline.preflight.free_bytes", lambda folder: planned.manifest.bytes - 20_000)
    check_output(planned)
    monkeypatch.setattr("pipeline.preflight.free_bytes", lambda folder: planned.manifest.bytes - 40_000)
    with pytest.raises(OutputError, match="the dataset needs"):
        check_output(planned)


def test_paths_may_be_paths(inputs: str, tmp_path: Path) -> None:
    options = BuildOptions(inputs=(Path(inputs),), output=tmp_path / "out", window_length=16)  # type: ignore[arg-type]
    assert build(options).name == "out"
