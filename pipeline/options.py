"""What a build is asked for, as one frozen dataclass that is checked when it is made."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, get_args

from shards.errors import OptionError
from shards.naming import NAME_RULE, is_name, is_split_name, to_name

MIB = 2**20
OnError = Literal["fail", "skip"]


@dataclass(frozen=True)
class BuildOptions:
    """Everything that `plan` and `build` take.

    inputs: files, folders (every `.npy` below) or globs with `**`; local paths or URLs that Beam's FileSystems open.
    output: the dataset's folder, local or a URL.
    window_length, shift: in steps; `shift` None means `window_length`, windows side by side.
    name: of the dataset; None means after the output folder.
    splits: {name: fraction}, in order; a fraction is a decimal number such as "0.8", and all together make 1.
    seed: of the splits and of the order of windows on disk.
    num_shards: {split: shards}, or one number for every split; other splits get shards of about `shard_size`, in bytes.
    workers: local processes; None means one a core.
    on_error: what to do about episode files that cannot be used: "fail", or "skip" and list them.
    overwrite: replace a dataset that is already there.
    beam_args: further flags, handed to Beam.
    verbose: let Beam's own log through.
    """

    inputs: tuple[str, ...]
    output: str
    window_length: int
    shift: int | None = None
    name: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"train": "1"}))
    seed: int = 0
    num_shards: Mapping[str, int] | int | None = None
    shard_size: int = 128 * MIB
    workers: int | None = None
    on_error: OnError = "fail"
    overwrite: bool = False
    beam_args: tuple[str, ...] = ()
    verbose: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str | os.PathLike) or not self.inputs or not all(map(_is_path, self.inputs)):
            raise OptionError("inputs must be a sequence of one or more files, folders or globs")
        if not _is_path(self.output):
            raise OptionError("output must name a folder")
        object.__setattr__(self, "inputs", tuple(map(os.fspath, self.inputs)))
        object.__setattr__(self, "output", os.fspath(self.output))
        for option, value, least in (
            ("window_length", self.window_length, 1),
            ("shift", self.shift, 1),
            ("seed", self.seed, 0),
            ("shard_size", self.shard_size, 1),
            ("workers", self.workers, 1),
        ):
            if value is None and option in {"shift", "workers"}:
                continue
            if type(value) is not int or not least <= value < 2**63:
                raise OptionError(f"{option} must be a whole number of {least} or more, not {value!r}")
        if self.name is not None and not is_name(self.name):
            raise OptionError(f"name {self.name!r} must be {NAME_RULE}")
        if self.on_error not in get_args(OnError):
            raise OptionError(f"on_error must be fail or skip, not {self.on_error!r}")
        _check_splits(self.splits)
        if not isinstance(self.num_shards, int | Mapping | None):
            raise OptionError(f"num_shards must be a whole number or one a split, not {self.num_shards!r}")
        if isinstance(self.num_shards, Mapping):
            for split in self.num_shards:
                if split not in self.splits:
                    raise OptionError(f"num_shards names {split!r}, which is none of the splits {list(self.splits)}")
        for split in self.splits:
            shards = self.shards_of(split)
            if shards is not None and (type(shards) is not int or shards < 1):
                raise OptionError(f"num_shards of {split} must be a whole number of 1 or more, not {shards!r}")

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
            raise OptionError(f"the fraction of split {split} must be a decimal number such as 0.8, not {fraction!r}")
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
