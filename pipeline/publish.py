"""From finished shards to a dataset: what was written is checked against the plan, then shown, manifest last."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from shards.errors import BuildError, ManifestError
from shards.manifest import MAX_NONFINITE, Manifest, Nonfinite, Shard
from shards.manifest_file import MAX_MANIFEST_BYTES, format_manifest, parse_manifest
from shards.moments import Merging
from shards.naming import EPISODES, MANIFEST, STAGING
from shards.statistics import Statistics, summarize
from shards.tfds import tfds_files

from .files import (
    delete_empty_folder,
    delete_files,
    delete_folder,
    exists,
    join,
    list_files,
    move_files,
    read_file,
    write_file,
)
from .notes import Note, delete_note, read_note
from .staging import DRAFT, FAILURES, read_draft, staged_folders
from .tasks import ShardDone

#: The manifest of the dataset that is being replaced, while its place is empty.
REPLACED = "replaced.json"
_READS = 32  # small files in flight, for stores that take long to answer


def publish(output: str, staging: str, done: Sequence[ShardDone], fingerprint: str) -> str:
    """Make the staged files of a finished job the dataset in `output`, replacing one that was there.

    Returns the manifest's path. May run again after it succeeded.
    Errors: BuildError, with nothing in `output` touched, unless every shard is exactly as the plan has it.
    """
    if is_published(output, staging, fingerprint):  # a second run of the same step, after the first one did everything
        return join(output, MANIFEST)
    if not exists(join(staging, MANIFEST)):
        if not exists(join(staging, DRAFT)):
            raise BuildError(f"another build has begun in {output}")
        manifest = finished_manifest(parse_manifest(read_draft(staging), staging), staging, done)
        write_file(join(staging, MANIFEST), format_manifest(manifest))
    return finish_publishing(output, staging)


def finish_publishing(output: str, staging: str) -> str:
    """Move a whole staged dataset into its place, the manifest last; goes on where an interrupted one stopped.

    Nothing is deleted but what the dataset that is replaced names as its own.
    """
    final, replaced, whole = join(output, MANIFEST), join(staging, REPLACED), join(staging, MANIFEST)
    names = dataset_files(_read_manifest(whole))
    if exists(final):
        move_files([final], [replaced])  # from here to the last move the folder holds no dataset
    staged = [name for name in list_files(staging) if name in names]
    move_files([join(staging, name) for name in staged], [join(output, name) for name in staged])
    if exists(replaced):
        stale = dataset_files(_read_manifest(replaced)) - names
        delete_files([join(output, name) for name in list_files(output) if name in stale])
    delete_files([join(staging, name) for name in list_files(staging) if name not in {MANIFEST, DRAFT}])
    delete_files([join(staging, name) for name in list_files(staging) if name == DRAFT])
    move_files([whole], [final])
    with suppress(OSError):  # the dataset is whole, whatever becomes of empty folders
        delete_folder(staging)
        delete_empty_folder(join(output, STAGING))
    return final


def finish_interrupted(output: str) -> str | None:
    """Finish what an interrupted build was moving into its place; the name of its staging folder, None if none was."""
    for staging in staged_folders(output):
        if exists(join(staging, MANIFEST)):
            finish_publishing(output, staging)
            return staging
    return None


def is_published(output: str, staging: str, fingerprint: str) -> bool:
    """Whether what was staged is the dataset in the output folder: it is moved there, and nothing of it is left."""
    if exists(join(staging, MANIFEST)) or exists(join(staging, DRAFT)):
        return False
    manifest = published_manifest(output)
    return manifest is not None and manifest.fingerprint == fingerprint


def dataset_files(manifest: Manifest) -> set[str]:
    """The names of all files of a dataset but the manifest's."""
    shards = (shard.file for split in manifest.splits for shard in split.shards)
    return {*shards, *tfds_files(manifest), EPISODES}


def own_files(output: str) -> set[str]:
    """The names of files in `output` that a build put there, by what whole or interrupted datasets say."""
    staged = [join(staging, name) for staging in staged_folders(output) for name in (REPLACED, MANIFEST)]
    manifests = [path for path in [*staged, join(output, MANIFEST)] if exists(path)]
    named = (dataset_files(_read_manifest(path)) for path in manifests)
    return {MANIFEST, STAGING + "/"}.union(*named)


