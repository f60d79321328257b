"""Where and when figures were taken: they go with every result."""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, date and versions."""
    info = Path("/proc/cpuinfo")
    cpu = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("tensorflow", "tensorflow-cpu", "keras", "apache-beam", "numpy")},
    }


def resident_memory() -> float | None:
    """The memory of this process, in MB, without what is mapped from files; None where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = (line.partition(":") for line in status.read_text().splitlines())
    kib = {key: int(value.split()[0]) for key, _, value in lines if key.startswith("Rss")}
    return (kib["RssAnon"] + kib["RssShmem"]) * 1024 / 1e6


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:
        return None


def write_results(file: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, making the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")
