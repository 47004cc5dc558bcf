"""What a user says of money."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from perfmodel.errors import UsageError


@dataclass(frozen=True)
class Prices:
    """What a user says of money; what is None comes from the catalogue.

    `usd_per_hour` rents one node, electricity included; else `purchase_usd` buys it and is spread
    over `years` of which the machine works `used_frac`, and energy comes on top, `facility_ratio`
    times what the machine draws. Raises `UsageError` for what no price can be, and for figures of
    a machine that is bought beside a rent.
    """

    usd_per_hour: float | None = None
    purchase_usd: float | None = None
    years: float = 4.0
    used_frac: float = 1.0
    usd_per_kwh: float = 0.08
    facility_ratio: float = 1.1

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(f"prices: {part.name} of {value:g}: expected 0 or more")
        said = [name for name in BOUGHT if not is_default(self, name)]
        if said and self.usd_per_hour is not None:
            raise UsageError(f"prices: {said[0]} beside usd_per_hour: a rent includes it")
        if not (self.years > 0 and 0 < self.used_frac <= 1):
            raise UsageError("prices: expected years above 0 and a used_frac above 0, at most 1")


BOUGHT = ("purchase_usd", "years", "usd_per_kwh", "facility_ratio")
"""What a rent leaves nothing to say of."""

ASSUMED = {
    "years": "assumed: 4 years, the usual life of servers in books of cloud companies",
    "used_frac": "assumed: the machine does nothing else, and always this",
    "usd_per_kwh": "US industrial average of 2023, about (EIA), recalled",
    "facility_ratio": "assumed: a modern data centre's PUE",
}
"""Where the defaults of `Prices` come from."""


def is_default(said: Prices, key: str) -> bool:
    """Whether nobody changed a figure."""
    return bool(getattr(said, key) == getattr(Prices, key))
