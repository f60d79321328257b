"""What of the flags for Beam is refused before anything is read."""

import io
from contextlib import redirect_stderr
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise

from shards.errors import OptionError

from .dask_runner import check_scheduler, import_dask, runs_on_dask
from .files import quiet_log
from .options import BuildOptions


def check_beam_args(beam_args: tuple[str, ...]) -> None:
    """OptionError for flags that Beam does not know either, and so would drop without a word."""
    if not beam_args:
        return
    if not runs_on_dask(beam_args) and (dask := [flag for flag in beam_args if flag.startswith("--dask_")]):
        raise OptionError(f"{dask[0].partition('=')[0]} is a flag of Dask's runner: add --runner=DaskRunner")
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

            if runs_on_dask(beam_args):
                import_dask()
            options = PipelineOptions(list(beam_args))
            known = options.get_all_options()
            unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))
    except ImportError:
        raise OptionError("flags for Beam need Apache Beam: pip install 'episode-windows[pipeline]'") from None
    except SystemExit:  # argparse's way to refuse a value
        raise OptionError(complaint.getvalue().rpartition("error: ")[2].strip()) from None
    if runs_on_dask(beam_args):
        check_scheduler(beam_args)
    if unknown:
        flags = ["input", *(field.name for field in fields(BuildOptions) if field.name != "inputs")]
        near = get_close_matches(unknown[0].replace("-", "_"), flags, 1)
        meant = f"; did you mean --{near[0]}?" if near else ""
        raise OptionError(f"--{unknown[0]} is a flag neither of this command nor of Beam{meant}")
