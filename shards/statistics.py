"""What the manifest says of a feature's values, from their moments and to JSON and back."""

import math
from dataclasses import dataclass
from typing import Any

from .document import Document
from .moments import Moments, total


@dataclass(frozen=True)
class Summary:
    """What the manifest says of some values: mean, std, min and max are those of the `count` finite ones.

    std is that of a population: the root of the mean squared deviation. All are 0.0 where count is 0.
    """

    count: int
    mean: float
    std: float
    min: float
    max: float
    nan: int
    infinite: int


@dataclass(frozen=True)
class Statistics:
    """What the manifest says of the values of one feature in the training split.

    `components` has one for each entry of the last axis of a step; it is (total,) where a step is a single number.
    """

    feature: str
    total: Summary
    components: tuple[Summary, ...]


def summarize(feature: str, moments: Moments) -> Statistics:
    """The statistics of a feature from the moments of its values."""
    return Statistics(feature, _summaries(total(moments))[0], _summaries(moments))


def _summaries(moments: Moments) -> tuple[Summary, ...]:
    names = ("count", "nan", "infinite", "mean", "squares", "low", "high")
    rows = zip(*(getattr(moments, name).tolist() for name in names), strict=True)
    return tuple(
        Summary(count, mean, math.sqrt(squares / count), low, high, nan, infinite)
        if count
        else Summary(0, 0.0, 0.0, 0.0, 0.0, nan, infinite)
        for count, nan, infinite, mean, squares, low, high in rows
    )


def statistics_document(statistics: Statistics) -> dict[str, Any]:
    """The statistics in JSON's types: the total as an object, the components as an object of lists."""
    return {
        "feature": statistics.feature,
        "total": dict(vars(statistics.total)),
        "components": {
            key: [getattr(component, key) for component in statistics.components] for key in vars(statistics.total)
        },
    }


def parse_statistics(item: Document) -> Statistics:
    """The inverse of `statistics_document`.

    Errors: ManifestError for anything missing, unknown or contradictory.
    """
    feature = item.text("feature")
    one, lists = item.object("total"), item.object("components")
    whole = Summary(
        count=one.integer("count"),
        **{key: one.number(key) for key in ("mean", "std", "min", "max")},
        nan=one.integer("nan"),
        infinite=one.integer("infinite"),
    )
    columns = {
        "count": lists.integers("count"),
        **{key: lists.numbers(key) for key in ("mean", "std", "min", "max")},
        "nan": lists.integers("nan"),
        "infinite": lists.integers("infinite"),
    }
    for document in (one, lists, item):
        document.end()
    for key, column in columns.items():
        if len(column) != len(columns["count"]) or not column:
            raise lists.wrong(key, "must have as many entries as the other lists, and one at least")
    components = tuple(Summary(*row) for row in zip(*columns.values(), strict=True))
    for document, summary in ((one, whole), *((lists, component) for component in components)):
        if not summary.count and (summary.mean, summary.std, summary.min, summary.max) != (0.0,) * 4:
            raise document.wrong("count", "is 0, and so must be mean, std, min and max")
        if summary.std < 0:
            raise document.wrong("std", f"is {summary.std}, less than 0")
        if not summary.min <= summary.mean <= summary.max:
            raise document.wrong("mean", f"is {summary.mean}, not in [{summary.min}, {summary.max}]: min to max")
    for key in ("count", "nan", "infinite"):
        if getattr(whole, key) != sum(columns[key]):
            raise one.wrong(key, f"is not the sum of the components', {sum(columns[key])}")
    filled = [component for component in components if component.count]
    for key, extreme in (("min", min), ("max", max)):
        if getattr(whole, key) != extreme((getattr(component, key) for component in filled), default=0.0):
            raise one.wrong(key, "is not that of the components")
    if len(components) == 1 and components[0] != whole:
        raise item.wrong("components", "has one entry, which is not the total")
    return Statistics(feature, whole, components)
