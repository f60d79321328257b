"""What the checks of single shards come to: each window in its split once, the manifest's statistics, the source."""

from collections.abc import Iterator, Mapping

import numpy as np

from ..manifest import MAX_NONFINITE, Manifest, Nonfinite, Split
from ..naming import EPISODES, MANIFEST
from .against_source import Comparison
from .check_shard import ShardCheck
from .measured_records import Places, add_places
from .record_faults import LISTED, Wrong
from .sections import Sections
from .sums import Sums, confirms, together

_SPARE = 2**20  # records


class SplitFindings:
    """Takes the checks of a split's shards in order, and tells the faults of each and of all together.

    The records that are `there` bound the memory, whatever the manifest claims. Memory: a byte a record.
    """

    def __init__(self, split: Split, sections: Sections | None, paths: Mapping[int, str], there: int) -> None:
        self._split, self._sections, self._paths = split, sections, paths
        self._several = sections is not None and sections.window.per_record > 1
        self._seen = None
        if sections is not None and sections.records <= 8 * there + _SPARE:
            self._seen = np.zeros(sections.records, np.bool_)
        self.whole = True  # as far as it is known

    def add(self, check: ShardCheck, others: list[Wrong]) -> list[str]:
        """The faults of one shard; `others` of its records were found elsewhere."""
        faults, file = list(check.faults), check.shard.file
        for wrong in [*check.wrong, *others]:
            faults += self._records(file, wrong)
        if self._seen is not None and self._sections is not None:
            rows = np.flatnonzero(check.numbers >= 0)
            numbers = check.numbers[rows]
            again = self._seen[numbers]
            if (np.diff(np.sort(numbers)) == 0).any():
                once = np.zeros(len(numbers), np.bool_)
                once[np.unique(numbers, return_index=True)[1]] = True
                again |= ~once
            self._seen[numbers] = True
            if again.any():
                faults += self._records(
                    file, Wrong.of("has once more", rows[again], *self._sections.origins(numbers[again]))
                )
        self.whole &= not faults
        return faults

    def end(self) -> list[str]:
        """The faults of the split as a whole."""
        if self._sections is None:
            self.whole = False
            return []
        if self._seen is None:
            self.whole = False
            return [f"{self._split.name} has {self._sections.records} records by {EPISODES}: its shards hold far fewer"]
        lacking = np.flatnonzero(~self._seen)
        self.whole &= not len(lacking)
        origins = zip(*(part.tolist() for part in self._sections.origins(lacking[:LISTED])), strict=True)
        more = len(lacking) - LISTED
        return [f"{self._split.name} lacks {self._name(*origin)}" for origin in origins] + [
            f"{self._split.name} lacks {more} more such records"
        ] * (more > 0)

    def _records(self, file: str, wrong: Wrong) -> Iterator[str]:
        for row, origin in zip(wrong.records, wrong.origins, strict=True):
            yield f"{file} {wrong.what} in record {row}" + (f", {self._name(*origin)}" if origin[0] >= 0 else "")
        if wrong.total > len(wrong.records):
            yield f"{file} {wrong.what} in {wrong.total - len(wrong.records)} more records"

    def _name(self, episode: int, start: int) -> str:
        path = self._paths.get(episode, f"episode {episode}")
        return f"the window{'s' * self._several} of {path} from step {start} on"


class Measures:
    """Takes the checks of all shards, and compares what they measured with the manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._sums: dict[str, Sums] = {}
        self._nonfinite: Places = {}
        self._whole = {feature.name for feature in manifest.features if not feature.shape}

    def add(self, check: ShardCheck) -> None:
        """Take what was measured of one shard."""
        for name, part in check.sums.items():
            self._sums[name] = together([self._sums[name], part]) if name in self._sums else part
        for key, found in check.nonfinite.items():
            add_places(self._nonfinite, {key: found}, key[1] in self._whole)

    def wrong_statistics(self) -> list[str]:
        """A fault for each feature whose statistics are not those of the training split."""
        manifest, told = self._manifest, {each.feature: each for each in self._manifest.statistics}
        lacking = [name for name in manifest.measured_features if name not in told]
        wrong = [name for name, sums in self._sums.items() if not confirms(sums, told[name])]
        return [f"{MANIFEST} lacks the statistics of {name}" for name in lacking] + [
            f"{MANIFEST} has statistics of {name} that are not those of {manifest.training_split}" for name in wrong
        ]

    def wrong_nonfinite(self) -> list[str]:
        """A fault if the values that are not finite are other ones than the manifest tells."""
        found = [Nonfinite(*key, *place) for key, place in sorted(self._nonfinite.items())][:MAX_NONFINITE]
        told = list(self._manifest.nonfinite)
        if found == told:
            return []
        wrong = next(each for each in [*found, *told] if each not in found or each not in told)
        where = f"{wrong.feature} of episode {wrong.episode}"
        return [f"{MANIFEST} has other values that are not finite than the shards, such as in {where}"]


class SourceFindings:
    """Takes the comparisons of all shards, and tells what is wrong with the source's files, and what has none."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._unusable = np.empty(0, np.int64)
        self._why: dict[int, str] = {}
        self._compared: dict[str, int] = {}
        self._lacking: dict[str, int] = {}

    def add(self, comparison: Comparison) -> None:
        """Take the comparison of one shard."""
        self._unusable = np.union1d(self._unusable, comparison.unusable)
        self._why |= comparison.why
        self._compared |= comparison.compared
        self._lacking |= comparison.lacking

    def faults(self) -> list[str]:
        """The source's files that are not what the dataset was made from."""
        first = self._unusable[:LISTED].tolist()
        faults = [f"{self._paths[number]} {self._why[number]}" for number in first]
        more = len(self._unusable) - len(first)
        faults += [f"{more} more source files cannot be compared"] * (more > 0)
        both = sorted(set(self._lacking) & set(self._compared))
        return faults + [f"{self._paths[self._lacking[name]]} lacks {name}, which other files have" for name in both]

    def notes(self) -> list[str]:
        """The features that could not be compared."""
        names = sorted(set(self._lacking) - set(self._compared))
        return [f"not compared, since no source file has it: {', '.join(names)}"] * bool(names)
