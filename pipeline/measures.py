"""What is measured of a shard's steps while they are at hand: moments for the statistics, and what is not finite."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shards.errors import EpisodeError
from shards.features import Feature, kind_of
from shards.manifest import MAX_NONFINITE
from shards.moments import Merging, Moments, measure
from shards.text import printable
from shards.windows import Int64s

from .tasks import Recipe, SourceEpisode


class Measures:
    """What is measured of the steps of a shard, each covered step once."""

    def __init__(self, recipe: Recipe, measured: bool) -> None:
        self._recipe, self._measured = recipe, measured
        self._merging: dict[str, Merging] = {}
        self._nonfinite: dict[tuple[int, str], tuple[int, int]] = {}

    def add(
        self,
        number: int,
        episode: SourceEpisode,
        begin: int,
        fresh: slice | Int64s,
        arrays: Mapping[str, np.ndarray],
    ) -> int:
        """Measure the arrays of a span of episode `number`: of those from step `begin` on, the `fresh` steps.

        Returns how many these are.
        """
        for feature in self._recipe.features:
            values, kind = arrays[feature.name], kind_of(feature.dtype)
            if feature.shape:
                values = values[fresh]
            if feature.shape and self._measured and kind != "c":
                part = measure(values)
                self._merging.setdefault(feature.name, Merging()).add(part)
                suspect = bool(part.nan.any() or part.infinite.any())
            else:
                suspect = kind in "fc" and not _finite(values).all()
            if suspect:
                bad = ~_finite(values)
                step = 0
                if feature.shape:
                    row = int(np.argwhere(bad)[0][0])
                    step = begin + (fresh.start + row if isinstance(fresh, slice) else int(fresh[row]))
                self._tell(number, episode, feature, int(bad.sum()), step)
        return fresh.stop - fresh.start if isinstance(fresh, slice) else len(fresh)

    def _tell(self, number: int, episode: SourceEpisode, feature: Feature, count: int, step: int) -> None:
        if self._recipe.fail_nonfinite:
            where = f"from step {step} on" if feature.shape else "for the whole episode"
            path = printable(self._recipe.root + episode.path)
            raise EpisodeError(
                f"{path} holds NaN or infinite values in {feature.name}, stored as {feature.dtype}, {where}"
            )
        before, first = self._nonfinite.get((number, feature.name), (0, step))
        self._nonfinite[number, feature.name] = before + count if feature.shape else 1, min(first, step)

    def moments(self) -> dict[str, Moments]:
        """The moments of each feature, merged over the spans in their order."""
        found = {name: merging.result() for name, merging in self._merging.items()}
        return {name: part for name, part in found.items() if part is not None}

    def nonfinite(self) -> tuple[tuple[int, str, int, int], ...]:
        """The first (episode, feature, values, first step), as many as a manifest can name."""
        found = sorted((number, name, *told) for (number, name), told in self._nonfinite.items())
        return tuple(found[:MAX_NONFINITE])


def _finite(values: np.ndarray) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):  # bfloat16 raises it for signalling NaNs
        finite: NDArray[np.bool_] = np.isfinite(values)
    return finite
