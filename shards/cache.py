"""Copies of shards on a local disk: made once, whole or not at all, shared by processes, within bounds.

    DIR/lock                a process holds it for the moment in which it makes room
    DIR/NAME-KEY.lock       processes that read from the folder share a hold of it; its time is that of the last use
    DIR/NAME-KEY/SHARD      a whole copy
    DIR/NAME-KEY/SHARD.part one under way, held by the process that makes it
    DIR/NAME-KEY/bytes      those that the folder may come to take

KEY is of the shards' digests. The system takes holds from a process that ends, however it ends. A folder that nobody
holds makes room for others, that first which was not used for longest.
"""

import errno
import os
import re
import shutil
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from .cores import core_count
from .errors import OptionError, ShardError
from .files import FileState
from .manifest import Shard
from .pieces import Piece
from .progress_line import Copying
from .shard_file import digest_of, open_shard

_SIDE_BY_SIDE = 8  # shards under way at a time
_RANGE_BYTES = 2**23  # of a shard that are read in one go
_LEFT_FREE = 20  # unless told otherwise, a 20th of the disk is
_SECONDS_BETWEEN_LOOKS = 0.2  # at shards that other processes copy
_ATTEMPTS = 2  # what came over a network damaged comes again
_LOCK, _PART, _BYTES = ".lock", ".part", "bytes"
_OURS = re.compile(r".+-[0-9a-f]{16}\.lock")

#: Called with how many bytes more are there, from several threads.
Advance = Callable[[int], None]


def cache_shards(
    name: str,
    pieces: Sequence[Piece],
    shards: Sequence[Shard],
    folder: str | Path,
    most_bytes: int | None = None,
    verify: bool = False,
) -> list[Piece]:
    """The pieces of whole shards, with a local copy in place of each of the first ones, as many as there is room for.

    All copies in the folder, whatever the dataset, take `most_bytes` at most; a 20th of the disk stays free if that is
    None. A copy that is made has the manifest's SHA-256; one that was there has its size, and with `verify` its SHA-256
    or is made anew. It stays while someone has its piece.
    Errors: OptionError for a folder that cannot be written to; ShardError for a shard that cannot be read, or is
    damaged.
    """
    folder = Path(folder).absolute()
    key = sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()[:16]
    copies = folder / f"{name}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            held = _Hold(copies)
            count = _make_room(copies, shards, most_bytes, held.alone)
        states = _copy_all(copies, pieces[:count], shards[:count], verify)
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        remedy = "free some of the disk, or give fewer cache_bytes" if full else "give another folder"
        raise OptionError(f"cache_dir {folder} cannot be written to: {error.strerror or error}; {remedy}") from error
    local = [
        replace(piece, file=str(copies / shard.file), state=state, remote=None, held=held)
        for piece, shard, state in zip(pieces, shards, states, strict=False)
    ]
    return [*local, *pieces[count:]]


class _Hold:
    """A shared hold of a folder of copies, until this object is gone; `alone` if nobody else had one."""

    def __init__(self, copies: Path) -> None:
        import fcntl

        lock = f"{copies}{_LOCK}"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.alone = True
        except BlockingIOError:
            self.alone = False
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # at once: whoever wants it alone must hold DIR/lock
        os.utime(lock)


@contextmanager
def _locked(file: Path, wait: bool = True) -> Iterator[int]:
    """An exclusive hold of a file, which is made if need be. Errors: BlockingIOError if it is held, unless waiting."""
    import fcntl

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def _make_room(copies: Path, shards: Sequence[Shard], most_bytes: int | None, alone: bool) -> int:
    """How many of the first shards may be copied; deletes folders that nobody holds, as far as need be."""
    folder, own = copies.parent, f"{copies.name}{_LOCK}"
    locks = [file for file in folder.iterdir() if _OURS.fullmatch(file.name)]  # whatever else is there, is not ours
    others = [file.with_suffix("") for file in locks if file.name != own]
    others.sort(key=lambda other: os.stat(f"{other}{_LOCK}").st_mtime)
    copies.mkdir(exist_ok=True)
    sums = [0, *accumulate(shard.bytes for shard in shards)]
    if most_bytes is None:
        disk = shutil.disk_usage(folder)
        taken = {other: max(_promised(other), _present(other)) for other in others}
        coming = sum(taken[other] - _present(other) for other in others)
        room = disk.free + _present(copies) - coming - disk.total // _LEFT_FREE
    else:
        taken = {other: _promised(other) for other in others}
        room = most_bytes - sum(taken.values())
    idle = [other for other in others if not _is_held(other)]  # and nobody takes hold of them now
    rooms = accumulate((taken[other] for other in idle), initial=room)
    counts = [bisect_right(sums, max(room, 0)) - 1 for room in rooms]
    count = counts[-1]
    for other in idle[: counts.index(count)]:  # no more of them than is of use
        shutil.rmtree(other, ignore_errors=True)
        os.unlink(f"{other}{_LOCK}")
    if alone:
        for file in copies.iterdir():
            if file.name not in {shard.file for shard in shards[:count]}:
                file.unlink()
    else:  # others may be about to copy more
        count = max(count, bisect_right(sums, _promised(copies)) - 1)
    Path(copies, _BYTES).write_text(str(sums[count]))
    return count


