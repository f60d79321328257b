"""Shards checked side by side: in threads of this process, or in processes of their own.

Checksums of small records hold Python's lock, so that threads wait for one another; but processes want a main module
that can be imported, which only a command line is sure to have.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, NamedTuple

from ..cores import core_count
from ..errors import EpisodeWindowsError
from .against_source import Comparison, compare_shard
from .check_shard import Advance, Job, ShardCheck, Task, check_shard

_SECONDS_BETWEEN_LOOKS = 0.1

#: Called now and then with how many bytes are checked.
Watch = Callable[[int], None]
Checks = Generator["Checked", None, None]
#: Yields the results of the tasks in their order.
Run = Callable[[Job, Sequence[Task], Watch], Checks]


class _EndedError(Exception):
    """Nobody wants the result any more."""


class Checked(NamedTuple):
    """What a shard is like, by itself and beside the source."""

    check: ShardCheck
    comparison: Comparison | None


def check(job: Job, task: Task, advance: Advance) -> Checked:
    """Check one shard, and compare it with the source if there is one; each counts its bytes once."""
    checked = check_shard(job, task, advance)
    return Checked(checked, None if job.root is None else compare_shard(job, task, checked, advance))


def in_threads(job: Job, tasks: Sequence[Task], watch: Watch, workers: int | None = None) -> Checks:
    """Check in threads, as many as serve unless told otherwise; whoever ends the iteration early ends them soon."""
    done, ended, lock = [0], threading.Event(), threading.Lock()

    def advance(nbytes: int) -> None:
        if ended.is_set():
            raise _EndedError
        with lock:
            done[0] += nbytes

    workers = workers or core_count()
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from _in_order(
                lambda task: pool.submit(check, job, task, advance), tasks, workers, lambda: watch(done[0])
            )
        finally:
            ended.set()


def in_processes(job: Job, tasks: Sequence[Task], watch: Watch, workers: int) -> Checks:
    """Check in processes; whoever ends the iteration early kills them.

    Errors: EpisodeWindowsError if one is killed by others.
    """
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    done = context.Value("q", 0)
    pool = ProcessPoolExecutor(workers, context, _begin, (job, done))

    def submit(task: Task) -> "Future[Checked]":
        with _interrupts_later():  # workers inherit this: Ctrl-C is for this process, which ends them
            return pool.submit(_check, task)

    try:
        # Without its lock, which a worker that was killed may hold.
        yield from _in_order(submit, tasks, workers, lambda: watch(done.get_obj().value))
        others.update(multiprocessing.active_children())  # none is in the way of its own end
    except BrokenProcessPool:
        raise EpisodeWindowsError(
            "a worker process was killed, perhaps for want of memory; run it again with --workers 1"
        ) from None
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)


def _in_order(
    submit: "Callable[[Task], Future[Checked]]", tasks: Sequence[Task], workers: int, look: Callable[[], None]
) -> Iterator[Checked]:
    """The results in order, with as few tasks under way as keep the workers busy."""
    waiting: deque[Future[Checked]] = deque()
    for task in [*tasks, *[None] * (2 * workers)]:
        if task is not None:
            waiting.append(submit(task))
        if waiting and (task is None or len(waiting) == 2 * workers):
            first = waiting.popleft()
            while not wait([first], _SECONDS_BETWEEN_LOOKS).done:
                look()
            yield first.result()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: tuple[Job, Any]


def _begin(job: Job, done: Any) -> None:
    """Begin a worker process: keep what all its tasks need, and end when its parent does."""
    global _worker
    _worker = job, done
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _check(task: Task) -> Checked:
    job, done = _worker

    def advance(nbytes: int) -> None:
        with done.get_lock():
            done.value += nbytes

    return check(job, task, advance)
