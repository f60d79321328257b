"""The flags that a user gives for Beam."""

from collections.abc import Sequence
from itertools import pairwise

LOCAL_RUNNER = "FnApiRunner"  # "DirectRunner" would first try to download another runner, and ignore the workers


def flag_value(beam_args: Sequence[str], name: str) -> str | None:
    """The value of a flag for Beam, None if it is not there; the last one counts, as for Beam.

    >>> flag_value(["--runner=FlinkRunner", "--runner", "DaskRunner"], "runner")
    'DaskRunner'
    """
    found = None
    for argument, following in pairwise((*beam_args, "")):
        flag, equals, inline = argument.partition("=")
        if flag == f"--{name}":
            found = inline if equals else following
    return found


def runs_here(beam_args: Sequence[str]) -> bool:
    """Whether the job's runner starts its workers on this machine, by way of Beam's flags."""
    return flag_value(beam_args, "runner") in {None, LOCAL_RUNNER}