def _is_held(copies: Path) -> bool:
    try:
        with _locked(Path(f"{copies}{_LOCK}"), wait=False):
            return False
    except BlockingIOError:
        return True


def _present(copies: Path) -> int:
    total = 0
    for file in copies.iterdir() if copies.exists() else ():
        with suppress(FileNotFoundError):  # one that has just got its name
            total += file.stat().st_size
    return total


def _promised(copies: Path) -> int:
    try:
        return int(Path(copies, _BYTES).read_text())
    except (OSError, ValueError):
        return _present(copies)


def _copy_all(copies: Path, pieces: Sequence[Piece], shards: Sequence[Shard], verify: bool) -> list[FileState]:
    """The state of a copy of each shard; those that another process is copying are waited for at the end."""
    states: dict[int, FileState | None] = dict.fromkeys(range(len(shards)))
    states.update(_whole_ones(copies, pieces, shards, verify))
    left = [i for i, state in states.items() if state is None]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool, Copying(sum(shards[i].bytes for i in left)) as copying:
        stopped = threading.Event()

        def advance(nbytes: int) -> None:
            if stopped.is_set():
                raise InterruptedError
            copying.advance(nbytes)

        def copy(i: int) -> FileState | None:
            return _copy(copies, advance, pieces[i], shards[i])

        try:
            while left:
                states.update(zip(left, pool.map(copy, left), strict=True))
                left = [i for i in left if states[i] is None]
                if left:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [state for state in states.values() if state is not None]


def _whole_ones(copies: Path, pieces: Sequence[Piece], shards: Sequence[Shard], verify: bool) -> dict[int, FileState]:
    """{number: state} of the shards of which a whole copy is there; with `verify`, damaged ones are deleted."""
    whole = {i: state for i, shard in enumerate(shards) if (state := _whole(copies / shard.file, shard)) is not None}
    if not verify:
        return whole
    there = [replace(pieces[i], file=str(copies / shards[i].file), state=whole[i], remote=None) for i in whole]
    with ThreadPoolExecutor(core_count()) as pool:
        digests = list(pool.map(digest_of, there))
    for i, digest in zip(list(whole), digests, strict=True):
        if digest != shards[i].sha256:
            (copies / shards[i].file).unlink(missing_ok=True)
            del whole[i]
    return whole


def _copy(copies: Path, advance: Advance, piece: Piece, shard: Shard) -> FileState | None:
    """The state of a copy of a shard, which is made unless it is there; None if another process is at it."""
    target, part = copies / shard.file, copies / (shard.file + _PART)
    if (state := _whole(target, shard)) is not None:
        advance(shard.bytes)  # by another process
        return state
    try:
        with _locked(part, wait=False) as descriptor:
            # Another process may have finished it meanwhile, and what is held be no longer what is called so.
            if not os.path.samestat(os.fstat(descriptor), part.stat()):
                return None
            if (state := _whole(target, shard)) is not None:
                part.unlink()
                advance(shard.bytes)
                return state
            try:
                if not any(_fill(descriptor, piece, shard, advance) for _ in range(_ATTEMPTS)):
                    raise ShardError(
                        f"shard {piece.file} is damaged: its SHA-256 is not the manifest's; copy or build the dataset"
                        " again"
                    )
            except BaseException:
                part.unlink()
                raise
            os.replace(part, target)
            return _whole(target, shard)
    except BlockingIOError:
        return None
    except FileNotFoundError:
        if not copies.is_dir():  # somebody has deleted it
            raise
        return None


def _fill(descriptor: int, piece: Piece, shard: Shard, advance: Advance) -> bool:
    """Write the bytes of a shard to a file, to the disk; whether they have the digest that they should."""
    os.ftruncate(descriptor, 0)
    file, digest, memory = open_shard(piece), sha256(), memoryview(bytearray(min(_RANGE_BYTES, shard.bytes)))
    for at in range(0, shard.bytes, _RANGE_BYTES):
        block = memory[: shard.bytes - at]
        file.read(block, [(0, at, len(block))])
        digest.update(block)
        done = 0
        while done < len(block):
            done += os.pwrite(descriptor, block[done:], at + done)
        advance(len(block))
    file.check()
    os.fsync(descriptor)
    if digest.hexdigest() == shard.sha256:
        return True
    if piece.remote is not None:
        piece.remote.look()  # which was perhaps replaced
    advance(-shard.bytes)
    return False


def _whole(target: Path, shard: Shard) -> FileState | None:
    try:
        state = FileState.of(target.stat())
    except FileNotFoundError:
        return None
    return state if state.size == shard.bytes else None
