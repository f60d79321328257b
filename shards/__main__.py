"""The command `python -m shards info`."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from .command import Command, run_command
from .manifest import Manifest, load_manifest
from .text import format_bytes, format_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Command(prog="python -m shards", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="print what a dataset holds", allow_abbrev=False)
    info.add_argument("path", metavar="DIR", help="the dataset's folder")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    return run_command(parser, arguments)


def _info(parsed: argparse.Namespace) -> int:
    manifest = load_manifest(parsed.path)
    print(json.dumps(describe(manifest), indent=1) if parsed.json else format_info(manifest))
    return 0


def describe(manifest: Manifest) -> dict[str, Any]:
    """What a dataset holds, as JSON types; sizes in bytes."""
    return {
        "name": manifest.name,
        "window": {"length": manifest.length, "shift": manifest.shift},
        "seed": manifest.seed,
        "record_bytes": manifest.layout.record_bytes,
        "features": [
            {
                "name": field.feature.name,
                "dtype": field.feature.dtype,
                "shape": list(field.feature.shape),
                "encoding": field.encoding,
                "offset": field.offset,
            }
            for field in manifest.layout.fields
        ],
        "splits": [
            {
                "name": split.name,
                "episodes": split.episodes,
                "windows": split.windows,
                "shards": len(split.shards),
                "bytes": split.bytes,
            }
            for split in manifest.splits
        ],
        "windows": manifest.windows,
        "bytes": manifest.bytes,
        "source": vars(manifest.source) | {"step_shape": list(manifest.source.step_shape)},
        "fingerprint": manifest.fingerprint,
    }


def format_info(manifest: Manifest) -> str:
    """The same as a text of a few lines."""
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
        )
        for field in manifest.layout.fields
    ]
    return "\n".join(
        [
            f"dataset   {manifest.name}, seed {manifest.seed}, fingerprint {manifest.fingerprint[:16]}",
            f"source    {source.episodes:,} episodes, {source.steps:,} steps, {source.dtype}"
            + (f"; left out: {', '.join(left_out)}" if left_out else "")
            + (f"; {source.uncovered:,} steps lie in no window" if source.uncovered else ""),
            f"windows   {manifest.windows:,} of {manifest.length} steps, {manifest.shift} apart;"
            f" {format_bytes(manifest.bytes)}",
            "",
            format_table(("split", "episodes", "windows", "shards", "size"), splits),
            "",
            f"a record has {manifest.layout.record_bytes} bytes",
            format_table(("feature", "dtype", "shape", "encoding", "offset"), features),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
