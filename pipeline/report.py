"""A plan, told to a machine (`describe_plan`) and to a person (`format_plan`)."""

from dataclasses import replace
from typing import Any

import numpy as np

from shards.errors import EpisodeError
from shards.features import Feature
from shards.manifest_file import window_document
from shards.record import record_layout
from shards.text import format_bytes, format_table, format_window, printable
from shards.windows import TAILS

from .draft import DatasetPlan, features_of
from .episodes import describe_array
from .files import free_bytes
from .job import choose_per_record
from .plan import SPAN_SOURCE_BYTES
from .splits import split_by_time

_EXAMPLES = 3
_LARGE_RATIO = 4  # output to input, from which on sharing records is recommended


def describe_plan(plan: DatasetPlan) -> dict[str, Any]:
    """What a build of this plan would do, as JSON types; sizes in bytes, `ratio` is output to input.

    `tails` say what each policy for the last steps would make of them: windows, zeros filled in, steps that are in no
    window (those of episodes that are too short, or purged, as well), episodes without a window.
    """
    episodes, options, source, manifest = plan.episodes, plan.options, plan.source, plan.manifest
    unused = np.delete(np.arange(len(episodes.paths)), plan.used)
    return {
        "name": manifest.name,
        "output": options.output,
        "window": window_document(plan.window),
        "episodes": {"found": len(episodes.paths), "used": source.episodes},
        "features": [
            *(describe_array(array, named=True) for array in episodes.arrays),
            *(_describe_label(column.feature) for column in episodes.labels),
        ],
        "steps": source.steps,
        "input_bytes": source.bytes,
        "uncovered_steps": source.uncovered,
        "tails": _tails(plan),
        "short": [episodes.paths[i] for i in unused.tolist() if i not in episodes.problems],
        "skipped": {episodes.paths[i]: why for i, why in episodes.problems.items()},
        "labels_without_episode": list(episodes.unmatched),
        "splitting": vars(manifest.splitting),
        "root": episodes.root,
        "inflated": _inflated(plan),
        "record_bytes": manifest.layout.record_bytes,
        "splits": [
            {
                "name": split.name,
                "fraction_asked": split.fraction,
                "fraction": split.windows / manifest.windows,
                "episodes": split.episodes,
                "groups": _groups(plan, i),
                "windows": split.windows,
                "shards": len(split.shards),
                "bytes": split.bytes,
            }
            for i, split in enumerate(manifest.splits)
        ],
        "windows": manifest.windows,
        "bytes": manifest.bytes,
        "ratio": manifest.bytes / source.bytes,
        "recommended": _recommended(plan),
        "free_bytes": free_bytes(options.output),
    }


def _describe_label(feature: Feature) -> str:
    some = printable(", ".join(feature.classes[:_EXAMPLES])) + (", ..." if len(feature.classes) > _EXAMPLES else "")
    kind = f"one of {len(feature.classes)} classes ({some})" if feature.classes else f"one {feature.dtype}"
    return f"{feature.name}: {kind} an episode"


def _tails(plan: DatasetPlan) -> dict[str, dict[str, int]]:
    """What each tail would make of the episodes; one with which a split by time is not possible is left out."""
    usable = plan.episodes.steps > 0
    total = int(plan.episodes.steps.sum())
    described: dict[str, dict[str, int]] = {}
    for tail in TAILS:
        window = replace(plan.window, tail=tail)
        steps, without = plan.episodes.steps[usable], None
        if plan.options.split_by == "time" and plan.options.fractions is not None:
            try:
                parts = split_by_time(plan.episodes.steps, window, plan.options.fractions, plan.options.purge).values()
            except EpisodeError:  # a split would be empty with this tail
                continue
            steps = np.concatenate([part.steps for part in parts])
            cut = np.unique(np.concatenate([part.episodes for part in parts]))
            without = int(usable.sum()) - len(cut)
        windows = window.count(steps)
        last = window.valid(windows - 1, steps)
        described[tail] = {
            "windows": int(windows.sum()),
            "padded_steps": int((window.length - last)[windows > 0].sum()),
            "lost_steps": total - int(window.covered(steps).sum()),
            "episodes_without_window": int((windows == 0).sum()) if without is None else without,
        }
    return described


def _inflated(plan: DatasetPlan) -> bool:
    """Whether long compressed arrays will be decompressed once for each of several shards."""
    compressed = any(member.compressed for form in plan.episodes.forms for member in form)
    shards = sum(split.shards for split in plan.splits)
    return compressed and shards > 1 and plan.source.bytes > SPAN_SOURCE_BYTES * plan.source.episodes


