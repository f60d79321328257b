"""The whole job, from episode files to a dataset. Read `plan` and `build` as a table of contents.

The Beam graph itself is `transforms.write_dataset`; this module runs where the job is launched, and needs no Beam.
"""

from collections.abc import Mapping
from dataclasses import replace

from shards.errors import BuildError
from shards.manifest import Manifest
from shards.record import MAX_RECORD_ARRAY, record_layout
from shards.windows import WindowSpec

from .assign import assign_splits, group_episodes
from .check_flags import check_beam_args
from .draft import DatasetPlan, features_of
from .episodes import Episodes, attach_labels, cast_episodes, survey
from .files import lock_folder, reach_stores, write_file
from .inputs import find_episodes
from .labels import read_labels
from .options import BuildOptions
from .plan import SPANS_PER_SHARD, best_per_record, plan_splits
from .preflight import check_output, check_window
from .publish import finish_interrupted, published_manifest
from .runner import OnShards, run_job
from .splits import Sections
from .staging import stage_plan
from .tally import Tally, format_report, kept_whole


def plan(options: BuildOptions) -> DatasetPlan:
    """Plan a dataset from the headers of its episodes, which is all that is read; nothing is written.

    Errors: EpisodeError for bad input, OptionError for options that the episodes cannot fulfil.
    """
    check_beam_args(options.beam_args)
    reach_stores((*options.inputs, options.output), options.beam_args)
    tally = Tally()
    with tally.timed("survey"):
        files = find_episodes(options.inputs)  # [EpisodeFile], sorted by path
        episodes = survey(files, options.on_error, options.features, options.dtype)  # a row a file
        found = len(files)
        del files  # some 200 bytes each
    with tally.timed("plan"):
        planned = replace(plan_episodes(options, episodes), tally=tally)
        manifest = planned.manifest
    usable = found - len(episodes.problems)
    tally.add("survey", found, usable, int(episodes.states[:, 0].clip(0).sum()))
    tally.add("plan", usable, manifest.windows, manifest.bytes)
    return planned


def plan_episodes(options: BuildOptions, episodes: Episodes) -> DatasetPlan:
    """Plan a dataset from the table of its episodes; nothing but the labels is read."""
    labels = None if options.labels is None else read_labels(options.labels)
    if labels is not None:
        leave_out = () if options.splits_from is None else (options.splits_from,)
        episodes = attach_labels(episodes, labels, leave_out, options.on_error)  # with a value a row of each column
    episodes = cast_episodes(episodes, options.dtype)
    groups = group_episodes(options, episodes, labels)  # the group of each row
    sections = assign_splits(options, episodes, options.window, labels, groups)  # {split: which steps of which rows}
    window = choose_per_record(options, episodes, sections)  # how windows are cut, and how many share a record
    layout = check_window(features_of(episodes, window), window)  # the bytes of a record
    splits = plan_splits(  # the spans of every shard
        sections,
        window,
        shard_counts={name: options.shards_of(name) for name in sections},
        shard_size=options.shard_size,
        record_bytes=layout.record_bytes,
        step_bytes=episodes.step_bytes,
        seed=options.seed,
    )
    return DatasetPlan(options, window, episodes, groups, splits)


def choose_per_record(options: BuildOptions, episodes: Episodes, sections: Mapping[str, Sections]) -> WindowSpec:
    """How windows are cut, with as many a record as was asked for or, for "auto", as give the fewest bytes."""
    if options.windows_per_record != "auto":
        return options.window

    one = check_window(features_of(episodes, options.window), options.window).record_bytes
    # Where a window alone is as large as that, eight of them a record still store overlap but 8/7 times.
    most = max(options.shard_size // SPANS_PER_SHARD, min(8 * one, options.shard_size))

    def record_bytes(window: WindowSpec) -> int:
        least = window.record_steps * episodes.step_bytes
        if least > min(most, MAX_RECORD_ARRAY):  # no need, and perhaps no way, to lay it out
            return max(least, most + 1)
        return record_layout(features_of(episodes, window), window).record_bytes

    asked = [options.shards_of(name) or 1 for name in sections]
    least = [SPANS_PER_SHARD * shards if shards > 1 else 1 for shards in asked]  # so that each is still a fair sample
    best = best_per_record(sections.values(), options.window, record_bytes, most, least)
    return replace(options.window, per_record=best)


def build(options: BuildOptions | DatasetPlan, on_shards: OnShards | None = None) -> Manifest:
    """Build a dataset with Beam, as `plan` describes it, and return its manifest.

    `on_shards` is called, while the job runs, with the names of the shards that are finished.
    Errors: those of `plan`; OutputError, before anything is written, if the folder cannot take the dataset; BuildError
    if the job failed, with no new dataset in the folder.
    """
    planned = options if isinstance(options, DatasetPlan) else plan(options)
    output, fingerprint = planned.output, planned.manifest.fingerprint
    check_output(planned)  # room, and nothing there that must not be lost
    with lock_folder(output) as lock:  # against a second build
        # One that was whole, and interrupted while it was moved into place: perhaps this very one.
        if finish_interrupted(output) == planned.staging:
            counted = kept_whole(planned.manifest)
        else:
            check_output(planned)
            stage_plan(planned)  # tasks and draft of the manifest, for the workers to read
            counted = run_job(planned, lock, on_shards)  # transforms.write_dataset, in a process of its own
        manifest = published_manifest(output)
    if manifest is None or manifest.fingerprint != fingerprint:
        raise BuildError(f"the job ended, but {output} holds no dataset of this plan")
    if planned.options.report is not None:
        try:
            write_file(planned.options.report, format_report(manifest, planned.tally, counted))
        except OSError as error:
            raise BuildError(f"{output} holds the whole dataset, but its report cannot be written: {error}") from error
    return manifest
