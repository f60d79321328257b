"""What is checked between the plan and the first written byte."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from shards.errors import ManifestError, OptionError, OutputError
from shards.features import Feature
from shards.naming import MANIFEST, STAGING
from shards.record import MAX_RECORD_ARRAY, MAX_RECORD_BYTES, RecordLayout, record_layout
from shards.windows import WindowSpec

from .beam_flags import runs_here
from .draft import DatasetPlan
from .files import exists, files_below, free_bytes, is_remote, join, list_files
from .publish import dataset_files, own_files, published_manifest
from .runner import worker_count
from .staging import staged_folders
from .submit import check_launch
from .workers import available_memory, memory_needed

_MOST_COMPONENTS = 10**6  # some 170 bytes each, of the 256 MiB that a manifest may have


def check_window(features: Sequence[Feature], window: WindowSpec) -> RecordLayout:
    """The layout of records of these features; OptionError if one is larger than a record can hold."""
    total = 0
    few = "window_length" if window.per_record == 1 else "window_length or fewer windows_per_record"
    for feature in features:
        nbytes = feature.nbytes // window.length * window.record_steps if feature.shape else feature.nbytes
        total += nbytes
        if nbytes > MAX_RECORD_ARRAY or total > MAX_RECORD_BYTES:
            raise OptionError(
                f"a record of {window.record_steps} steps has {max(nbytes, total)} bytes with {feature.name}; at most"
                f" {MAX_RECORD_ARRAY} an array and {MAX_RECORD_BYTES} in all fit: choose a smaller {few}"
            )
    return record_layout(features, window)


def check_output(plan: DatasetPlan) -> None:
    """OutputError unless the output folder can take the dataset, OptionError unless memory can take its shards."""
    if find_spec("apache_beam") is None:
        raise OptionError("building needs Apache Beam: pip install 'episode-windows[pipeline]'")
    output = plan.output
    check_launch(plan.options.beam_args, plan.options.inputs, output)
    _check_folder(output)
    measured = [feature.shape for feature in plan.features if feature.name in plan.manifest.measured_features]
    components = sum(shape[-1] if len(shape) > 1 else 1 for shape in measured)
    if components > _MOST_COMPONENTS:
        raise OptionError(
            f"the last axes of the features have {components:,} places, of each of which the manifest holds statistics;"
            f" {_MOST_COMPONENTS:,} are the most: reshape the arrays, or choose fewer --features"
        )
    _check_report(plan)
    staged = staged_folders(output)
    if any(exists(join(folder, MANIFEST)) for folder in staged):
        return  # of a dataset that is whole; to finish moving it into its place takes nothing, and comes first
    try:
        present, own = list_files(output), own_files(output)
    except (OSError, ManifestError) as error:
        raise OutputError(
            f"{output} cannot take a dataset: {error}. If it is to be replaced, remove that file"
        ) from error
    if MANIFEST in present and not plan.options.overwrite:
        there = published_manifest(output)
        same = ", that of this very plan" if there and there.fingerprint == plan.manifest.fingerprint else ""
        raise OutputError(
            f"{output} already holds a dataset{same}: choose another folder, or replace it with --overwrite"
        )
    foreign = [name for name in present if name not in own]
    if foreign and MANIFEST not in present and not staged:
        raise OutputError(
            f"{output} is not empty, and what it holds is no dataset ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}): choose an empty or a new folder"
        )
    if clash := sorted(set(foreign) & dataset_files(plan.manifest)):
        raise OutputError(f"{output} holds {clash[0]}, which is not of the dataset there: choose another folder")
    free, needed = free_bytes(output), plan.manifest.bytes
    if free is not None:
        above = join(output, STAGING)  # is deleted first, or gone on with
        free += sum(state.size for _, state in files_below(above)) if exists(above) else 0
        if free < needed:
            raise OutputError(f"the dataset needs {needed:,} bytes, but {free:,} are free where {output} lies")
    _check_memory(plan)


def _check_folder(output: str) -> None:
    if is_remote(output):
        return
    place = Path(output)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"{output} cannot be a folder: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"{output} cannot be written: no permission in {place}")


def _check_report(plan: DatasetPlan) -> None:
    report = plan.options.report
    if report is None or is_remote(report):
        return
    path, inputs = os.path.abspath(report), plan.episodes
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        why = "it is a folder" if os.path.isdir(path) else "there is no folder for it"
        raise OutputError(f"the report {report} cannot be written: {why}")
    if path.startswith(plan.output + "/"):
        raise OutputError(f"the report {report} would lie in the dataset's folder: choose another place")
    labels = plan.options.labels
    if (path.startswith(inputs.root) and path[len(inputs.root) :] in inputs.paths) or (
        labels is not None and path == os.path.abspath(labels)
    ):
        raise OutputError(f"the report {report} would replace an input: choose another place")


def _check_memory(plan: DatasetPlan) -> None:
    if not runs_here(plan.options.beam_args):
        return
    largest, workers = plan.recipe.shard_bytes, worker_count(plan)
    needed, memory = memory_needed(workers, largest), available_memory()
    if needed > memory:
        who = "a worker that writes" if workers == 1 else f"{workers} workers that write"
        raise OptionError(
            f"for {who} shards of {largest:,} bytes, a build takes {needed:,} bytes of memory, but {memory:,} are"
            " available here: ask for more shards, or fewer --workers"
        )
