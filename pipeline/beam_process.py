"""The job's process: it hands the graph to Beam, waits for its end, and tells its parent why it failed.

`python -m pipeline.beam_process FOLDER PARENT`: runner.py starts it, and describes what is in the folder.
"""

import json
import logging
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from shards.errors import BuildError

from .beam_flags import LOCAL_RUNNER, runs_here
from .dask_runner import check_result, dask_flags, describe_dask_error, import_dask, runs_on_dask
from .runner import COUNTED, ERROR, JOB, SUBMITTED, WORKER_DIED, Job
from .submit import on_dataflow, submit
from .worker_pools import describe_grpc_error, pools_of, pools_runner
from .workers import running_mode


def _run(job: Job, submitted: Path) -> dict[str, int]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from .transforms import METRICS, write_dataset

    arguments, parts, on_dask = list(job.beam_args), 1, runs_on_dask(job.beam_args)
    if on_dask:
        import_dask()
        arguments, parts = dask_flags(job.beam_args, job.shards)
    pools = pools_of(job.beam_args) if runs_here(job.beam_args) else []
    if pools:
        workers = min(max(job.workers, len(pools)), job.shards)
        arguments = [f"--direct_num_workers={workers}", "--direct_running_mode=in_memory", *arguments]
    elif runs_here(job.beam_args):
        mode = running_mode(job.workers)
        defaults = {"runner": LOCAL_RUNNER, "direct_num_workers": job.workers, "direct_running_mode": mode}
        arguments = [*(f"--{name}={value}" for name, value in defaults.items()), *arguments]
    runner = pools_runner(pools) if pools else None  # else the one that the flags name
    pipeline = beam.Pipeline(runner, options=PipelineOptions(arguments))
    write_dataset(pipeline, job.recipe, job.output, job.fingerprint, parts)
    try:
        result = submit(pipeline, job.recipe.staging, submitted) if on_dataflow(job.beam_args) else pipeline.run()
        result.wait_until_finish()
    except Exception as error:
        if why := describe_dask_error(error) if on_dask else describe_grpc_error(error):
            raise BuildError(why) from error
        raise
    if on_dask:
        check_result(result)
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
        os._exit(WORKER_DIED)


def _main(folder: Path, parent: int) -> None:
    job: Job = pickle.loads((folder / JOB).read_bytes())  # which the launching process has just written
    threading.Thread(target=_die_with_parent, args=[parent, folder], daemon=True).start()
    threading.excepthook = _worker_died
    if job.verbose:
        logging.basicConfig(level=logging.INFO)
    try:
        counted = _run(job, folder / SUBMITTED)
        (folder / COUNTED).write_text(json.dumps(counted))
    except Exception as error:
        (folder / ERROR).write_text(_last_words(error), "utf-8", "backslashreplace")
        raise


def _last_words(error: Exception) -> str:
    """What an error says, without what Beam puts around it: whole tracebacks, the kind of error and its stage."""
    lines = str(error).strip().splitlines() or [repr(error)]
    last = lines[0].removesuffix(", Error:") if lines[-1] == "None" else lines[-1]  # Dataflow has no message at times
    return re.sub(r"^shards\.errors\.\w+: | \[while running '[^']*'\]$", "", last)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
