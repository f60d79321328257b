"""The commands `python -m pipeline plan` and `python -m pipeline build`."""

import argparse
import json
import sys
from collections.abc import Sequence

from shards.command import Command, discard_output, run_command
from shards.text import format_bytes

from .files import is_remote
from .job import build, plan
from .options import BuildOptions, parse_num_shards, parse_size, parse_splits
from .progress import BuildProgress
from .report import describe_plan, format_plan

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
            command.set_defaults(interrupted="; no dataset was written. Run the same command again to build it")
    return parser


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--input", action="append", required=True, metavar="PATH", help="a folder, a file or a glob with **; repeatable"
    )
    add("--output", required=True, metavar="DIR", help="the dataset's folder")
    add("--window_length", type=int, required=True, metavar="L", help="steps of a window")
    add("--shift", type=int, metavar="S", help="steps from one window to the next (default: L)")
    add("--name", help="the dataset's name (default: the output folder's)")
    add("--splits", default="train=1", metavar="NAME=FRACTION,...", help="such as train=0.8,validation=0.1,test=0.1")
    add("--seed", type=int, default=0, help="of the splits and of the order on disk (default: 0)")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--num_shards", metavar="N or SPLIT=N,...", help="shards of each split")
    size.add_argument("--shard_size", default="128MiB", metavar="SIZE", help="about (default: 128MiB)")
    add("--workers", type=int, metavar="N", help="local processes (default: one a core)")
    add("--on_error", default="fail", choices=("fail", "skip"), help="for files that cannot be used (default: fail)")
    add("--overwrite", action="store_true", help="replace a dataset that is already there")
    add("--verbose", action="store_true", help="show Beam's log")


def _options(parsed: argparse.Namespace) -> BuildOptions:
    return BuildOptions(
        inputs=tuple(parsed.input),
        output=parsed.output,
        window_length=parsed.window_length,
        shift=parsed.shift,
        name=parsed.name,
        splits=parse_splits(parsed.splits),
        seed=parsed.seed,
        num_shards=None if parsed.num_shards is None else parse_num_shards(parsed.num_shards),
        shard_size=parse_size(parsed.shard_size),
        workers=parsed.workers,
        on_error=parsed.on_error,
        overwrite=parsed.overwrite,
        beam_args=tuple(parsed.beam_args),
        verbose=parsed.verbose,
    )


def _plan(parsed: argparse.Namespace) -> int:
    described = describe_plan(plan(_options(parsed)))
    print(json.dumps(described, indent=1) if parsed.json else format_plan(described))
    return 0


def _build(parsed: argparse.Namespace) -> int:
    planned = plan(_options(parsed))
    try:
        print(format_plan(describe_plan(planned)), flush=True)
    except BrokenPipeError:  # whoever reads along has gone; the dataset is wanted all the same
        discard_output()
    with BuildProgress(planned.manifest) as progress:
        manifest = build(planned, progress.on_shards)
    output, split = planned.options.output, manifest.splits[0].name
    local = f"a local copy of {output}" if is_remote(output) else output
    copied = "Copy the folder to a local disk and load it" if is_remote(output) else "Load them"
    print(
        f"\nwrote {manifest.windows:,} windows, {format_bytes(manifest.bytes)}, to {output}. {copied} with\n\n"
        f"    from reader import load\n"
        f"    dataset = load({local!r}, split={split!r}, batch_size=256)\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
