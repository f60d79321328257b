"""The whole job, from episode files to a dataset. Read `plan` and `build` as a table of contents.

The Beam graph itself is `transforms.write_dataset`; this module runs where the job is launched, and needs no Beam.
"""

from shards.errors import BuildError
from shards.features import Feature
from shards.manifest import Manifest
from shards.naming import MANIFEST

from .draft import DatasetPlan, stage_plan
from .episodes import survey
from .files import exists, join, lock_folder
from .inputs import find_episodes
from .options import BuildOptions
from .plan import plan_splits
from .preflight import check_output, check_window
from .publish import finish_publishing, published_manifest
from .runner import OnShards, check_beam_args, run_job


def plan(options: BuildOptions) -> DatasetPlan:
    """Plan a dataset from the headers of its episodes, which is all that is read; nothing is written.

    Errors: EpisodeError for bad input, OptionError for options that the episodes cannot fulfil.
    """
    check_beam_args(options.beam_args)
    files = find_episodes(options.inputs)  # [EpisodeFile], sorted by path
    episodes = survey(files, options.on_error)  # a row a file: its steps, and where its data lie
    feature = Feature("window", episodes.dtype, (options.window_length, *episodes.step_shape))
    layout = check_window(feature)  # the bytes of a record
    splits = plan_splits(  # the spans of every shard
        episodes.steps,
        length=options.window_length,
        shift=options.step_shift,
        fractions=options.splits,
        shard_counts={name: options.shards_of(name) for name in options.splits},
        shard_size=options.shard_size,
        record_bytes=layout.record_bytes,
        step_bytes=feature.nbytes // options.window_length,
        seed=options.seed,
    )
    return DatasetPlan(options, episodes, feature, splits)


def build(options: BuildOptions | DatasetPlan, on_shards: OnShards | None = None) -> Manifest:
    """Build a dataset with Beam, as `plan` describes it, and return its manifest.

    `on_shards` is called, while the job runs, with the names of the shards that are finished.
    Errors: those of `plan`; OutputError, before anything is written, if the folder cannot take the dataset; BuildError
    if the job failed, with no new dataset in the folder.
    """
    planned = options if isinstance(options, DatasetPlan) else plan(options)
    output, staging, fingerprint = planned.output, planned.staging, planned.manifest.fingerprint
    check_output(planned)  # room, and nothing there that must not be lost
    with lock_folder(output) as lock:  # against a second build
        if exists(join(staging, MANIFEST)):  # one that was whole, and interrupted while it was moved into place
            finish_publishing(output, staging)
            if (finished := published_manifest(output)) and finished.fingerprint == fingerprint:
                return finished
        check_output(planned)
        stage_plan(planned)  # tasks and draft of the manifest, for the workers to read
        run_job(planned, lock, on_shards)  # transforms.write_dataset, in a process of its own
        manifest = published_manifest(output)
    if manifest is None or manifest.fingerprint != fingerprint:
        raise BuildError(f"the job ended, but {output} holds no dataset of this plan")
    return manifest
