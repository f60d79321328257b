"""A plan, told to a machine (`describe_plan`) and to a person (`format_plan`)."""

from math import prod
from typing import Any

import numpy as np

from shards.features import DTYPES
from shards.text import format_bytes, format_table
from shards.windows import count_windows

from .draft import DatasetPlan
from .files import free_bytes

_EXAMPLES = 3


def describe_plan(plan: DatasetPlan) -> dict[str, Any]:
    """What a build of this plan would do, as JSON types; sizes in bytes, `ratio` is output to input."""
    episodes, options, source, manifest = plan.episodes, plan.options, plan.source, plan.manifest
    windows = count_windows(episodes.steps, options.window_length, options.step_shift)
    short = [i for i in np.flatnonzero(windows == 0).tolist() if i not in episodes.problems]
    input_bytes = source.steps * prod(source.step_shape) * DTYPES[source.dtype].itemsize
    return {
        "name": manifest.name,
        "output": options.output,
        "window": {"length": manifest.length, "shift": manifest.shift},
        "episodes": {"found": len(episodes.paths), "used": source.episodes},
        "dtype": source.dtype,
        "step_shape": list(source.step_shape),
        "steps": source.steps,
        "input_bytes": input_bytes,
        "uncovered_steps": source.uncovered,
        "short": [episodes.paths[i] for i in short],
        "skipped": {episodes.paths[i]: why for i, why in episodes.problems.items()},
        "record_bytes": manifest.layout.record_bytes,
        "splits": [
            {
                "name": split.name,
                "fraction_asked": split.fraction,
                "fraction": split.windows / manifest.windows,
                "episodes": split.episodes,
                "windows": split.windows,
                "shards": len(split.shards),
                "bytes": split.bytes,
            }
            for split in manifest.splits
        ],
        "windows": manifest.windows,
        "bytes": manifest.bytes,
        "ratio": manifest.bytes / input_bytes,
        "free_bytes": free_bytes(options.output),
    }


def format_plan(described: dict[str, Any]) -> str:
    """The same as a text of a few lines."""
    window, episodes = described["window"], described["episodes"]
    step = f"{described['dtype']} of shape ({', '.join(['steps', *map(str, described['step_shape'])])})"
    lines = [
        f"dataset   {described['name']} in {described['output']}",
        f"episodes  {episodes['used']} of {episodes['found']} used: {described['steps']:,} steps,"
        f" {format_bytes(described['input_bytes'])}, {step}",
        f"windows   {described['windows']:,} of {window['length']} steps, {window['shift']} apart",
    ]
    if described["short"]:
        lines.append(_listed("too short", "episodes have no window", described["short"]))
    if described["skipped"]:
        reasons = [f"{path} {why}" for path, why in described["skipped"].items()]
        lines.append(_listed("skipped", "files cannot be used", reasons))
    if described["uncovered_steps"]:
        share = described["uncovered_steps"] / described["steps"]
        lines.append(f"uncovered {described['uncovered_steps']:,} steps ({share:.1%}) lie in no window")
    rows = [
        (
            split["name"],
            f"{split['episodes']:,}",
            f"{split['windows']:,}",
            f"{split['fraction']:.1%} ({float(split['fraction_asked']):.4g} asked)",
            f"{split['shards']:,}",
            format_bytes(split["bytes"]),
        )
        for split in described["splits"]
    ]
    lines += ["", format_table(("split", "episodes", "windows", "share", "shards", "size"), rows), ""]
    free = described["free_bytes"]
    lines.append(
        f"output    {format_bytes(described['bytes'])}, {described['ratio']:.2f} times the input;"
        f" free there: {'unknown' if free is None else format_bytes(free)}"
    )
    return "\n".join(lines)


def _listed(label: str, what: str, items: list[str]) -> str:
    more = f" and {len(items) - _EXAMPLES} more (--json lists them)" if len(items) > _EXAMPLES else ""
    return f"{label:<9} {len(items)} {what}: {', '.join(items[:_EXAMPLES])}{more}"
