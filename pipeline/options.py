"""What a build is asked for, as one frozen dataclass that is checked when it is made."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, get_args

from shards.errors import OptionError
from shards.features import DTYPES
from shards.naming import FEATURE_RULE, NAME_RULE, is_feature_name, is_name, is_split_name, to_name
from shards.windows import MAX_STEPS_APART, TAILS, Tail, WindowSpec

MIB = 2**20
OnError = Literal["fail", "skip"]
Nonfinite = Literal["warn", "fail"]


@dataclass(frozen=True)
class BuildOptions:
    """Everything that `plan` and `build` take.

    inputs: files, folders (every `.npy` and `.npz` below) or globs with `**`; local paths or URLs that Beam's
        FileSystems open.
    output: the dataset's folder, local or a URL.
    window_length, shift, stride: in steps; `shift` None means `window_length`.
    tail: what becomes of the last steps: "drop", "pad" or "align", as in `shards.windows.WindowSpec`.
    windows_per_record: windows that share a record and store their overlap once; "auto" for what makes least bytes.
    features: the arrays to take, in this order; None means all, by name.
    dtype: {feature: dtype to store it as}.
    labels: a CSV file with a column `path` and further columns, each a feature of the episode.
    name: of the dataset; None means after the output folder.
    splits: {name: fraction}, in order; a fraction is a decimal number such as "0.8", and all together make 1. Or
        "dirs": the first folder of an episode's path names its split. None means all in train, or as `splits_from` has
        it.
    split_by: "episode": whole episodes; "time": the first part of each episode, the next, ...; "hash": whole episodes,
        each by a hash of its path, or group, alone.
    splits_from: the column of `labels` that names each episode's split.
    group_by: a column of `labels`, or a regular expression for paths: episodes of a group come to one split.
    purge: steps left out between two splits of an episode that is split by time, besides those that none may share.
    seed: of the splits and of the order of windows on disk.
    num_shards: {split: shards}, or one number for every split; other splits get shards of about `shard_size`, in bytes.
    workers: local workers; None means one a core up to 16, if there is work and memory for them.
    on_error: what to do about episode files that cannot be used: "fail", or "skip" and list them.
    nonfinite: what to do about NaN and infinity: "warn" or "fail".
    overwrite: replace a dataset that is already there, once the new one is whole; begin anew where a build of other
        options or episodes was interrupted.
    report: a file for what each stage counted, as JSON.
    beam_args: further flags, handed to Beam.
    verbose: let Beam's own log through.
    """

    inputs: tuple[str, ...]
    output: str
    window_length: int
    shift: int | None = None
    stride: int = 1
    tail: Tail = "drop"
    windows_per_record: int | Literal["auto"] = 1
    features: tuple[str, ...] | None = None
    dtype: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    labels: str | None = None
    name: str | None = None
    splits: Mapping[str, str] | Literal["dirs"] | None = None
    split_by: Literal["episode", "time", "hash"] = "episode"
    splits_from: str | None = None
    group_by: str | None = None
    purge: int = 0
    seed: int = 0
    num_shards: Mapping[str, int] | int | None = None
    shard_size: int = 128 * MIB
    workers: int | None = None
    on_error: OnError = "fail"
    nonfinite: Nonfinite = "warn"
    overwrite: bool = False
    report: str | None = None
    beam_args: tuple[str, ...] = ()
    verbose: bool = False

    def __post_init__(self) -> None:
        listed = isinstance(self.inputs, Iterable) and not isinstance(self.inputs, str | bytes | os.PathLike)
        if not listed or not (inputs := tuple(self.inputs)) or not all(map(_is_path, inputs)):
            raise OptionError("inputs must be a sequence of one or more files, folders or globs")
        for option in ("output", "labels", "report"):
            value = getattr(self, option)
            if not _is_path(value) and (option == "output" or value is not None):
                raise OptionError(f"{option} must name a {'folder' if option == 'output' else 'file'}")
        object.__setattr__(self, "inputs", tuple(map(os.fspath, inputs)))
        object.__setattr__(self, "output", os.fspath(self.output))
        for option in ("labels", "report"):
            value = getattr(self, option)
            object.__setattr__(self, option, None if value is None else os.fspath(value))
        self._check_numbers()
        for option, value, choices in (
            ("tail", self.tail, TAILS),
            ("split_by", self.split_by, ("episode", "time", "hash")),
            ("on_error", self.on_error, get_args(OnError)),
            ("nonfinite", self.nonfinite, get_args(Nonfinite)),
        ):
            if not isinstance(value, str) or value not in choices:
                raise OptionError(f"{option} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
        for option in ("overwrite", "verbose"):
            if not isinstance(getattr(self, option), bool):
                raise OptionError(f"{option} must be True or False, not {getattr(self, option)!r}")
        flags = self.beam_args
        if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) for flag in flags):
            raise OptionError(f"beam_args must be a sequence of flags such as ('--runner=...',), not {flags!r}")
        object.__setattr__(self, "beam_args", tuple(flags))
        if not isinstance(self.splits_from, str | None):
            raise OptionError(f"splits_from must name a column of labels, not {self.splits_from!r}")
        if self.name is not None and not is_name(self.name):
            raise OptionError(f"name {self.name!r} must be {NAME_RULE}")
        self._check_features()
        self._check_splitting()
        self._check_num_shards()

    def _check_numbers(self) -> None:
        for option, value, least in (
            ("window_length", self.window_length, 1),
            ("shift", self.shift, 1),
            ("stride", self.stride, 1),
            ("windows_per_record", self.windows_per_record, 1),
            ("purge", self.purge, 0),
            ("seed", self.seed, 0),
            ("shard_size", self.shard_size, 1),
            ("workers", self.workers, 1),
        ):
            if (value is None and option in {"shift", "workers"}) or (option, value) == ("windows_per_record", "auto"):
                continue
            most = MAX_STEPS_APART if option in {"window_length", "shift", "stride", "windows_per_record"} else 2**63
            if type(value) is not int or not least <= value < most:
                reach = f"{least} or more" if most == 2**63 else f"{least} to {most - 1}"
                auto = " or auto" if option == "windows_per_record" else ""
                raise OptionError(f"{option} must be a whole number of {reach}{auto}, not {value!r}")

    def _check_features(self) -> None:
        if self.features is not None:
            listed = isinstance(self.features, Sequence) and not isinstance(self.features, str)
            names = list(self.features) if listed else []
            if not names or not all(isinstance(name, str) and is_feature_name(name) for name in names):
                raise OptionError(f"features must be a sequence of names, not {self.features!r}; each {FEATURE_RULE}")
            object.__setattr__(self, "features", tuple(self.features))
            if len(set(self.features)) < len(self.features):
                raise OptionError(f"features names one twice: {', '.join(self.features)}")
        if not isinstance(self.dtype, Mapping):
            raise OptionError(f"dtype must be a mapping from features to dtypes, not {self.dtype!r}")
        for feature, dtype in self.dtype.items():
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise OptionError(f"dtype of {feature} must be one of {', '.join(DTYPES)}, not {dtype!r}")

    def _check_splitting(self) -> None:
        given = "splits_from" if self.splits_from is not None else "splits=dirs" if self.splits == "dirs" else None
        if isinstance(self.splits, Mapping):
            _check_splits(self.splits)
        elif self.splits not in (None, "dirs"):  # which may be unhashable
            raise OptionError(f"splits must be fractions such as train=0.8,test=0.2, or dirs, not {self.splits!r}")
        for wrong, why in (
            (self.splits_from is not None and self.splits is not None, "splits_from and splits contradict each other"),
            (self.splits_from is not None and self.labels is None, "splits_from names a column of labels: give labels"),
            (given and self.split_by != "episode", f"{given} and split_by={self.split_by} contradict each other"),
            (
                self.split_by == "time" and self.group_by,
                "group_by and split_by=time contradict each other: time splits every episode, a group is kept together",
            ),
            (
                self.split_by != "episode" and self.fractions is not None and len(self.fractions) < 2,
                f"split_by={self.split_by} needs splits of two names or more, such as train=0.8,test=0.2",
            ),
            (self.purge and self.split_by != "time", "purge is for split_by=time only"),
            (
                not isinstance(self.group_by, str | None) or self.group_by == "",
                "group_by must be a column of labels or a regular expression",
            ),
        ):
            if wrong:
                raise OptionError(why)

    def _check_num_shards(self) -> None:
        counts = {"every split": self.num_shards} if not isinstance(self.num_shards, Mapping) else self.num_shards
        if not isinstance(self.num_shards, int | Mapping | None):
            raise OptionError(f"num_shards must be a whole number or one a split, not {self.num_shards!r}")
        for split, shards in counts.items():
            if shards is not None and (type(shards) is not int or shards < 1):
                raise OptionError(f"num_shards of {split} must be a whole number of 1 or more, not {shards!r}")
        if isinstance(self.num_shards, Mapping) and self.fractions is not None:
            self.check_split_names(self.fractions)

    def check_split_names(self, splits: Iterable[str]) -> None:
        """OptionError if num_shards names a split that is none of these."""
        for split in self.num_shards if isinstance(self.num_shards, Mapping) else ():
            if split not in splits:
                raise OptionError(f"num_shards names {split!r}, which is none of the splits {list(splits)}")

    @property
    def fractions(self) -> Mapping[str, str] | None:
        """The fraction of each split; None where each episode's split is given."""
        if self.splits_from is not None or self.splits == "dirs":
            return None
        return self.splits if isinstance(self.splits, Mapping) else {"train": "1"}

    @property
    def window(self) -> WindowSpec:
        """How windows are cut, one a record where "auto" has yet to decide."""
        per_record = 1 if self.windows_per_record == "auto" else self.windows_per_record
        return WindowSpec(self.window_length, self.step_shift, self.stride, self.tail, per_record)

    @property
    def step_shift(self) -> int:
        """The shift in steps, with its default filled in."""
        return self.window_length if self.shift is None else self.shift

    @property
    def dataset_name(self) -> str:
        """The dataset's name, with its default filled in."""
        return self.name or to_name(os.path.basename(os.path.abspath(self.output)))

    def shards_of(self, split: str) -> int | None:
        """How many shards were asked for this split; None where `shard_size` decides."""
        if self.num_shards is None or isinstance(self.num_shards, int):
            return self.num_shards
        return self.num_shards.get(split)


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))


