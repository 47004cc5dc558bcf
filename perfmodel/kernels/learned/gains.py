"""Effects of one figure that are slopes of their own, per op and device, beside the trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.kernels.learned.devices import Description
from perfmodel.ops.rows import Ints
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Gains:
    """Per op, what one more of `figure` adds to the log of the time on each device known."""

    figure: str
    slopes: Mapping[str, Mapping[int, float]]
    """By op, then by the device's place among the part's devices."""

    def of(
        self,
        figures: Mapping[str, Floats],
        groups: Sequence[tuple[str, Ints]],
        near: tuple[int, ...],
    ) -> Floats:
        """Log factors `[n]`, of the devices `near`, else the median of those known."""
        values = figures[self.figure]
        found = np.zeros(len(values))
        for op, index in groups:
            known = self.slopes.get(op, {})
            own = [known[place] for place in near if place in known] or list(known.values())
            if own:
                found[index] = float(np.median(own)) * values[index]
        return found


NONE = Gains("", {})


def places_of(device: Description, known: Sequence[Description]) -> tuple[int, ...]:
    """Where `device` stands among `known`; nowhere for one that is not."""
    return tuple(place for place, each in enumerate(known) if each == device)
