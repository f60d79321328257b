"""How many local workers a build has, and what they are: as many as help, in the memory that is there.

The arithmetic is pure; what this machine has is asked for at the end. Figures are in docs/benchmarks.md.
"""

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from shards.cores import core_count

_BYTES_WORTH_A_WORKER = 2**28  # which one worker writes in the second or so that another process takes to start
_MOST_UNASKED = 16  # write some 2 GB/s together, which is more than most disks take
# Threads start at once and share Beam's memory, but take turns where a worker holds Python's lock: for a sixth of its
# time where records are small, so that a sixth thread would have nothing to do.
_MOST_THREADS = 4
_JOB_BYTES = 250 * 10**6  # of the launching process, and of the job's own, with Beam
_PROCESS_BYTES = 132 * 10**6  # of each worker that is a process, with Beam
_SHARDS_HELD = 1.2  # a worker's peak, in shards: the shard, a span of the source, and 40 MB


class Machine(NamedTuple):
    """What a build may use: cores, and bytes of memory that nothing else holds."""

    cores: int
    memory: int


def choose_workers(asked: int | None, machine: Machine, shards: int, shard_bytes: int, total_bytes: int) -> int:
    """The workers that write so many shards, of `shard_bytes` at most and `total_bytes` together.

    As many as were asked for, but none without a shard. Unasked, one a core up to 16, if each has work for a second or
    more, and as many as half of the memory holds; one at least.

    >>> choose_workers(None, Machine(64, 32 * 10**9), shards=800, shard_bytes=2**27, total_bytes=10**11)
    16
    >>> choose_workers(None, Machine(64, 4 * 10**9), shards=800, shard_bytes=2**27, total_bytes=10**11)
    5
    """
    if asked is not None:
        return min(asked, shards)
    worth = -(-total_bytes // _BYTES_WORTH_A_WORKER)
    workers = min(machine.cores, _MOST_UNASKED, shards, worth)
    while workers > 1 and memory_needed(workers, shard_bytes) > machine.memory / 2:
        workers -= 1
    return workers


def running_mode(workers: int) -> str:
    """Beam's name of the way in which so many workers run: in the job's process, as its threads, or as processes.

    >>> running_mode(1), running_mode(4), running_mode(5)
    ('in_memory', 'multi_threading', 'multi_processing')
    """
    if workers == 1:
        return "in_memory"
    return "multi_threading" if workers <= _MOST_THREADS else "multi_processing"


def memory_needed(workers: int, shard_bytes: int) -> int:
    """The peak of bytes that a build holds in all its processes.

    >>> memory_needed(1, 10**8), memory_needed(64, 10**8)
    (370000000, 16378000000)
    """
    each = _SHARDS_HELD * shard_bytes + (_PROCESS_BYTES if running_mode(workers) == "multi_processing" else 0)
    return int(_JOB_BYTES + workers * each)


def this_machine() -> Machine:
    """The cores that this process may use, and the memory that it and those it starts may take."""
    return Machine(core_count(), available_memory())


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that can be had without swapping, within the limits of the control groups of this process.

    `root` is where the system's files are looked for. Where they are not known, all memory that the machine has.
    """
    known = [*_machine_memory(root), *_group_memory(root)]
    return max(0, min(known)) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _machine_memory(root: Path) -> list[int]:
    with suppress(OSError, LookupError, ValueError):
        lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        return [int(lines["MemAvailable"].split()[0]) * 1024]
    return []


def _group_memory(root: Path) -> list[int]:
    """What the limit of each group leaves that holds this process; its files in the page cache are given up for it."""
    left = []
    for folder, limit, used in _groups(root):
        with suppress(OSError, LookupError, ValueError):  # "max" is no limit
            most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(most - taken + int(counts.get("total_inactive_file", counts.get("inactive_file", 0))))
    return left


def _groups(root: Path) -> list[tuple[Path, str, str]]:
    """(folder, file of the limit, file of what is used) of this process's groups and those above, of either version."""
    mounted, groups = root / "sys/fs/cgroup", []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            inside = PurePosixPath(path.lstrip("/"))
            if not kinds:  # version 2
                above = [mounted / folder for folder in (inside, *inside.parents)]
                groups += [(folder, "memory.max", "memory.current") for folder in above]
            elif "memory" in kinds.split(","):
                above = [mounted / "memory" / folder for folder in (inside, *inside.parents)]
                groups += [(folder, "memory.limit_in_bytes", "memory.usage_in_bytes") for folder in above]
    return groups
