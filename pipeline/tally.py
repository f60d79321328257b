"""What goes through each stage of a build: how much in, how much out, how many bytes, and for how long."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from shards.manifest import Manifest

#: The stages in their order: what is counted in, and what out.
STAGES = {
    "survey": ("files", "episodes"),
    "plan": ("episodes", "windows"),
    "read": ("spans", "steps"),
    "measure": ("steps", "steps"),
    "cut": ("steps", "windows"),
    "write": ("windows", "windows"),
    "keep": ("windows", "windows"),
    "publish": ("windows", "windows"),
}


@dataclass
class Count:
    """Of one stage."""

    taken: int = 0
    given: int = 0
    bytes: int = 0
    nanoseconds: int = 0


@dataclass
class Tally:
    """The counts of each stage."""

    counts: dict[str, Count] = field(default_factory=dict)

    def add(self, stage: str, taken: int, given: int, nbytes: int, nanoseconds: int = 0) -> None:
        """Count more of a stage."""
        count = self.counts.setdefault(stage, Count())
        count.taken += taken
        count.given += given
        count.bytes += nbytes
        count.nanoseconds += nanoseconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time that something takes."""
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(stage, 0, 0, 0, time.perf_counter_ns() - begun)

    def metrics(self) -> dict[str, int]:
        """The same as flat names, such as a runner's counters have; microseconds, so that short times add up."""
        return {
            f"{stage}.{name}": value
            for stage, count in self.counts.items()
            for name, value in (
                ("in", count.taken),
                ("out", count.given),
                ("bytes", count.bytes),
                ("microseconds", count.nanoseconds // 1000),
            )
        }


def parse_metrics(metrics: Mapping[str, int]) -> Tally:
    """The inverse of `Tally.metrics`.

    >>> parse_metrics({"read.in": 3, "read.out": 90, "read.bytes": 360, "read.microseconds": 7}).counts["read"].given
    90
    """
    tally = Tally()
    for stage in {name.partition(".")[0] for name in metrics}:
        taken, given, nbytes, microseconds = (
            metrics.get(f"{stage}.{name}", 0) for name in ("in", "out", "bytes", "microseconds")
        )
        tally.add(stage, taken, given, nbytes, microseconds * 1000)
    return tally


def kept_whole(manifest: Manifest) -> Tally:
    """Of a build that found all of its dataset finished."""
    tally = Tally()
    tally.add("keep", manifest.windows, manifest.windows, manifest.bytes)
    return tally


def format_report(manifest: Manifest, *tallies: Tally) -> bytes:
    """What a build did, as JSON: of each stage what went in and out, bytes and milliseconds; what the manifest holds.

    The windows of the stages "write" and "keep" together are those of the manifest, and so are their bytes. Times are
    sums over all processes.
    """
    counts = {stage: count for tally in tallies for stage, count in tally.counts.items()}
    document = {
        "stages": {
            stage: {
                "in": {taken: counts[stage].taken},
                "out": {given: counts[stage].given},
                "bytes": counts[stage].bytes,
                "milliseconds": round(counts[stage].nanoseconds / 1e6, 3),
            }
            for stage, (taken, given) in STAGES.items()
            if stage in counts
        },
        "manifest": {
            "windows": manifest.windows,
            "bytes": manifest.bytes,
            "records": sum(split.records for split in manifest.splits),
            "shards": sum(len(split.shards) for split in manifest.splits),
            "fingerprint": manifest.fingerprint,
        },
    }
    return json.dumps(document, indent=1).encode() + b"\n"
