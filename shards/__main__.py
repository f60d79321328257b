"""The commands `python -m shards info` and `python -m shards verify`."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from .command import Command, discard_output, run_command
from .cores import core_count
from .manifest import MAX_NONFINITE, Manifest
from .manifest_file import feature_documents, load_manifest, window_document
from .progress_line import ProgressLine
from .remote import place_of
from .statistics import statistics_document
from .text import format_bytes, format_table, format_window, printable
from .verify.examine import examine, shards_bytes
from .verify.side_by_side import Run, in_processes, in_threads

# Checking a record holds Python's lock for about a microsecond; to start processes takes one or two seconds.
_PROCESSES_FROM = 2**21  # records
_COMPONENTS = 16  # that are listed one by one; --json lists all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Command(prog="python -m shards", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="print what a dataset holds", allow_abbrev=False)
    info.add_argument("path", metavar="DIR", help="the dataset's folder")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    check = commands.add_parser("verify", help="prove that a dataset is what it says", allow_abbrev=False)
    check.add_argument("path", metavar="DIR", help="the dataset's folder")
    check.add_argument("--source", metavar="ROOT", help="compare every window with the episode files in this folder")
    check.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="how many shards are checked side by side; one a core unless told otherwise",
    )
    check.set_defaults(run=_verify)
    return run_command(parser, arguments)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _info(parsed: argparse.Namespace) -> int:
    manifest = load_manifest(parsed.path)
    print(json.dumps(describe(manifest), indent=1) if parsed.json else format_info(manifest))
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    folder = place_of(parsed.path)
    manifest = load_manifest(folder)
    nbytes, shards = shards_bytes(folder, manifest), sum(len(split.shards) for split in manifest.splits)
    records = nbytes // manifest.layout.record_bytes
    workers = min(parsed.workers or core_count(), shards)
    run: Run = partial(in_threads, workers=parsed.workers)
    if workers > 1 and records >= _PROCESSES_FROM:
        run = partial(in_processes, workers=workers)
    passes = 1 if parsed.source is None else 2
    line = ProgressLine(nbytes)
    try:
        findings = examine(folder, parsed.source, run, lambda done: line.show(done // passes))
    finally:
        line.clear()
    try:
        for fault in findings.faults:
            print(printable(fault))
        for note in findings.notes:
            print(f"note: {printable(note)}")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, but what is found counts
        discard_output()
    if findings.faults:
        print(f"{parsed.path}: {len(findings.faults)} faults; copy or build the dataset again", file=sys.stderr)
        return 1
    grouped = "" if manifest.splitting.group_by is None else ", and no group,"
    source = "" if parsed.source is None else f"; each has the bits of its episode's file in {parsed.source}"
    print(
        f"{parsed.path} is whole: {manifest.windows:,} windows in {shards:,} shards,"
        f" each as the manifest has it; no step{grouped} is in two splits{source}"
    )
    return 0


def describe(manifest: Manifest) -> dict[str, Any]:
    """What a dataset holds, as JSON types; sizes in bytes."""
    return {
        "name": manifest.name,
        "window": window_document(manifest.window),
        "seed": manifest.seed,
        "record_bytes": manifest.layout.record_bytes,
        "features": feature_documents(manifest.layout),
        "splitting": vars(manifest.splitting),
        "splits": [
            {
                "name": split.name,
                "fraction_asked": split.fraction,
                "episodes": split.episodes,
                "records": split.records,
                "windows": split.windows,
                "shards": len(split.shards),
                "bytes": split.bytes,
            }
            for split in manifest.splits
        ],
        "windows": manifest.windows,
        "bytes": manifest.bytes,
        "source": vars(manifest.source),
        "statistics": {
            "split": manifest.training_split,
            "features": list(map(statistics_document, manifest.statistics)),
        },
        "nonfinite": list(map(vars, manifest.nonfinite)),
        "fingerprint": manifest.fingerprint,
    }


def format_info(manifest: Manifest) -> str:
    """The same as a text of some lines."""
    source = manifest.source
    left_out = [f"{source.short} too short"] * bool(source.short) + [f"{source.skipped} skipped"] * bool(source.skipped)
    splits = [
        (split.name, f"{split.episodes:,}", f"{split.windows:,}", f"{len(split.shards):,}", format_bytes(split.bytes))
        for split in manifest.splits
    ]
    features = [
        (
            field.feature.name,
            field.feature.dtype,
            "(" + ", ".join(map(str, field.feature.shape)) + ")",
            field.encoding,
            str(field.offset),
            str(len(field.feature.classes) or ""),
        )
        for field in manifest.layout.fields
    ]
    splitting = manifest.splitting
    by = {"episode": "whole episodes", "given": "as given"}.get(splitting.by, splitting.by)
    lines = [
        f"dataset   {manifest.name}, seed {manifest.seed}, fingerprint {manifest.fingerprint[:16]}",
        f"source    {source.episodes:,} episodes, {source.steps:,} steps, {format_bytes(source.bytes)}"
        + (f"; left out: {', '.join(left_out)}" if left_out else "")
        + (f"; {source.uncovered:,} steps lie in no window" if source.uncovered else ""),
        f"windows   {manifest.windows:,} {format_window(window_document(manifest.window))};"
        f" {format_bytes(manifest.bytes)}",
        f"split by  {by}"
        + (f", grouped by {printable(splitting.group_by)}" if splitting.group_by is not None else "")
        + (f", {splitting.purge} steps purged" if splitting.purge else ""),
        "",
        format_table(("split", "episodes", "windows", "shards", "size"), splits),
        "",
        f"a record has {manifest.layout.record_bytes} bytes",
        format_table(("feature", "dtype", "shape", "encoding", "offset", "classes"), features),
    ]
    if manifest.statistics:
        lines += ["", f"of {manifest.training_split}, each step once", _format_statistics(manifest)]
    for each in manifest.nonfinite:
        where = f"episode {each.episode}, {each.feature}, from step {each.step} on"
        lines.append(f"not finite: {each.values:,} values in {where}")
    if len(manifest.nonfinite) == MAX_NONFINITE:
        lines.append(f"there may be more that is not finite; the first {MAX_NONFINITE} are told")
    return "\n".join(lines)


def _format_statistics(manifest: Manifest) -> str:
    header = ("feature", "count", "mean", "std", "min", "max", "nan", "infinite")
    rows = []
    for statistics in manifest.statistics:
        parts = [(statistics.feature, statistics.total)]
        if 1 < len(statistics.components) <= _COMPONENTS:
            parts += [(f"  [{i}]", summary) for i, summary in enumerate(statistics.components)]
        for name, summary in parts:
            numbers = (f"{getattr(summary, key):.6g}" for key in ("mean", "std", "min", "max"))
            rows.append((name, f"{summary.count:,}", *numbers, f"{summary.nan:,}", f"{summary.infinite:,}"))
    return format_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
