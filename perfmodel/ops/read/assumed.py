"""What is assumed where a program makes integers of floats, which have no values: by operator, a
share of booleans that are true, of rows that choose the first, of what is distinct; or a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, isinf, prod
from types import MappingProxyType
from typing import Any, TypeAlias

from perfmodel.errors import UsageError
from perfmodel.ops.read.tracing import place

CHOICES = frozenset(("topk", "sort", "argmax", "argmin", "max", "min", "multinomial"))
"""What chooses indices along a dimension: each alike, unless assumed otherwise."""
Shares: TypeAlias = Mapping[str, float]
"""By operator."""
SHARES: Shares = MappingProxyType(
    {"isnan": 0.0, "isinf": 0.0, "isfinite": 1.0, "_is_all_true": 1.0}
)
"""Booleans of floats: what share of them is true unless assumed otherwise. Parameters of
distributions are asked whether all are as they have to be."""
NUMBERS = frozenset(("item",))
"""Operators of which the value itself is assumed, no share."""
_ROUND = 1e-9
"""Below the rounding of shares such as a third."""


@dataclass(frozen=True)
class Assumption:
    """A share, or a number, that sizes depend on."""

    name: str
    share: float
    what: str

    @property
    def has_odds(self) -> bool:
        return self.name not in NUMBERS and 0 < self.share < 1

    def __str__(self) -> str:
        how = f" (--assume {self.name}={self.share:.4g})" if self.name else ""
        return f"assumed: {self.what}{how}"


ALIKE = Assumption("", 1.0, "other ranks send what this one does")
"""Of integers that ranks exchange; nothing else can be said of them."""


class Assumptions:
    """`shares` by operator, `usual` of others, at `odds` times theirs."""

    def __init__(
        self, torch: Any, shares: Shares, usual: Shares = SHARES, odds: float = 1.0
    ) -> None:
        self._torch, self._given, self._odds = torch, shares, odds
        self.shares = {**usual, **shares}
        self.used: set[Assumption] = set()
        """What something that was asked for depends on."""

    def of_result(
        self, name: str, named: Mapping[str, Any], result: Any
    ) -> tuple[Assumption, Callable[[], Any]] | None:
        """Of integers that an operator makes of floats: what is assumed, and what makes them;
        None where nothing is. `named` are its arguments."""
        share, shape = self.shares.get(name), tuple(result.shape)
        if name not in CHOICES:
            # Floats are taken to be finite, which PyTorch asks as `x == x` and `x.abs() != inf`.
            if share is None and name in ("eq", "ne"):
                is_same, other = named["self"] is named["other"], named["other"]
                if is_same or (isinstance(other, float) and isinf(other)):
                    share = float((name == "eq") == is_same)
            if share is None or result.dtype != self._torch.bool:
                return None
            what = f"{share:.4g} of {name} are true, {place()}"
            make = partial(_spread, self._torch, shape, self._at_odds(share))
            return Assumption(name, share, what), make
        of, dim = named["self"].shape, named.get("dim", -1)
        options = prod(of) if dim is None else of[dim]
        kept = dim if len(shape) == len(of) else None
        picks = 1 if kept is None else shape[kept]
        even = picks / max(options, 1)
        what = f"{name} chooses each of {options} alike"
        if share is not None:
            what = f"{share:.4g} of the rows of {name} choose the first of {options}"
        share = even if share is None else share
        taken = None if self._odds == 1 and share == even else self._at_odds(share)
        make = partial(_chosen, self._torch, shape, kept, options, picks, taken)
        return Assumption(name, share, f"{what}, {place()}"), make

    def stand_in(self, name: str) -> Callable[[Sequence[int]], Any] | None:
        """What makes, of a shape, floats in place of those that an operator asks for; None where
        nothing is assumed."""
        if not (name in STAND_INS and name in self.shares):
            return None
        share = self.shares[name]
        self.used.add(Assumption(name, share, f"{name} of floats, {place()}"))
        share = share if name in NUMBERS else self._at_odds(share)
        return lambda shape: STAND_INS[name](self._torch, tuple(shape), share)

    def check_used(self, program: str) -> None:
        """Raises `UsageError` where no size depends on something that is assumed."""
        asked = sorted({each.name for each in self.used} - {ALIKE.name})
        unused = sorted(set(self._given) - set(asked))
        if unused:
            raise UsageError(
                f"{program}: assume {unused[0]}: no size depends on an operator of that name"
                + (f"; on these: {', '.join(asked)}" if asked else "")
            )

    def _at_odds(self, share: float) -> float:
        return self._odds * share / (1 + (self._odds - 1) * share)


def check_shares(shares: Shares) -> None:
    """Raises `UsageError` for what is no share by operator, or no number."""
    for name, share in shares.items():
        if not (isfinite(share) and (name in NUMBERS or 0 <= share <= 1)):
            raise UsageError(f"assume {name}={share:g}: a share is from 0 to 1")


def hint(name: str) -> str:
    """How to assume something of an operator."""
    return f": --assume {name}={'NUMBER' if name in NUMBERS else 'FRACTION'}"


def _spread(torch: Any, shape: Sequence[int], share: float) -> Any:
    """Booleans of which a share is true, spread evenly."""
    steps = torch.arange(prod(shape) + 1, dtype=torch.float64) * share
    return (steps + _ROUND).floor().diff().bool().reshape(shape)


def _chosen(
    torch: Any, shape: Sequence[int], dim: int | None, options: int, picks: int, share: float | None
) -> Any:
    """For each row different ones of `options`, in turn; of a `share` of the rows the first."""
    made = torch.arange(prod(shape)).reshape(-1, max(picks, 1))
    if share is None or picks >= options:
        made %= max(options, 1)
    else:
        made = 1 + made % (options - 1)
        made[_spread(torch, made.shape[:1], share), 0] = 0
    if dim is None:
        return made.reshape(shape)
    before = [size for at, size in enumerate(shape) if at != dim % len(shape)]
    return made.reshape(*before, picks).movedim(-1, dim)


STAND_INS: dict[str, Callable[[Any, Sequence[int], float], Any]] = {
    "nonzero": _spread,
    "unique": lambda torch, shape, share: (
        (torch.arange(prod(shape)) * share).floor().reshape(shape)
    ),
    "item": lambda torch, shape, number: torch.full(shape, number),
}
"""What stands for floats whose values are asked for."""
