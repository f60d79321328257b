"""Launching a job on Dataflow, and what the launching process knows of it: it may end while the job goes on."""

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shards.errors import BuildError, OptionError

from .dataflow import Facts, build_mark, check_flags, default_flags, is_dataflow
from .draft import DatasetPlan
from .files import quiet_log
from .wheel import installed_metadata, write_wheel


class Submitted(NamedTuple):
    """A job that Dataflow has taken."""

    id: str
    project: str
    region: str

    @property
    def link(self) -> str:
        """Its page in the console."""
        return f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}?project={self.project}"

    @property
    def cancel(self) -> str:
        """The command that ends it."""
        return f"gcloud dataflow jobs cancel {self.id} --project={self.project} --region={self.region}"

    @property
    def goes_on(self) -> str:
        """What becomes of it without the process that launched it."""
        return (
            f"the job {self.id} goes on without this command, and publishes the dataset at its end.\n"
            f"  see it:     {self.link}\n"
            f"  cancel it:  {self.cancel}\n"
            "The same command again waits for it while it runs; later it finds the dataset, or goes on with what is"
            " finished"
        )


def read_submitted(file: Path, beam_args: Sequence[str]) -> Submitted | None:
    """The job that `submit` told of in a file, if it has."""
    job = file.read_text() if file.exists() else ""
    given = given_flags(beam_args) if job else {}
    return Submitted(job, given["project"], given["region"]) if job else None


@contextmanager
def telling_what_goes_on(file: Path, beam_args: Sequence[str]) -> Iterator[None]:
    """Let an interrupt tell, as its second argument, of a job that goes on elsewhere; the first is the signal."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        submitted = read_submitted(file, beam_args)
        if submitted is None:
            raise
        raise KeyboardInterrupt(*(interrupt.args or (signal.SIGINT,)), f"; {submitted.goes_on}") from None


def on_dataflow(beam_args: Sequence[str]) -> bool:
    """Whether Beam's flags ask for Dataflow."""
    return bool(beam_args) and is_dataflow(given_flags(beam_args))


def given_flags(beam_args: Sequence[str]) -> dict[str, Any]:
    """What the user's flags for Beam say, by Beam's names."""
    with quiet_log():
        from apache_beam.options.pipeline_options import PipelineOptions

        return dict(PipelineOptions(list(beam_args)).get_all_options(drop_default=True))


def flags_for(plan: DatasetPlan, folder: str) -> list[str]:
    """The flags that a job for Dataflow needs besides the user's; none for another. Its wheel comes into `folder`."""
    if not on_dataflow(plan.options.beam_args):
        return []
    shards = [shard.bytes for split in plan.manifest.splits for shard in split.shards]
    facts = Facts(plan.options.dataset_name, plan.staging, len(shards), max(shards))
    return [*default_flags(given_flags(plan.options.beam_args), facts), f"--extra_package={write_wheel(folder)}"]


def check_launch(beam_args: Sequence[str], inputs: Sequence[str], output: str) -> None:
    """OptionError unless a job for Dataflow, if it is one, can be launched from here; nothing is written."""
    if not on_dataflow(beam_args):
        return
    check_flags(given_flags(beam_args), inputs, output)
    installed_metadata()  # which the wheel for the workers is made of
    try:
        with quiet_log():
            import_module("apache_beam.runners.dataflow.internal.apiclient")
    except ImportError:
        raise OptionError("DataflowRunner needs Beam's Google part: pip install 'episode-windows[gcp]'") from None
    from apache_beam.options.pipeline_options import PipelineOptions, TestOptions
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    options = PipelineOptions(list(beam_args))
    options.view_as(TestOptions).dry_run = True  # no request for now
    with quiet_log():
        complaints = PipelineOptionsValidator(options, DataflowRunner()).validate()
    if complaints:
        raise OptionError("; ".join(complaints))


def submit(pipeline: Any, staging: str, submitted: Path) -> Any:
    """Submit the job, or find that of this very build which is active; its id goes into a file.

    Errors: BuildError for an active job of that name that is another, or cannot be found.
    """
    try:
        result = pipeline.run()
    except Exception as error:
        name = pipeline.options.get_all_options()["job_name"]
        active = re.search(r"\b\d{4}-\d\d-\d\d_\w+-\d+", str(error))
        if not re.search("already (an )?active job", str(error)):
            raise
        if active is None or not name.endswith(build_mark(staging)):
            raise BuildError(f"a Dataflow job named {name} is active: wait for its end, or cancel it") from None
        result = _active_job(pipeline, active[0])
    if hasattr(result, "job_id"):  # not that of a dry run
        submitted.with_suffix(".tmp").write_text(result.job_id())
        submitted.with_suffix(".tmp").rename(submitted)  # it is read as soon as it is there
    return result


def _active_job(pipeline: Any, job: str) -> Any:
    from apache_beam.runners.dataflow.dataflow_metrics import DataflowMetrics
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult

    runner = pipeline.runner  # which has made its client before it was refused
    result = DataflowPipelineResult(runner.dataflow_client.get_job(job), runner, pipeline.options)
    result.metric_results = DataflowMetrics(runner.dataflow_client, result)
    return result
