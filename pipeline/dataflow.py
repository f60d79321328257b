"""What a job needs to run on Google Cloud Dataflow, so that nobody has to give it: pure functions of flags and plan.

`submit.py` launches the job; `docs/dataflow.md` is for users.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from shards.errors import OptionError

from .files import is_remote

MIB, GIB = 2**20, 2**30
#: Of a worker's memory, what is not for shards, of each process: Python with Beam, 0.2 GiB, and its part of the system
#: and of Dataflow's own processes. The latter are an estimate.
_PROCESS_BYTES = 3 * GIB // 4
#: What a thread holds: 1.2 times its shard, with a span of the source, and what is on the way to and from the bucket,
#: of which 32 MiB were measured for an upload of any size, and the rest is left for reading.
_SHARDS_PER_THREAD, _THREAD_BYTES = 1.2, 128 * MIB
#: Threads of a process. A shard waits for a bucket most of the time, as its spans come from 64 places or more, so more
#: threads are better; 12 is what Dataflow takes of itself, and would need 17 GiB a process for shards of 1 GiB. With
#: fewer than 4, a larger machine costs less than the waiting.
_MOST_THREADS, _LEAST_THREADS = 12, 4
#: (machine type, processes, GiB of memory a process), from small to large. Dataflow runs a process for each virtual
#: CPU, or a single one if told so. The n1 family is what it takes of itself: there in every region, and within each
#: project's first quota.
_MACHINES = (
    ("n1-standard-2", 2, 3.75),
    ("n1-highmem-2", 2, 6.5),
    ("n1-highmem-4", 1, 26.0),
    ("n1-highmem-8", 1, 52.0),
    ("n1-highmem-16", 1, 104.0),
    ("n1-highmem-32", 1, 208.0),
)
_ONE_PROCESS = "no_use_multiple_sdk_containers"
#: Room for the system and the container's image, some GB; shards go from memory to the bucket. Dataflow's own would be
#: up to 250 GB.
_DISK_GB = 30
_MOST_WORKERS = 1000  # of a batch job, unless Dataflow's quota says less
_MOST_NAME = 63  # characters of a job's name and of a label


class Facts(NamedTuple):
    """What the flags depend on besides the user's: the dataset's name, its staging folder, how many shards, and the
    bytes of the largest.
    """

    dataset: str
    staging: str
    shards: int
    shard_bytes: int


class Shape(NamedTuple):
    """A worker: its machine type, how many processes of Beam it runs, and the threads of each."""

    machine: str
    processes: int
    threads: int


def is_dataflow(given: Mapping[str, Any]) -> bool:
    """Whether the user's flags ask for Dataflow, by any name that Beam takes."""
    return str(given.get("runner", "")).rpartition(".")[2].lower() in {"dataflow", "dataflowrunner"}


def check_flags(given: Mapping[str, Any], inputs: Sequence[str], output: str) -> None:
    """OptionError for flags and paths with which no job could run on Dataflow."""
    if missing := [f"--{name}" for name in ("project", "region", "temp_location") if not given.get(name)]:
        raise OptionError(
            f"DataflowRunner needs {' and '.join(missing)}, such as"
            " --project=my-project --region=europe-west4 --temp_location=gs://my-bucket/temp"
        )
    for flag in ("temp_location", "staging_location"):
        if not re.match(r"gs://[^/]+/", given.get(flag) or "gs://bucket/"):
            raise OptionError(f"--{flag} must be a folder of a bucket, such as gs://my-bucket/temp, not {given[flag]}")
    for flag, path in (*(("--input", path) for path in inputs), ("--output", output)):
        if not is_remote(path):
            raise OptionError(
                f"workers on Dataflow cannot reach {flag} {path}: it must be a URL such as gs://bucket/dir"
            )
    if given.get("template_location"):
        raise OptionError("--template_location makes no sense here: a build's plan is staged for one job")


def default_flags(given: Mapping[str, Any], facts: Facts) -> list[str]:
    """The flags for Beam that the user has not given: each has its reason above or beside it."""
    shape = worker_shape(facts.shard_bytes, given.get("number_of_worker_harness_threads"), "machine_type" in given)
    most = min(-(-facts.shards // shape.processes), _MOST_WORKERS)  # beyond that, processes would find no shard
    defaults = {
        # of this build alone, of which Dataflow thus runs one at a time
        "job_name": job_name(facts.dataset, facts.staging),
        "labels": f"dataset={facts.dataset[:_MOST_NAME]}",  # which bills are told apart by
        "machine_type": shape.machine,
        "number_of_worker_harness_threads": shape.threads,
        "disk_size_gb": _DISK_GB,
        "max_num_workers": max(most, given.get("num_workers") or 0),
    }
    flags = [f"--{name}={value}" for name, value in defaults.items() if name not in given]
    if shape.processes == 1 and "machine_type" not in given:
        flags.append(f"--experiments={_ONE_PROCESS}")
    if "save_main_session" not in given:
        flags.append("--no_save_main_session")  # else Beam pickles `__main__`; all that workers need is in the wheel
    return flags


def worker_shape(shard_bytes: int, threads: int | None = None, other_machine: bool = False) -> Shape:
    """The smallest worker with memory for its threads, of which each holds a shard: `threads`, or as many as fit.

    A machine of the user's choice is taken to have the memory of the smallest here. Errors: OptionError if none is
    large enough.

    >>> worker_shape(128 * MIB)
    Shape(machine='n1-standard-2', processes=2, threads=10)
    """
    thread = int(shard_bytes * _SHARDS_PER_THREAD) + _THREAD_BYTES
    for machine, processes, memory in _MACHINES:
        room = int(memory * GIB - _PROCESS_BYTES) // thread
        if other_machine or room >= (threads or _LEAST_THREADS):
            return Shape(machine, processes, threads or max(1, min(room, _MOST_THREADS)))
    raise OptionError(
        f"no worker has memory for {threads or _LEAST_THREADS} shards of {shard_bytes:,} bytes: ask for more shards"
    )


def job_name(dataset: str, staging: str) -> str:
    """A name for the job, of the dataset and of this build: lower-case letters, digits and hyphens, 63 at most.

    >>> job_name("robot_arm", "gs://bucket/out/incomplete.tmp/0123456789abcdef")
    'episode-windows-robot-arm-53b44dc6'
    """
    build = build_mark(staging)
    dataset = re.sub("_+", "-", dataset)[: _MOST_NAME - len(f"episode-windows--{build}")]
    return f"episode-windows-{dataset.rstrip('-')}-{build}"


def build_mark(staging: str) -> str:
    """What names of jobs of one build end with, and no others: its staging folder is of one plan and one output."""
    return sha256(staging.encode()).hexdigest()[:8]