def _check_splits(splits: Mapping[str, str]) -> None:
    if not splits:
        raise OptionError("splits must name one split or more, such as train=1")
    for split, fraction in splits.items():
        if not is_split_name(split):
            raise OptionError(f"split {split!r} must be {NAME_RULE}")
        if not isinstance(fraction, str) or not re.fullmatch(r"[0-9]{1,9}|[0-9]{0,9}\.[0-9]{1,99}", fraction):
            raise OptionError(
                f'the fraction of split {split} must be a decimal number as text, such as "0.8", not {fraction!r}'
            )
        if not Fraction(fraction):
            raise OptionError(f"the fraction of split {split} is 0; leave the split out instead")
    total = sum(map(Fraction, splits.values()))
    if total != 1:
        listed = " + ".join(splits.values())
        raise OptionError(f"the splits' fractions must add up to 1, but {listed} = {float(total):g}")


def parse_splits(text: str) -> dict[str, str]:
    """Split fractions as they are typed.

    >>> parse_splits("train=0.8,test=0.2")
    {'train': '0.8', 'test': '0.2'}
    """
    return _parse_pairs(text, "splits", "train=0.8,validation=0.1,test=0.1")


def parse_num_shards(text: str) -> dict[str, int] | int:
    """Shard counts as they are typed: one number for every split, or one a split.

    >>> parse_num_shards("16"), parse_num_shards("train=16,validation=2")
    (16, {'train': 16, 'validation': 2})
    """
    example = "train=16,validation=2"
    counts = {"": text} if "=" not in text else _parse_pairs(text, "num_shards", example)
    for count in counts.values():
        if not re.fullmatch("[0-9]{1,9}", count):
            raise OptionError(f"num_shards must be like 16 or {example}, not {text!r}")
    numbers = {split: int(count) for split, count in counts.items()}
    return numbers.get("", numbers)


