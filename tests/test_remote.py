"""Inputs and outputs that are URLs, by way of a Beam file system that lives in memory."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

from conftest import WindowsOf
from pipeline import BuildOptions, plan
from pipeline.files import delete_folder, exists, list_files, read_file
from pipeline.inputs import find_episodes
from pipeline.preflight import check_output
from pipeline.publish import publish
from pipeline.staging import read_task, stage_plan, task_places
from pipeline.write import write_shard
from shards import EpisodeError, OutputError, open_dataset

FILES: dict[str, bytes] = {}


class MemoryFileSystem(FileSystem):
    """The least a Beam file system can be: names and bytes, no folders, as an object store has it."""

    @classmethod
    def scheme(cls) -> str:
        return "memory"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        raise NotImplementedError("an object store has no folders")

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for path in sorted(FILES, reverse=True):
            if path.startswith(dir_or_prefix):
                yield FileMetadata(path, len(FILES[path]))

    def create(self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO) -> io.BytesIO:
        assert compression_type == CompressionTypes.UNCOMPRESSED

        class Opened(io.BytesIO):
            def close(self) -> None:
                FILES[path] = self.getvalue()
                super().close()

        return Opened()

    def open(self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO) -> io.BytesIO:
        assert compression_type == CompressionTypes.UNCOMPRESSED
        if path not in FILES:
            raise BeamIOError(f"{path} is not there")
        return io.BytesIO(FILES[path])

    def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            FILES[target] = FILES[source]

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        self.copy(source_file_names, destination_file_names)
        self.delete(source_file_names)

    def exists(self, path: str) -> bool:
        return path in FILES

    def size(self, path: str) -> int:
        return len(FILES[path])

    def last_updated(self, path: str) -> float:
        return 0.0

    def checksum(self, path: str) -> str:
        raise NotImplementedError

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, len(FILES[path]))

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            del FILES[path]


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def episodes() -> Iterator[list[np.ndarray]]:
    arrays = [np.random.default_rng(i).standard_normal((40 + i, 2)) for i in range(5)]
    FILES.clear()
    FILES.update({f"memory://bucket/in/run{i % 2}/{i}.npy": saved(array) for i, array in enumerate(arrays)})
    FILES["memory://bucket/in/notes.txt"] = b"no episode"
    yield arrays
    FILES.clear()


def options(**more: Any) -> BuildOptions:
    values: dict[str, Any] = {"window_length": 8, "shift": 3, "num_shards": 2, **more}
    return BuildOptions(inputs=("memory://bucket/in",), output="memory://bucket/out", **values)


def build(**more: Any) -> None:
    planned = plan(options(**more))
    check_output(planned)
    stage_plan(planned)
    tasks = [read_task(planned.staging, place) for place in task_places(planned.staging)]
    done = [write_shard(planned.recipe, task) for task in tasks]
    publish("memory://bucket/out", planned.staging, done, planned.manifest.fingerprint)


def test_a_dataset_is_built_from_a_url_to_a_url(
    episodes: list[np.ndarray], windows_of: WindowsOf, tmp_path: Path
) -> None:
    build()
    written = {path.rpartition("/")[2]: data for path, data in FILES.items() if path.startswith("memory://bucket/out/")}
    assert sorted(written) == [
        "dataset_info.json",
        "episodes.csv",
        "features.json",
        "manifest.json",
        "out-train.tfrecord-00000-of-00002",
        "out-train.tfrecord-00001-of-00002",
    ]
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    windows = open_dataset(tmp_path)["train"]
    order = [0, 2, 4, 1, 3]  # of the paths run0/0, run0/2, run0/4, run1/1, run1/3
    where, values = windows.provenance(), windows[:]["window"]
    found = {
        (episode, start): value.tobytes()
        for episode, start, value in zip(where["episode"].tolist(), where["start"].tolist(), values, strict=True)
    }
    assert found == windows_of([episodes[i] for i in order], 8, 3)
    assert open_dataset(tmp_path).episode_paths[1] == "run0/2.npy"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_and_labels_are_read_from_urls(tmp_path: Path, save: Any) -> None:
    FILES.clear()
    arrays = [np.random.default_rng(i).standard_normal((20 + i, 2)) for i in range(3)]
    for i, array in enumerate(arrays):
        file = io.BytesIO()
        save(file, x=array, gain=np.float32(i))
        FILES[f"memory://bucket/in/{i}.npz"] = file.getvalue()
    FILES["memory://bucket/labels.csv"] = b"path,word\n2.npz,b\n0.npz,a\n1.npz,b\n"
    build(labels="memory://bucket/labels.csv", group_by="word", splits={"train": "0.5", "test": "0.5"}, num_shards=1)
    for path, data in FILES.items():
        if path.startswith("memory://bucket/out/"):
            (tmp_path / path.rpartition("/")[2]).write_bytes(data)
    dataset = open_dataset(tmp_path)
    held = set()
    for split in dataset.values():
        where, values = split.provenance(), split[:]
        for row, (episode, start) in enumerate(zip(where["episode"].tolist(), where["start"].tolist(), strict=True)):
            assert values["x"][row].tobytes() == arrays[episode][start : start + 8].tobytes()
            assert (values["gain"][row], values["word"][row]) == (episode, [0, 1, 1][episode])
            held.add((episode, start))
    assert len(held) == dataset.manifest.windows == 5 * 3
    FILES.clear()


def test_a_dataset_at_a_url_is_not_overwritten_unless_asked(episodes: list[np.ndarray]) -> None:
    build()
    before = dict(FILES)
    with pytest.raises(OutputError, match="memory://bucket/out already holds a dataset"):
        build(name="other")
    assert before == FILES
    build(name="other", num_shards=1, overwrite=True)
    assert [name for name in list_files("memory://bucket/out") if "tfrecord" in name] == [
        "other-train.tfrecord-00000-of-00001"
    ]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("memory://bucket/in", ["run0/0", "run0/2", "run0/4", "run1/1", "run1/3"]),
        ("memory://bucket/in/run1/", ["1", "3"]),
        ("memory://bucket/in/run1/3.npy", ["3"]),
        ("memory://bucket/in/*/[12].npy", ["run0/2", "run1/1"]),
        ("memory://bucket/**/4.npy", ["in/run0/4"]),
    ],
)
def test_inputs_may_be_urls(episodes: list[np.ndarray], text: str, paths: list[str]) -> None:
    assert [file.path for file in find_episodes([text])] == [f"{path}.npy" for path in paths]


def test_urls_and_local_paths_do_not_mix(episodes: list[np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="inputs must be all local paths or all URLs"):
        find_episodes(["memory://bucket/in", str(tmp_path)])


def test_a_url_with_no_episode_is_named(episodes: list[np.ndarray]) -> None:
    with pytest.raises(EpisodeError, match=re.escape("input 'memory://bucket/none' matches no .npy or .npz file")):
        find_episodes(["memory://bucket/none"])


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(EpisodeError, match=r"input 'unheard://of' cannot be listed: .*unheard"):
        find_episodes(["unheard://of"])


def test_folders_at_urls_are_listed_and_deleted() -> None:
    FILES.update({"memory://bucket/a/b/c": b"1", "memory://bucket/a/d": b"2", "memory://bucket/ab": b"3"})
    assert list_files("memory://bucket/a") == ["b/", "d"]
    assert read_file("memory://bucket/a/b/c") == b"1"
    delete_folder("memory://bucket/a")
    assert FILES == {"memory://bucket/ab": b"3"}
    assert not exists("memory://bucket/a/d")
    FILES.clear()


@pytest.mark.parametrize("name", ["in//x.npy", "in/a/../x.npy"])
def test_an_object_whose_name_would_lead_out_of_a_folder_is_refused(name: str) -> None:
    FILES.update({f"memory://bucket/{name}": b"", "memory://bucket/in/y.npy": b""})
    with pytest.raises(EpisodeError, match=r"x\.npy has an empty part or a part '\.\.' in its path: rename it"):
        find_episodes(["memory://bucket/in"])
    FILES.clear()


def test_an_object_that_was_replaced_since_the_plan_is_noticed(episodes: list[np.ndarray]) -> None:
    planned = plan(options())
    stage_plan(planned)
    FILES["memory://bucket/in/run0/0.npy"] += b"more"
    tasks = [read_task(planned.staging, place) for place in task_places(planned.staging)]
    failures = [done.error for task in tasks if (done := write_shard(planned.recipe, task)).error]
    assert set(failures) == {"memory://bucket/in/run0/0.npy was written to, or went away, while the build ran"}


def test_an_interrupted_build_at_a_url_goes_on(episodes: list[np.ndarray]) -> None:
    build()
    unbroken = dict(FILES)
    for path in list(FILES):
        if path.startswith("memory://bucket/out/"):
            del FILES[path]
    planned = plan(options())
    stage_plan(planned)
    first = write_shard(planned.recipe, next(planned.tasks()))
    with pytest.raises(OutputError, match="holds an unfinished build, and this one is another: shift was 3 and is 4"):
        stage_plan(plan(options(shift=4)))
    stage_plan(planned)
    assert write_shard(planned.recipe, next(planned.tasks())) == first
    build()
    assert unbroken == FILES
