"""What the command lines have in common: how mistakes are told, and with which exit status."""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any, NoReturn

from .errors import EpisodeWindowsError
from .text import printable

_USAGE, _FAILED, _SIGNALLED = 2, 1, 128  # the last plus the signal's number, as shells have it


class Command(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, and name the flag that was meant."""

    _given: Sequence[str] = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, _StoreOnce)  # what a flag does unless told otherwise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember what was given, for `error`."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with exit status 2."""
        for flag in (argument.partition("=")[0] for argument in self._given):
            near = get_close_matches(flag, self._option_string_actions, 1)
            if flag.startswith("--") and flag not in self._option_string_actions and near:
                message += f"\n{flag} is no flag of this command; did you mean {near[0]}?"
        _tell(f"{self.prog}: {message}\nSee {self.prog} --help.")
        sys.exit(_USAGE)


class _StoreOnce(argparse.Action):
    """Store the value of a flag, which may be given once: a second one would silently win."""

    _seen = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        if self._seen:
            parser.error(f"{flag} is given twice")
        self._seen = True
        setattr(namespace, self.dest, values)


def run_command(parser: Command, arguments: Sequence[str] | None, rest: str | None = None) -> int:
    """Parse the arguments, call the `run` that the chosen command has set, and return the exit status.

    Arguments that no flag takes are an error, or go into the list `rest` if one is named. An EpisodeWindowsError, an
    OSError, Ctrl-C, SIGTERM and SIGHUP become one message on stderr; that for the latter ends with the second argument
    of the KeyboardInterrupt or else with `parsed.interrupted`, if it is set.
    """
    parsed, unknown = parser.parse_known_args(arguments)
    if rest is not None:
        setattr(parsed, rest, unknown)
    elif unknown:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        with _signals_raised():
            status: int = parsed.run(parsed)
        if sys.stdout is not None:
            sys.stdout.flush()
    except EpisodeWindowsError as error:
        _tell(f"{parser.prog}: {error}")
        return error.exit_status
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        discard_output()
        return 0
    except OSError as error:
        _tell(f"{parser.prog}: {error}")
        return _FAILED
    except MemoryError:
        _tell(f"{parser.prog}: out of memory")
        return _FAILED
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone, which is what interrupted it
            after = error.args[1] if len(error.args) > 1 else getattr(parsed, "interrupted", "")
            _tell(f"{parser.prog}: interrupted{after}")
        return _SIGNALLED + (error.args[0] if error.args else signal.SIGINT)
    return status


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Let what else ends a process do so as Ctrl-C does: with a message, and leaving nothing behind.

    A KeyboardInterrupt raised so has the signal as its argument. Signals that are ignored, as `nohup` has it, stay so.
    """

    def end(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    here = threading.current_thread() is threading.main_thread()  # elsewhere Python lets nobody do this
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _tell(message: str) -> None:
    print(printable(message, keep="\n"), file=sys.stderr)  # messages hold names of files, which may hold anything


def discard_output() -> None:
    """From here on, let what is printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
