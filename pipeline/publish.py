"""From finished shards to a dataset: what was written is checked against the plan, then shown, manifest last."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter

from shards.errors import BuildError, ManifestError
from shards.manifest import MAX_NONFINITE, Manifest, Nonfinite, Shard
from shards.manifest_file import format_manifest, parse_manifest
from shards.moments import Merging
from shards.naming import EPISODES, MANIFEST
from shards.statistics import Statistics, summarize
from shards.tfds import tfds_files

from .draft import STAGING, read_draft
from .files import delete_files, delete_folder, exists, join, list_files, move_files, read_file, write_file
from .measures import MOMENTS, parse_moments
from .tasks import ShardDone

#: The manifest of the dataset that is being replaced, while its place is empty.
REPLACED = "replaced.json"
_FAILURES = "failures.json"
_READS = 32  # small files in flight, for stores that take long to answer


def publish(output: str, staging: str, done: Sequence[ShardDone], fingerprint: str) -> str:
    """Make the staged files of a finished job the dataset in `output`, replacing one that was there.

    Returns the manifest's path. May run again after it succeeded.
    Errors: BuildError, with nothing in `output` touched, unless every shard is exactly as the plan has it.
    """
    if not list_files(staging):  # a second run of the same step, after the first one did everything
        return join(output, MANIFEST)
    if not exists(join(staging, MANIFEST)):
        draft = parse_manifest(read_draft(staging), staging)
        if draft.fingerprint != fingerprint:
            raise BuildError(f"another build has begun in {output}")
        manifest = finished_manifest(draft, staging, done)
        write_file(join(staging, MANIFEST), format_manifest(manifest))
    return finish_publishing(output, staging)


def finish_publishing(output: str, staging: str) -> str:
    """Move a whole staged dataset into its place, the manifest last; goes on where an interrupted one stopped.

    Nothing is deleted but what the dataset that is replaced names as its own.
    """
    final, replaced = join(output, MANIFEST), join(staging, REPLACED)
    names = dataset_files(parse_manifest(read_file(join(staging, MANIFEST)), staging))
    if exists(final):
        move_files([final], [replaced])  # from here to the last move the folder holds no dataset
    staged = [name for name in list_files(staging) if name in names]
    move_files([join(staging, name) for name in staged], [join(output, name) for name in staged])
    if exists(replaced):
        stale = dataset_files(parse_manifest(read_file(replaced), replaced)) - names
        delete_files([join(output, name) for name in list_files(output) if name in stale])
    move_files([join(staging, MANIFEST)], [final])
    delete_folder(staging)
    return final


def dataset_files(manifest: Manifest) -> set[str]:
    """The names of all files of a dataset but the manifest's."""
    shards = (shard.file for split in manifest.splits for shard in split.shards)
    return {*shards, *tfds_files(manifest), EPISODES}


def own_files(output: str, staging: str) -> set[str]:
    """The names of files in `output` that a build put there, by what whole or interrupted datasets say."""
    manifests = [join(staging, REPLACED), join(staging, MANIFEST), join(output, MANIFEST)]
    named = (dataset_files(parse_manifest(read_file(path), path)) for path in manifests if exists(path))
    return {MANIFEST, STAGING + "/"}.union(*named)


def finished_manifest(draft: Manifest, staging: str, done: Sequence[ShardDone]) -> Manifest:
    """The draft with the digests of its shards and the statistics of what they hold.

    Errors: BuildError unless each was written once and has the planned size.
    """
    failures = [shard.error for shard in done if shard.error]
    if failures:
        write_file(join(staging, _FAILURES), json.dumps(failures).encode())
        raise BuildError(describe_failures(failures))
    written = {shard.file: shard for shard in done}
    if len(written) != len(done):
        raise BuildError("the job wrote a shard twice; this is a fault of the program or of the runner")

    def finish(shard: Shard) -> Shard:
        got = written.pop(shard.file, None)
        if got is None or (got.records, got.bytes) != (shard.records, shard.bytes):
            raise BuildError(f"shard {shard.file} was planned with {shard.bytes} bytes, but came out as {got}")
        return replace(shard, sha256=got.sha256)

    splits = tuple(replace(split, shards=tuple(map(finish, split.shards))) for split in draft.splits)
    if written:
        raise BuildError(f"the job wrote shards that were not planned: {', '.join(sorted(written))}")
    if missing := {shard.file for split in splits for shard in split.shards} - set(list_files(staging)):
        raise BuildError(f"shards were written, but {staging} does not hold them: {', '.join(sorted(missing)[:3])}")
    done = sorted(done, key=attrgetter("file"))
    return replace(draft, splits=splits, statistics=_statistics(draft, staging), nonfinite=_nonfinite(draft, done))


def _statistics(draft: Manifest, staging: str) -> tuple[Statistics, ...]:
    """The statistics of the training split's shards, merged in their order: who wrote which makes no difference."""
    paths = [join(staging, shard.file + MOMENTS) for shard in draft.split(draft.training_split).shards]
    merging = {feature: Merging() for feature in draft.measured_features}
    with ThreadPoolExecutor(_READS) as pool:
        for first in range(0, len(paths), _READS):
            for data in pool.map(read_file, paths[first : first + _READS]):
                for feature, part in parse_moments(data).items():
                    merging[feature].add(part)
    merged = {feature: one.result() for feature, one in merging.items()}
    return tuple(summarize(feature, moments) for feature, moments in merged.items() if moments is not None)


def _nonfinite(draft: Manifest, done: Sequence[ShardDone]) -> tuple[Nonfinite, ...]:
    """The first places of values that are NaN or infinite, in the order of episodes and features."""
    whole = {feature.name for feature in draft.features if not feature.shape}
    found: dict[tuple[int, str], Nonfinite] = {}
    for episode, feature, values, step in (place for shard in done for place in shard.nonfinite):
        before = found.get((episode, feature), Nonfinite(episode, feature, 0, step))
        total = 1 if feature in whole else before.values + values
        found[episode, feature] = Nonfinite(episode, feature, total, min(before.step, step))
    return tuple(found[key] for key in sorted(found)[:MAX_NONFINITE])


def staged_failures(staging: str) -> list[str]:
    """Why the job of this staging folder failed, as its workers told it; empty when they did not."""
    path = join(staging, _FAILURES)
    return list(json.loads(read_file(path))) if exists(path) else []


def describe_failures(failures: Sequence[str]) -> str:
    """The failures of shards as one message."""
    listed = sorted(set(failures))
    lines = [f"{len(failures)} of the shards could not be written:", *(f"  {failure}" for failure in listed[:20])]
    if len(listed) > 20:
        lines.append(f"  and {len(listed) - 20} more")
    return "\n".join([*lines, "No dataset was written. Mend the cause and run the same command again."])


def published_manifest(output: str) -> Manifest | None:
    """The manifest in the output folder; None where there is none or it is damaged."""
    path = join(output, MANIFEST)
    try:
        return parse_manifest(read_file(path), path) if exists(path) else None
    except ManifestError:
        return None
