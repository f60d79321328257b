"""The commands `python -m pipeline plan` and `python -m pipeline build`."""

import argparse
import json
import sys
from collections.abc import Sequence

from shards.command import Command, discard_output, run_command
from shards.manifest import MAX_NONFINITE
from shards.text import format_bytes, printable
from shards.windows import TAILS

from .files import is_remote
from .job import build, plan
from .options import (
    BuildOptions,
    parse_dtype,
    parse_features,
    parse_num_shards,
    parse_size,
    parse_splits,
    parse_windows_per_record,
)
from .preflight import check_output
from .progress import BuildProgress
from .report import describe_plan, format_plan
from .submit import check_launch

_FLAGS_FOR_BEAM = "Every other flag goes to Beam, such as --runner."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return run_command(_parser(), arguments, rest="beam_args")


def _parser() -> Command:
    parser = Command(prog="python -m pipeline", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run, does in ((_plan, "say what build would do, from headers alone"), (_build, "build a dataset")):
        command = commands.add_parser(
            run.__name__.strip("_"),
            help=does,
            description=does.capitalize() + ".",
            epilog=_FLAGS_FOR_BEAM,
            allow_abbrev=False,
        )
        _add_options(command)
        command.set_defaults(run=run)
        if run is _plan:
            command.add_argument("--json", action="store_true", help="print JSON")
        else:
            command.set_defaults(interrupted="; run the same command again, and it goes on with what is finished")
    return parser


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--input", action="append", required=True, metavar="PATH", help="a folder, a file or a glob with **; repeatable"
    )
    add("--output", required=True, metavar="DIR", help="the dataset's folder")
    add("--window_length", type=int, required=True, metavar="L", help="steps of a window")
    add("--shift", type=int, metavar="S", help="steps from one window to the next (default: L)")
    add("--stride", type=int, default=1, metavar="D", help="steps from one step of a window to its next (default: 1)")
    add("--tail", default="drop", choices=TAILS, help="what becomes of an episode's last steps (default: drop)")
    add("--windows_per_record", default="1", metavar="K or auto", help="store overlap once in records of K windows")
    add("--features", metavar="NAME,...", help="arrays of .npz files and fields of .npy files to take (default: all)")
    add("--dtype", default="", metavar="NAME=DTYPE,...", help="store features as other dtypes")
    add("--labels", metavar="CSV", help="a file with a column path and further columns, features of the episode")
    add("--name", help="the dataset's name (default: the output folder's)")
    add("--splits", metavar="NAME=FRACTION,... or dirs", help="such as train=0.8,test=0.2 (default: train=1)")
    add("--split_by", default="episode", choices=("episode", "time", "hash"), help="(default: episode)")
    add("--splits_from", metavar="COLUMN", help="the column of the labels that names the split of each episode")
    add("--group_by", metavar="COLUMN or REGEX", help="what episodes of one group, and so of one split, have in common")
    add("--purge", type=int, default=0, metavar="STEPS", help="left out between two splits of an episode split by time")
    add("--seed", type=int, default=0, help="of the splits and of the order on disk (default: 0)")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--num_shards", metavar="N or SPLIT=N,...", help="shards of each split")
    size.add_argument("--shard_size", default="128MiB", metavar="SIZE", help="about (default: 128MiB)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="local workers (default: one a core, 16 at most)",
    )
    add("--on_error", default="fail", choices=("fail", "skip"), help="for files that cannot be used (default: fail)")
    add("--nonfinite", default="warn", choices=("warn", "fail"), help="for NaN and infinity (default: warn)")
    add("--overwrite", action="store_true", help="replace a dataset, or an unfinished build, that is already there")
    add("--report", metavar="FILE", help="write what each stage took in and gave out, bytes and milliseconds, as JSON")
    add("--verbose", action="store_true", help="show Beam's log")


def _options(parsed: argparse.Namespace) -> BuildOptions:
    return BuildOptions(
        inputs=tuple(parsed.input),
        output=parsed.output,
        window_length=parsed.window_length,
        shift=parsed.shift,
        stride=parsed.stride,
        tail=parsed.tail,
        windows_per_record=parse_windows_per_record(parsed.windows_per_record),
        features=None if parsed.features is None else parse_features(parsed.features),
        dtype=parse_dtype(parsed.dtype) if parsed.dtype else {},
        labels=parsed.labels,
        name=parsed.name,
        splits=parsed.splits if parsed.splits in {None, "dirs"} else parse_splits(parsed.splits),
        split_by=parsed.split_by,
        splits_from=parsed.splits_from,
        group_by=parsed.group_by,
        purge=parsed.purge,
        seed=parsed.seed,
        num_shards=None if parsed.num_shards is None else parse_num_shards(parsed.num_shards),
        shard_size=parse_size(parsed.shard_size),
        workers=parsed.workers,
        on_error=parsed.on_error,
        nonfinite=parsed.nonfinite,
        overwrite=parsed.overwrite,
        report=parsed.report,
        beam_args=tuple(parsed.beam_args),
        verbose=parsed.verbose,
    )


def _plan(parsed: argparse.Namespace) -> int:
    described = describe_plan(plan(_options(parsed)))
    print(json.dumps(described, indent=1) if parsed.json else format_plan(described))
    return 0


def _build(parsed: argparse.Namespace) -> int:
    options = _options(parsed)
    check_launch(options.beam_args, options.inputs, options.output)  # before headers are read, which may take a while
    planned = plan(options)
    check_output(planned)
    try:
        print(format_plan(describe_plan(planned)), flush=True)
    except BrokenPipeError:  # whoever reads along has gone; the dataset is wanted all the same
        discard_output()
    with BuildProgress(planned.manifest) as progress:
        manifest = build(planned, progress.on_shards)
    along_time = {feature.name for feature in manifest.features if feature.shape}
    for each in manifest.nonfinite:
        first = f", the first in step {each.step}" if each.feature in along_time else ""
        path = printable(planned.episodes.paths[each.episode])
        print(f"warning: {path} has {each.values:,} NaN or infinite values in {each.feature}{first}", file=sys.stderr)
    if len(manifest.nonfinite) == MAX_NONFINITE:
        print(f"warning: there may be more; the first {MAX_NONFINITE} are told", file=sys.stderr)
    output, split = planned.options.output, manifest.splits[0].name
    cached = ', cache_dir="cache"' if is_remote(output) else ""
    print(
        f"\nwrote {manifest.windows:,} windows, {format_bytes(manifest.bytes)}, to {output}. Load them with\n\n"
        f"    from reader import load\n"
        f"    dataset = load({output!r}, split={split!r}, batch_size=256{cached})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