def parse_features(text: str) -> tuple[str, ...]:
    """Names as they are typed.

    >>> parse_features("observation,action")
    ('observation', 'action')
    """
    return tuple(name.strip() for name in text.split(","))


def parse_dtype(text: str) -> dict[str, str]:
    """Dtypes as they are typed.

    >>> parse_dtype("observation=float16,reward=float32")
    {'observation': 'float16', 'reward': 'float32'}
    """
    return _parse_pairs(text, "dtype", "observation=float16")


def parse_windows_per_record(text: str) -> int | Literal["auto"]:
    """A number as it is typed, or "auto"."""
    if text == "auto":
        return "auto"
    if not re.fullmatch("[0-9]{1,10}", text):
        raise OptionError(f"windows_per_record must be a whole number of 1 or more or auto, not {text!r}")
    return int(text)


def parse_size(text: str) -> int:
    """Bytes as they are typed.

    >>> parse_size("128MiB"), parse_size("1.5GB"), parse_size("4096")
    (134217728, 1500000000, 4096)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(?:([kKMGT])(i?)B|B)?", text)
    if match is None:
        raise OptionError(f"shard_size must be a size such as 128MiB, 1GB or 4096, not {text!r}")
    number, prefix, binary = match.groups()
    power = " KMGT".index((prefix or " ").upper())
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


def _parse_pairs(text: str, option: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise OptionError(f"{option} must be like {example}, not {text!r}")
        if key in pairs:
            raise OptionError(f"{option} names {key} twice: {text!r}")
        pairs[key] = value
    return pairs
