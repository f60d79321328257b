"""What Beam's DaskRunner needs beyond the flags that the user gave, and what its errors mean.

Beam makes one Dask task of 128 elements that are there at the beginning, and spreads nothing later on: on Dask the plan
comes in as many parts as there are to be tasks. A task that was lost with its worker runs again, and finds the shards
that are finished.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from shards.errors import BuildError, OptionError
from shards.naming import STAGING

from .beam_flags import flag_value

_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"  # Beam does not know it by its last name
_PARTS = 128  # at most, unasked: gathering from n takes 2 n sqrt(n) tasks more; measured: 80 s for 512 of them


def runs_on_dask(beam_args: Sequence[str]) -> bool:
    """Whether the job's runner is Beam's DaskRunner."""
    return (flag_value(beam_args, "runner") or "").rpartition(".")[2].lower() in {"dask", "daskrunner"}


def dask_flags(beam_args: Sequence[str], shards: int) -> tuple[list[str], int]:
    """The flags for Beam, and the parts in which the plan comes in: unless asked otherwise, a shard is a task.

    >>> dask_flags(["--dask_npartitions=8"], 40)
    (['--dask_npartitions=8', '--runner=apache_beam.runners.dask.dask_runner.DaskRunner'], 8)
    """
    flags, parts = [*beam_args, f"--runner={_RUNNER}"], min(shards, _PARTS)
    asked = flag_value(beam_args, "dask_npartitions")
    if flag_value(beam_args, "dask_partition_size") is not None:  # in shards
        return flags, shards
    if asked is not None:
        return flags, max(1, min(shards, int(asked)))
    return [f"--dask_npartitions={parts}", *flags], parts


def import_dask() -> None:
    """Make Beam know the flags of its DaskRunner. Errors: OptionError where Dask is not installed."""
    try:
        import dask.bag
        import dask.distributed  # noqa: F401
        from apache_beam.runners.dask import dask_runner  # noqa: F401
    except ImportError as error:
        raise OptionError(f"DaskRunner needs Dask ({error}): pip install 'episode-windows[dask]'") from None


def check_scheduler(beam_args: Sequence[str]) -> None:
    """OptionError for a scheduler that cannot be: Dask would wait for its file for ever."""
    from distributed.comm.addressing import get_address_host_port

    address, file = flag_value(beam_args, "dask_client_address"), flag_value(beam_args, "dask_scheduler_file")
    if file is not None and not os.path.isfile(file):
        raise OptionError(f"--dask_scheduler_file {file}: there is no such file")
    if address is not None:
        try:
            get_address_host_port(address)
        except ValueError as error:
            raise OptionError(f"--dask_client_address {address}: {error}; give tcp://HOST:PORT") from None


def check_result(result: Any) -> None:
    """BuildError unless Dask has really done all: it ends in silence, too, when its scheduler is lost."""
    if any(future.status != "finished" for future in result.futures):
        raise BuildError("the connection to Dask's scheduler was lost")


def describe_dask_error(error: BaseException) -> str | None:
    """What an error of Dask's own means; None for any other."""
    chain = list(_chain(error))
    names, text = {type(each).__name__ for each in chain}, str(error)
    if isinstance(error, FileNotFoundError) and f"/{STAGING}/" in text:
        return f"a worker does not find {error.filename}: --output has to be a folder that all machines share, or a URL"
    if text.startswith("Timed out trying to connect"):
        return f"no Dask scheduler answers ({text[0].lower()}{text[1:]})"
    if names & {"KilledWorker"}:
        return (
            "a shard could not be written, since the Dask workers that tried to died one after another, perhaps for"
            " want of memory: try fewer threads a worker or more shards"
        )
    if names & {"CancelledError", "FutureCancelledError", "FuturesCancelledError", "CommClosedError"}:
        return "the connection to Dask's scheduler was lost"
    cause = chain[-1]
    if isinstance(cause, ImportError) or (isinstance(cause, AttributeError) and "Can't get attribute" in str(cause)):
        return (
            f"the scheduler or a worker of Dask lacks what the job needs ({cause}): install the same version of"
            " episode-windows[dask] on all machines"
        )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
