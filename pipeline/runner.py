"""Running the job in a process of its own, which can be watched, silenced and ended.

Beam runs in a child process (`beam_process.py`), with its local workers in the same process group. So a worker that is
killed, for which Beam itself would wait for ever, Ctrl-C, and the end of the launching process all end the whole group
in bounded time; and Beam's log goes to the terminal only when asked for.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shards.errors import BuildError
from shards.naming import MANIFEST

from .draft import DatasetPlan
from .files import file_state, is_remote, join, list_files
from .publish import describe_failures, is_published, staged_failures
from .submit import Submitted, flags_for, read_submitted, telling_what_goes_on
from .tally import Tally, kept_whole, parse_metrics
from .tasks import Recipe
from .workers import choose_workers, this_machine

#: Files of the folder that the two processes share: what is to be done; why it failed, if it did; what was counted; and
#: the id of a job that goes on elsewhere.
JOB, ERROR, COUNTED, SUBMITTED = "job.pickle", "error.txt", "counted.json", "submitted.txt"
WORKER_DIED = 70  # the child's status if one of its workers was killed
_LOG = "log.txt"
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 0.1, 10.0
_LISTINGS_APART = 20  # times what a listing takes: some 30 s for 10**5 shards in a bucket


@dataclass(frozen=True)
class Job:
    """What the child process is told."""

    recipe: Recipe
    output: str
    fingerprint: str
    workers: int
    shards: int
    beam_args: tuple[str, ...]
    verbose: bool


#: Called as the job goes on with the names of the shards that are finished so far.
OnShards = Callable[[set[str]], None]


def run_job(plan: DatasetPlan, lock: int | None, on_shards: OnShards | None = None) -> Tally:
    """Run the job of a staged plan until its dataset is published, in a process that shares the lock's descriptor.

    Returns what the runner counted: of each stage in the job, if it counts at all.
    Errors: BuildError, which says why, in bounded time whatever happens to the processes.
    """
    options = plan.options
    workers, fingerprint = worker_count(plan), plan.manifest.fingerprint
    shards = {shard.file for split in plan.manifest.splits for shard in split.shards}
    before = file_state(join(plan.output, MANIFEST))
    with tempfile.TemporaryDirectory(prefix="episode-windows-", ignore_cleanup_errors=True) as temporary:
        folder, job_file = Path(temporary), Path(temporary, SUBMITTED)
        beam_args = (*flags_for(plan, temporary), *options.beam_args)
        job = Job(plan.recipe, plan.output, fingerprint, workers, len(shards), beam_args, options.verbose)
        with _child(job, folder, lock) as child, telling_what_goes_on(job_file, options.beam_args):
            finished: set[str] = set()  # grows only: at the end the shards leave the staging folder
            submitted: Submitted | None = None
            while child.poll() is None:
                if submitted is None and (submitted := read_submitted(job_file, options.beam_args)) is not None:
                    with suppress(OSError):
                        print(f"Dataflow job {submitted.id}: {submitted.link}", file=sys.stderr, flush=True)
                begun = time.monotonic()
                if on_shards is not None:
                    with suppress(OSError):  # a listing that fails is no reason to end the job
                        finished |= shards & set(list_files(plan.staging))
                    on_shards(finished)
                wait = seconds_to_next(is_remote(plan.staging), time.monotonic() - begun)
                _wait(child, wait, job_file if submitted is None else None)
        # A job that was killed right after the last thing it had to do has done it all the same; and a runner may say
        # that a job is done of which it has lost a part.
        new = file_state(join(plan.output, MANIFEST)) != before
        if (child.returncode == 0 or new) and is_published(plan.output, plan.staging, fingerprint):
            if on_shards is not None:
                on_shards(shards)
            counted = folder / COUNTED
            return parse_metrics(json.loads(counted.read_text())) if counted.exists() else kept_whole(plan.manifest)
        if failures := staged_failures(plan.staging):
            raise BuildError(describe_failures(failures))
        why = _why(child.returncode, folder)
        if (submitted := read_submitted(job_file, options.beam_args)) is not None:
            why += f"\nThe Dataflow job is {submitted.link}; if it still runs: {submitted.cancel}"
        raise BuildError(why)


def seconds_to_next(remote: bool, took: float) -> float:
    """Seconds from one look at the finished shards to the next, if the last one took so many.

    >>> seconds_to_next(False, 0.001), seconds_to_next(True, 0.2), seconds_to_next(True, 30.0)
    (0.1, 10.0, 600.0)
    """
    return max(_REMOTE_POLL_SECONDS if remote else _POLL_SECONDS, _LISTINGS_APART * took)


def worker_count(plan: DatasetPlan) -> int:
    """The local workers of a plan's job."""
    shards = sum(split.shards for split in plan.splits)
    return choose_workers(plan.options.workers, this_machine(), shards, plan.recipe.shard_bytes, plan.manifest.bytes)


def _why(status: int, folder: Path) -> str:
    if (told := folder / ERROR).exists():
        why = told.read_text("utf-8")
    elif status == WORKER_DIED or status < 0:
        why = "a process of the job was killed, perhaps for want of memory: try fewer --workers or more shards"
    else:
        last = (folder / _LOG).read_text(errors="replace").splitlines()[-3:]
        why = "\n".join([f"the job's process ended with status {status}", *last])
    return f"{why}\nThe same command goes on with what is finished; with --verbose it shows Beam's log."


@contextmanager
def _child(job: Job, folder: Path, lock: int | None) -> Iterator["subprocess.Popen[bytes]"]:
    """The job's process; on leaving, it and all its workers are gone."""
    packages = str(Path(__file__).parent.parent)  # where this package was found, for the child and Beam's workers
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    (folder / JOB).write_bytes(pickle.dumps(job))
    with (folder / _LOG).open("wb") as quiet:
        output = None if job.verbose else quiet
        child = subprocess.Popen(
            [sys.executable, "-m", "pipeline.beam_process", str(folder), str(os.getpid())],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[] if lock is None else [lock],
        )
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _wait(child: "subprocess.Popen[bytes]", seconds: float, file: Path | None) -> None:
    """Wait so long, or until the process ends, or until there is a file that has not been there."""
    end = time.monotonic() + seconds
    while child.poll() is None and (left := end - time.monotonic()) > 0 and not (file and file.exists()):
        with suppress(subprocess.TimeoutExpired):
            child.wait(left if file is None else min(left, _POLL_SECONDS))