def _groups(plan: DatasetPlan, split: int) -> int | None:
    if plan.groups is None:
        return None
    return len({plan.groups[i] for i in plan.splits[split].sections.episodes.tolist()})


def _recommended(plan: DatasetPlan) -> dict[str, int] | None:
    """The windows a record that would make the dataset smallest, where it is large for its input."""
    if plan.manifest.bytes <= _LARGE_RATIO * plan.source.bytes or plan.options.windows_per_record == "auto":
        return None
    sections = {split.name: split.sections for split in plan.splits}
    window = choose_per_record(replace(plan.options, windows_per_record="auto"), plan.episodes, sections)
    nbytes = record_layout(features_of(plan.episodes, window), window).record_bytes
    records = sum(int(window.records(part.steps).sum()) for part in sections.values())
    if records * nbytes >= plan.manifest.bytes:
        return None
    return {"windows_per_record": window.per_record, "bytes": records * nbytes}


def format_plan(described: dict[str, Any]) -> str:
    """The same as a text of some lines."""
    episodes = described["episodes"]
    lines = [
        f"dataset   {described['name']} in {described['output']}",
        f"episodes  {episodes['used']} of {episodes['found']} used: {described['steps']:,} steps,"
        f" {format_bytes(described['input_bytes'])}",
        f"features  {'; '.join(described['features'])}",
        f"windows   {described['windows']:,} {format_window(described['window'])}",
    ]
    if described["splitting"]["by"] == "hash" and described["splitting"]["group_by"] is None:
        lines.append(f"split by  a hash of each path below {printable(described['root'])}")
    if described["inflated"]:
        lines.append("slow      compressed arrays are decompressed anew for each shard; np.savez stores them plain")
    if described["short"]:
        lines.append(_listed("too short", "episodes have no window", described["short"]))
    if described["skipped"]:
        reasons = [f"{printable(path)} {why}" for path, why in described["skipped"].items()]
        lines.append(_listed("skipped", "files cannot be used", reasons))
    if described["labels_without_episode"]:
        lines.append(_listed("labels", "rows are of no episode", described["labels_without_episode"]))
    if described["uncovered_steps"]:
        share = described["uncovered_steps"] / described["steps"]
        lines.append(f"uncovered {described['uncovered_steps']:,} steps ({share:.1%}) lie in no window")
    lines += ["", _format_splits(described["splits"]), "", _format_tails(described), ""]
    free = described["free_bytes"]
    lines.append(
        f"output    {format_bytes(described['bytes'])}, {described['ratio']:.2f} times the input;"
        f" free there: {'unknown' if free is None else format_bytes(free)}"
    )
    if better := described["recommended"]:
        lines.append(
            f"smaller   {format_bytes(better['bytes'])} with --windows_per_record {better['windows_per_record']}:"
            " windows that overlap share a record (auto chooses the number)"
        )
    return "\n".join(printable(line, keep="\n") for line in lines)


def _format_splits(splits: list[dict[str, Any]]) -> str:
    grouped = splits[0]["groups"] is not None
    rows = []
    for split in splits:
        asked = "" if split["fraction_asked"] is None else f" ({float(split['fraction_asked']):.4g} asked)"
        rows.append(
            (
                split["name"],
                f"{split['episodes']:,}",
                *([f"{split['groups']:,}"] if grouped else []),
                f"{split['windows']:,}",
                f"{split['fraction']:.1%}{asked}",
                f"{split['shards']:,}",
                format_bytes(split["bytes"]),
            )
        )
    header = ["split", "episodes", *(["groups"] if grouped else []), "windows", "share", "shards", "size"]
    return format_table(header, rows)


def _format_tails(described: dict[str, Any]) -> str:
    chosen = described["window"]["tail"]
    header = ["tail", "windows", "zero steps", "steps lost", "without window"]
    rows = [
        [f"{tail} (chosen)" if tail == chosen else tail, *(f"{number:,}" for number in numbers.values())]
        for tail, numbers in described["tails"].items()
    ]
    return format_table(header, rows)


def _listed(label: str, what: str, items: list[str]) -> str:
    more = f" and {len(items) - _EXAMPLES} more (--json lists them)" if len(items) > _EXAMPLES else ""
    return f"{label:<9} {len(items)} {what}: {printable(', '.join(items[:_EXAMPLES]))}{more}"
