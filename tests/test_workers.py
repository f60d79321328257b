"""Cores, work and memory to workers: literals in, literals out; and the memory that a system says is there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import SaveEpisodes
from pipeline import BuildOptions, plan
from pipeline.preflight import check_output
from pipeline.workers import Machine, available_memory, choose_workers, memory_needed, running_mode, this_machine
from shards import OptionError

MB, GB = 10**6, 10**9
SHARD = 2**27


@pytest.mark.parametrize(
    ("machine", "shards", "shard_bytes", "total_bytes", "workers"),
    [
        (Machine(2, 24 * GB), 800, SHARD, 100 * GB, 2),
        (Machine(8, 24 * GB), 800, SHARD, 100 * GB, 8),
        (Machine(64, 256 * GB), 800, SHARD, 100 * GB, 16),  # the disk is full before
        (Machine(64, 8 * GB), 800, SHARD, 100 * GB, 12),
        (Machine(64, 4 * GB), 800, SHARD, 100 * GB, 5),
        (Machine(64, 3 * GB), 800, SHARD, 100 * GB, 4),
        (Machine(64, 1 * GB), 800, SHARD, 100 * GB, 1),
        (Machine(64, 0), 800, SHARD, 100 * GB, 1),  # which is then refused
        (Machine(64, 24 * GB), 50, 2 * GB, 100 * GB, 4),  # of large shards fewer
        (Machine(64, 256 * GB), 3, SHARD, 3 * SHARD, 2),
        (Machine(64, 256 * GB), 3, 2 * GB, 6 * GB, 3),
        (Machine(64, 256 * GB), 1000, 100, 100_000, 1),  # no work for more
        (Machine(64, 256 * GB), 5, SHARD, 2**29 + 1, 3),
        (Machine(1, 256 * GB), 800, SHARD, 100 * GB, 1),
    ],
)
def test_unasked(machine: Machine, shards: int, shard_bytes: int, total_bytes: int, workers: int) -> None:
    assert choose_workers(None, machine, shards, shard_bytes, total_bytes) == workers


def test_what_is_asked_for_is_given_but_none_without_a_shard() -> None:
    assert choose_workers(64, Machine(2, GB), 800, SHARD, 100 * GB) == 64
    assert choose_workers(64, Machine(2, GB), 5, SHARD, 100 * GB) == 5
    assert choose_workers(1, Machine(64, GB), 5, SHARD, 100 * GB) == 1


def test_memory_that_is_needed() -> None:
    assert memory_needed(1, 100 * MB) == 370 * MB
    assert memory_needed(2, 100 * MB) == 490 * MB
    assert memory_needed(4, 100 * MB) == 730 * MB
    assert memory_needed(5, 100 * MB) == 1510 * MB
    assert memory_needed(64, 100 * MB) == 16_378 * MB


def test_few_workers_are_threads() -> None:
    assert [running_mode(workers) for workers in (1, 2, 3, 4, 5, 16, 64)] == [
        "in_memory",
        *["multi_threading"] * 3,
        *["multi_processing"] * 3,
    ]


@pytest.mark.parametrize("cores", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("memory", [2 * GB, 8 * GB, 24 * GB, 256 * GB])
def test_what_is_chosen_takes_half_of_the_memory_at_most_and_never_much_more_on_more_cores(
    cores: int, memory: int
) -> None:
    workers = choose_workers(None, Machine(cores, memory), 10**5, SHARD, 10**13)

    assert memory_needed(workers, SHARD) <= max(memory / 2, memory_needed(1, SHARD))
    assert memory_needed(workers, SHARD) < 13 * memory_needed(1, SHARD)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal:       24105000 kB\nMemFree:         1000000 kB\nMemAvailable:   23000000 kB\n"


def test_memory_of_a_machine_without_groups(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, {"proc/meminfo": MEMINFO})) == 23_000_000 * 1024


def test_memory_of_a_group_and_those_above_it(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/jobs/mine\n",
        "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
        "sys/fs/cgroup/jobs/mine/memory.current": "1000\n",
        "sys/fs/cgroup/jobs/mine/memory.stat": "anon 5\n",
        "sys/fs/cgroup/jobs/memory.max": f"{4 * GB}\n",
        "sys/fs/cgroup/jobs/memory.current": f"{3 * GB}\n",
        "sys/fs/cgroup/jobs/memory.stat": f"anon {GB}\ninactive_file {2 * GB}\n",
    }

    assert available_memory(system(tmp_path, files)) == 3 * GB


def test_memory_of_a_container(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2 * GB}\n",
        "sys/fs/cgroup/memory.current": f"{GB // 2}\n",
        "sys/fs/cgroup/memory.stat": "anon 1\n",
    }

    assert available_memory(system(tmp_path, files)) == 2 * GB - GB // 2


def test_memory_of_a_group_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/host/path/that/is/not/here\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB + 5}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GB // 4}\n",
    }

    assert available_memory(system(tmp_path, files)) == GB // 4 - 5


@pytest.mark.parametrize("text", ["", "no lines of it\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_says_nothing(tmp_path: Path, text: str) -> None:
    assert available_memory(system(tmp_path, {"proc/meminfo": text, "proc/self/cgroup": "\n0\n"})) > 2**28


def test_this_machine() -> None:
    assert this_machine().cores >= 1
    assert this_machine().memory > 2**26


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (3, "for 3 workers that write shards of 1,464 bytes, a build takes 250,005,270 bytes of memory"),
        (None, "for a worker that writes shards of 1,464 bytes, a build takes 250,001,756 bytes of memory"),
    ],
)
def test_what_memory_cannot_hold_is_refused(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    words: str,
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(1200, np.int32)])
    options = BuildOptions((inputs,), str(tmp_path / "out"), window_length=100, num_shards=4, workers=asked)
    check_output(plan(options))
    monkeypatch.setattr("pipeline.preflight.available_memory", lambda: 200 * MB)

    with pytest.raises(OptionError, match=words + ", but 200,000,000 are available here: ask for more shards"):
        check_output(plan(options))
    assert not (tmp_path / "out").exists()
    check_output(plan(replace(options, beam_args=("--runner", "DirectRunner"))))  # whose workers may be elsewhere
