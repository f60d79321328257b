"""Running the job in a process of its own, which can be watched, silenced and ended.

Beam runs in a child process (`python -m pipeline.runner`), with its local workers in the same process group. So a
worker that is killed, for which Beam itself would wait for ever, Ctrl-C, and the end of the launching process all end
the whole group in bounded time; and Beam's log goes to the terminal only when asked for.
"""

import io
import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from shards.cores import core_count
from shards.errors import BuildError, OptionError
from shards.naming import MANIFEST

from .draft import DatasetPlan
from .files import file_state, is_remote, join, list_files, quiet_log
from .options import BuildOptions
from .publish import describe_failures, is_published, staged_failures
from .tally import Tally, kept_whole, parse_metrics
from .tasks import Recipe

_LOCAL_RUNNER = "FnApiRunner"  # "DirectRunner" would first try to download another runner, and ignore the workers
_BYTES_WORTH_A_WORKER = 2**28  # which one process writes in the second or so that another takes to start
_WORKER_DIED = 70
_JOB, _METRICS = "job.pickle", "metrics.json"
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 0.1, 10.0


@dataclass(frozen=True)
class Job:
    """What the child process is told."""

    recipe: Recipe
    output: str
    fingerprint: str
    workers: int
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
    job = Job(plan.recipe, plan.output, fingerprint, workers, options.beam_args, options.verbose)
    shards = {shard.file for split in plan.manifest.splits for shard in split.shards}
    before = file_state(join(plan.output, MANIFEST))
    with tempfile.TemporaryDirectory(prefix="episode-windows-", ignore_cleanup_errors=True) as folder:
        told, log = Path(folder, "error.txt"), Path(folder, "log.txt")
        with _child(job, told, log, lock) as child:
            wait = _REMOTE_POLL_SECONDS if is_remote(plan.staging) else _POLL_SECONDS
            finished: set[str] = set()  # grows only: at the end the shards leave the staging folder
            while child.poll() is None:
                if on_shards is not None:
                    with suppress(OSError):  # a listing that fails is no reason to end the job
                        finished |= shards & set(list_files(plan.staging))
                    on_shards(finished)
                _wait(child, wait)
        # A job that was killed right after the last thing it had to do has done it all the same.
        new = file_state(join(plan.output, MANIFEST)) != before
        if child.returncode == 0 or (new and is_published(plan.output, plan.staging, fingerprint)):
            if on_shards is not None:
                on_shards(shards)
            counted = told.with_name(_METRICS)
            return parse_metrics(json.loads(counted.read_text())) if counted.exists() else kept_whole(plan.manifest)
        if failures := staged_failures(plan.staging):
            raise BuildError(describe_failures(failures))
        raise BuildError(_why(child.returncode, told.read_text("utf-8") if told.exists() else "", log))


def worker_count(plan: DatasetPlan) -> int:
    """The local processes: as many as asked for, or one a core, but none without a shard or, unasked, without work."""
    shards = sum(split.shards for split in plan.splits)
    if plan.options.workers is not None:
        return min(plan.options.workers, shards)
    return min(core_count(), shards, -(-plan.manifest.bytes // _BYTES_WORTH_A_WORKER))


def runs_here(beam_args: tuple[str, ...]) -> bool:
    """Whether the job's runner starts its workers on this machine, by way of Beam's flags."""
    for flag, value in pairwise((*beam_args, "")):
        name, equals, inline = flag.partition("=")
        if name == "--runner":
            return (inline if equals else value) == _LOCAL_RUNNER
    return True


def check_beam_args(beam_args: tuple[str, ...]) -> None:
    """OptionError for flags that Beam does not know either, and so would drop without a word."""
    if not beam_args:
        return
    for before, argument in pairwise(("", *beam_args)):
        if not argument.startswith("-") and not (before.startswith("--") and "=" not in before):
            globbed = "; quote a glob, so that the shell leaves it alone" if argument.endswith((".npy", ".npz")) else ""
            raise OptionError(f"unexpected argument {argument!r}: neither a flag nor the value of one{globbed}")
        if argument.startswith("-") and not argument.startswith("--"):
            raise OptionError(f"{argument} is no flag of this command; flags begin with two dashes")
    complaint = io.StringIO()
    try:
        with quiet_log(), redirect_stderr(complaint):
            from apache_beam.options.pipeline_options import PipelineOptions

            options = PipelineOptions(list(beam_args))
            known = options.get_all_options()
            unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))
    except ImportError:
        raise OptionError("flags for Beam need Apache Beam: pip install 'episode-windows[pipeline]'") from None
    except SystemExit:  # argparse's way to refuse a value
        raise OptionError(complaint.getvalue().rpartition("error: ")[2].strip()) from None
    if unknown:
        flags = ["input", *(field.name for field in fields(BuildOptions) if field.name != "inputs")]
        near = get_close_matches(unknown[0].replace("-", "_"), flags, 1)
        meant = f"; did you mean --{near[0]}?" if near else ""
        raise OptionError(f"--{unknown[0]} is a flag neither of this command nor of Beam{meant}")


