"""Every error this project raises on purpose.

    EpisodeWindowsError             exit status 1
    ├── OptionError                 2  an option, or two options that contradict each other (a ValueError)
    ├── EpisodeError                2  episode files that cannot be used (a ValueError)
    ├── OutputError                 2  an output folder that cannot be written to as asked
    ├── BuildError                  1  a build that began and did not finish
    └── DatasetError                1  what lies on disk is not what a dataset should be
        ├── DatasetNotFoundError    2  no manifest there (a FileNotFoundError)
        ├── SplitNotFoundError      2  the dataset has no split of that name (a KeyError)
        ├── FormatVersionError      1  written by a newer version of this project
        ├── ManifestError           1  a manifest that is damaged or contradicts itself
        └── ShardError              1  a shard that is missing or differs from the manifest

Each message says what is wrong, in which file, why, and what to do. `exit_status` is what the commands exit with: 2
where the user can mend the call, 1 where something failed.
"""

__all__ = [
    "BuildError",
    "DatasetError",
    "DatasetNotFoundError",
    "EpisodeError",
    "EpisodeWindowsError",
    "FormatVersionError",
    "ManifestError",
    "OptionError",
    "OutputError",
    "ShardError",
    "SplitNotFoundError",
]


class EpisodeWindowsError(Exception):
    """Any error of this project."""

    exit_status = 1


class OptionError(EpisodeWindowsError, ValueError):
    """An option has a value it cannot have, or contradicts another."""

    exit_status = 2


class EpisodeError(EpisodeWindowsError, ValueError):
    """Episode files cannot be used: unreadable, of the wrong kind, or at odds with one another."""

    exit_status = 2


class OutputError(EpisodeWindowsError):
    """The output folder cannot take the dataset: occupied, too small, or not writable."""

    exit_status = 2


class BuildError(EpisodeWindowsError):
    """A build began and did not finish; the output folder holds no new dataset."""


class DatasetError(EpisodeWindowsError):
    """What lies on disk is not what a dataset should be."""


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """There is no dataset: no `manifest.json` where one was looked for."""

    exit_status = 2


class SplitNotFoundError(DatasetError, KeyError):
    """The dataset has no split of this name."""

    exit_status = 2
    __str__ = Exception.__str__  # KeyError's would show the message as a quoted literal


class FormatVersionError(DatasetError):
    """The dataset was written by a newer version of this project."""


class ManifestError(DatasetError):
    """The manifest is damaged, or contradicts itself."""


class ShardError(DatasetError):
    """A shard is missing, or differs from what the manifest says of it."""
