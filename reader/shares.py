"""What each replica holds, and draws its batches from, where raw steps lie in device memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shards.dataset import Windows
from shards.keyed_hash import keyed_hash
from shards.manifest import Manifest
from shards.pieces import Piece
from shards.windows import Int64s

from .options import LoadOptions
from .order import FixedOrder, Order, ShuffledOrder
from .raw_steps import Places, part_of, place
from .steps import Steps


@dataclass(frozen=True)
class Share:
    """What a replica holds and draws from: the windows of ascending `numbers`, and which of them its steps take."""

    numbers: Int64s
    places: Places
    order: Order
    windows: Sequence[int]  # of each piece of the order
    steps: Steps


def shares(
    chosen: Windows, manifest: Manifest, whole: Steps, pieces: Sequence[Piece], order: Order, options: LoadOptions
) -> list[Share]:
    """The share of each replica: of all windows as in any stream, or its own part of them, in an order of its own."""
    where, replicas = chosen.provenance(), options.replicas
    episode, start = where["episode"], where["start"]
    if replicas == 1 or options.resident == "copy":
        places, every = place(episode, start, manifest.window), np.arange(len(chosen))
        windows = [piece.windows for piece in pieces]
        each = [replace(whole, part=part, parts=replicas) for part in range(replicas)]
        return [Share(every, places, order, windows, steps) for steps in each]
    along = np.lexsort((start, episode))
    found = []
    for part in range(replicas):
        mine = part_of(along, part, replicas, repeat=whole.remainder != "keep")
        places = place(episode[mine], start[mine], manifest.window)
        if options.shuffle:
            seed = int(keyed_hash(np.array([part]), options.seed)[0] >> np.uint64(1))  # or all would shuffle alike
            own: Order = ShuffledOrder(np.array([len(mine)]), seed, 1)
        else:
            own = FixedOrder(np.zeros_like(mine), np.lexsort((start[mine], episode[mine])))
        found.append(Share(mine, places, own, [len(mine)], Steps(len(mine), whole.batch // replicas, whole.remainder)))
    return found