def finished_manifest(draft: Manifest, staging: str, done: Sequence[ShardDone]) -> Manifest:
    """The draft with the digests of its shards and the statistics of what they hold.

    Errors: BuildError unless each was written once and has the planned size.
    """
    failures = [shard.error for shard in done if shard.error]
    if failures:
        with suppress(OSError):  # the job's own last words are then told
            write_file(join(staging, FAILURES), json.dumps(failures).encode())
        raise BuildError(describe_failures(failures))
    written = {shard.file: shard for shard in done}
    if len(written) != len(done):
        raise BuildError("the job wrote a shard twice; this is a fault of the program or of the runner")

    def finish(shard: Shard) -> Shard:
        got = written.pop(shard.file, None)
        if got is None or (got.records, got.windows, got.bytes) != (shard.records, shard.windows, shard.bytes):
            delete_note(staging, shard.file)  # the next run writes it again
            raise BuildError(f"shard {shard.file} was planned as {shard}, but came out as {got}")
        return replace(shard, sha256=got.sha256)

    splits = tuple(replace(split, shards=tuple(map(finish, split.shards))) for split in draft.splits)
    if written:
        raise BuildError(f"the job wrote shards that were not planned: {', '.join(sorted(written))}")
    if missing := dataset_files(draft) - set(list_files(staging)):
        raise BuildError(f"files were written, but {staging} does not hold them: {', '.join(sorted(missing)[:3])}")
    statistics, nonfinite = _measured(draft, staging)
    return replace(draft, splits=splits, statistics=statistics, nonfinite=nonfinite)


def _measured(draft: Manifest, staging: str) -> tuple[tuple[Statistics, ...], tuple[Nonfinite, ...]]:
    """What the shards' notes say of their values, merged in the order of the shards: who wrote which is all the same.

    The statistics are those of the training split. Of values that are NaN or infinite, the first places are told, in
    the order of episodes and features. Memory does not grow with the shards.
    """
    whole = {feature.name for feature in draft.features if not feature.shape}
    merging = {feature: Merging() for feature in draft.measured_features}
    found: dict[tuple[int, str], Nonfinite] = {}
    for split in draft.splits:
        for note in _notes(staging, [shard.file for shard in split.shards]):
            if split.name == draft.training_split:
                for feature, part in note.moments.items():
                    merging[feature].add(part)
            for episode, feature, values, step in note.done.nonfinite:
                before = found.get((episode, feature), Nonfinite(episode, feature, 0, step))
                total = 1 if feature in whole else before.values + values
                found[episode, feature] = Nonfinite(episode, feature, total, min(before.step, step))
            if len(found) > 2 * MAX_NONFINITE:  # what comes after so many others can never be told
                found = {key: found[key] for key in sorted(found)[:MAX_NONFINITE]}
    merged = {feature: one.result() for feature, one in merging.items()}
    statistics = tuple(summarize(feature, moments) for feature, moments in merged.items() if moments is not None)
    return statistics, tuple(found[key] for key in sorted(found)[:MAX_NONFINITE])


def _notes(staging: str, files: Sequence[str]) -> Iterator[Note]:
    """The notes of shards, in their order."""
    with ThreadPoolExecutor(_READS) as pool:
        for first in range(0, len(files), _READS):
            yield from pool.map(lambda file: read_note(staging, file), files[first : first + _READS])


def staged_failures(staging: str) -> list[str]:
    """Why the job of this staging folder failed, as its workers told it; empty when they did not."""
    try:
        return list(json.loads(read_file(join(staging, FAILURES))))
    except (OSError, ValueError):  # there is none, or the disk was too full for it
        return []


def describe_failures(failures: Sequence[str]) -> str:
    """The failures of shards as one message."""
    listed = sorted(set(failures))
    lines = [f"{len(failures)} of the shards could not be written:", *(f"  {failure}" for failure in listed[:20])]
    if len(listed) > 20:
        lines.append(f"  and {len(listed) - 20} more")
    lines.append("Mend the cause and run the same command again: it goes on with what is finished. If episodes were")
    lines.append("changed, it begins anew with --overwrite.")
    return "\n".join(lines)


def published_manifest(output: str) -> Manifest | None:
    """The manifest in the output folder; None where there is none or it is damaged."""
    path = join(output, MANIFEST)
    try:
        return _read_manifest(path) if exists(path) else None
    except (OSError, ManifestError):
        return None


def _read_manifest(path: str) -> Manifest:
    return parse_manifest(read_file(path, 0, MAX_MANIFEST_BYTES + 1), path)
