"""The memory of a process and of all that it starts, sampled while they run."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_ROLES = {
    "pipeline.beam_process": "job",
    "sdk_worker_main": "worker",
}  # a part of the command line says what a process is


@dataclass
class Peaks:
    """Peaks in MB (10**6 bytes): of all processes together, by PSS, and of the largest process of each role, by RSS.

    PSS, the proportional set size, counts a page that n processes share as 1/n in each, so that sums are true.
    """

    total: float = 0.0
    processes: int = 0
    largest: dict[str, float] = field(default_factory=dict)


@contextmanager
def watch_processes(root: int | None = None, seconds: float = 0.1) -> Iterator[Peaks]:
    """Sample all processes below `root` (this process, if None), which itself is not counted."""
    peaks, ended = Peaks(), threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            pids = _below(root or os.getpid())
            peaks.processes = max(peaks.processes, len(pids))
            peaks.total = max(peaks.total, sum(map(_pss, pids)))
            for pid in pids:
                with suppress(OSError, LookupError):  # it has ended meanwhile
                    role, size = _role(pid), _status(pid)["VmHWM"]
                    peaks.largest[role] = max(peaks.largest.get(role, 0.0), size)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        ended.set()
        watcher.join()


def _below(root: int) -> list[int]:
    found, last = [], [root]
    while last:
        last = [child for pid in last for child in _children(pid)]
        found += last
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()  # a process is the child of the thread that started it
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def _pss(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _status(pid: int) -> dict[str, float]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm"))
    return {name[:-1]: int(kib) * 1024 / 1e6 for name, kib, *_ in lines}


def _role(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return next((role for part, role in _ROLES.items() if part in command), "launcher")