def _why(status: int, told: str, log: Path) -> str:
    if told:
        why = told
    elif status == _WORKER_DIED or status < 0:
        why = "a process of the job was killed, perhaps for want of memory: try fewer --workers or more shards"
    else:
        last = log.read_text(errors="replace").splitlines()[-3:]
        why = "\n".join([f"the job's process ended with status {status}", *last])
    return f"{why}\nThe same command goes on with what is finished; with --verbose it shows Beam's log."


@contextmanager
def _child(job: Job, told: Path, log: Path, lock: int | None) -> Iterator["subprocess.Popen[bytes]"]:
    """The job's process; on leaving, it and all its workers are gone."""
    packages = str(Path(__file__).parent.parent)  # where this package was found, for the child and Beam's workers
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    told.with_name(_JOB).write_bytes(pickle.dumps(job))
    arguments = [str(told), str(os.getpid())]
    with log.open("wb") as quiet:
        output = None if job.verbose else quiet
        child = subprocess.Popen(
            [sys.executable, "-m", "pipeline.runner", *arguments],
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


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def _run_in_child(job: Job) -> dict[str, int]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from .transforms import METRICS, write_dataset

    arguments = list(job.beam_args)
    if runs_here(job.beam_args):
        mode = "multi_processing" if job.workers > 1 else "in_memory"
        defaults = {"runner": _LOCAL_RUNNER, "direct_num_workers": job.workers, "direct_running_mode": mode}
        arguments = [*(f"--{name}={value}" for name, value in defaults.items()), *arguments]
    pipeline = beam.Pipeline(options=PipelineOptions(arguments))
    write_dataset(pipeline, job.recipe, job.output, job.fingerprint)
    result = pipeline.run()
    result.wait_until_finish()
    try:
        counters = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(METRICS))["counters"]
    except NotImplementedError:  # some runners have none
        return {}
    return {counter.key.metric.name: counter.committed or counter.attempted or 0 for counter in counters}


def _die_with_parent(parent: int, folder: Path) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)  # which nobody else will
    os.killpg(0, signal.SIGKILL)


def _worker_died(error: "threading.ExceptHookArgs") -> None:
    threading.__excepthook__(error)
    # Beam notices the end of a worker only here, in the thread that waits for it, and then waits for its results.
    if "Worker subprocess exited" in str(error.exc_value):
        os._exit(_WORKER_DIED)


def _main(told: str, parent: str) -> None:
    job: Job = pickle.loads(Path(told).with_name(_JOB).read_bytes())  # which the launching process has just written
    threading.Thread(target=_die_with_parent, args=[int(parent), Path(told).parent], daemon=True).start()
    threading.excepthook = _worker_died
    if job.verbose:
        logging.basicConfig(level=logging.INFO)
    try:
        counted = _run_in_child(job)
        Path(told).with_name(_METRICS).write_text(json.dumps(counted))
    except Exception as error:
        Path(told).write_text(_last_words(error), "utf-8", "backslashreplace")
        raise


def _last_words(error: Exception) -> str:
    """What an error says, without what Beam puts around it: whole tracebacks, the kind of error and its stage."""
    lines = str(error).strip().splitlines() or [repr(error)]
    return re.sub(r"^shards\.errors\.\w+: | \[while running '[^']*'\]$", "", lines[-1])


if __name__ == "__main__":
    _main(*sys.argv[1:])
