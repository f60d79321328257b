"""What `load` may be asked for, checked before anything is read."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from shards.errors import OptionError
from shards.manifest import Manifest
from shards.remote import is_url

from .steps import REMAINDERS, Remainder
from .targets import Batch, Targets

ResidentMode = bool | Literal["copy"]


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of `load` but for the dataset and the split; `load` says what they mean.

    Errors: OptionError for what no dataset could make possible.
    """

    batch_size: int
    shuffle: bool = True
    seed: int = 0
    epochs: int | None = 1
    start_step: int = 0
    features: Sequence[str] | None = None
    targets: Targets = None
    remainder: Remainder | None = None
    provenance: bool = False
    normalize: bool | Sequence[str] = False
    map_fn: Callable[[Batch], Any] | None = None
    pool: int = 64
    verify: bool = False
    cache_dir: str | Path | None = None
    cache_bytes: int | None = None
    resident: ResidentMode = False
    strategy: tf.distribute.Strategy | None = None

    def __post_init__(self) -> None:
        for option, least in (
            ("batch_size", 1),
            ("seed", 0),
            ("pool", 1),
            ("epochs", 1),
            ("start_step", 0),
            ("cache_bytes", 1),
        ):
            number = getattr(self, option)
            if option in {"epochs", "cache_bytes"} and number is None:
                continue
            most = 2**31 if option == "epochs" else 2**63
            if not isinstance(number, int | np.integer) or isinstance(number, bool) or not least <= number < most:
                raise OptionError(f"{option} must be a whole number of {least} or more, not {number!r}")
            object.__setattr__(self, option, int(number))
        for option in ("shuffle", "provenance", "verify"):
            if not isinstance(getattr(self, option), bool | np.bool_):
                raise OptionError(f"{option} must be True or False, not {getattr(self, option)!r}")
        self._check_cache()
        if self.remainder is not None and self.remainder not in REMAINDERS:
            raise OptionError(f"remainder must be one of {', '.join(REMAINDERS)}, not {self.remainder!r}")
        if not (isinstance(self.resident, bool) or self.resident == "copy"):
            raise OptionError(f'resident must be True, False or "copy", not {self.resident!r}')
        if self.map_fn is not None and not callable(self.map_fn):
            raise OptionError(f"map_fn must be a function from dict to dict, not {self.map_fn!r}")
        if self.strategy is not None and not isinstance(self.strategy, tf.distribute.Strategy):
            raise OptionError(f"strategy must be a tf.distribute.Strategy, not {self.strategy!r}")
        if self.batch_size % self.replicas:
            raise OptionError(
                f"batch_size={self.batch_size} is the global batch, and {self.replicas} replicas cannot share it"
                f" equally: choose a multiple of {self.replicas}"
            )

    def _check_cache(self) -> None:
        if self.cache_dir is None:
            if self.cache_bytes is not None:
                raise OptionError("cache_bytes is for cache_dir: give a folder to keep copies of shards in")
            return
        named = isinstance(self.cache_dir, str | os.PathLike) and os.fspath(self.cache_dir)
        if not named or is_url(os.fspath(self.cache_dir)):
            raise OptionError(f"cache_dir must name a local folder, not {self.cache_dir!r}")

    @cached_property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return 1 if self.strategy is None else int(self.strategy.num_replicas_in_sync)

    @property
    def busy(self) -> bool:
        """Whether to make something of batches takes time."""
        return self.normalize is not False or self.map_fn is not None or callable(self.targets)

    def identity(self, manifest: Manifest, split: str, rule: Remainder) -> str:
        """What decides which windows are in which global batch, in words: it is the same for any replicas."""
        order = f"seed={self.seed} pool={self.pool}" if self.shuffle else "shuffle=False"
        left = f" remainder={rule}" if manifest.split(split).windows % self.batch_size else ""
        parts = f" parts={self.replicas}" if self.resident is True and self.replicas > 1 else ""
        return f"dataset={manifest.fingerprint[:16]} split={split} batch_size={self.batch_size}{left} {order}{parts}"

    def rule(self, windows: int) -> Remainder:
        """What becomes of windows that are no full global batch, out of so many. Errors: OptionError."""
        left = windows % self.batch_size
        if self.remainder == "drop" and windows < self.batch_size:
            raise OptionError(f'remainder="drop" leaves nothing: there are {windows} windows, less than a batch')
        if self.remainder == "keep" and self.replicas > 1 and left:
            raise OptionError(
                f'remainder="keep" gives {self.replicas} replicas unequal parts of the last {left} windows:'
                ' choose "drop" or "repeat"'
            )
        return self.remainder or ("keep" if self.strategy is None else "repeat")
