"""Low precision: rows, layers and exchanges in as few bits as error budgets let them have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import get_args, get_type_hints

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.surrogate import mlp_us
from perfmodel.errors import WorkloadError
from perfmodel.ops.spec import QUANTISED, item_bytes, row_bytes
from perfmodel.workload.settings import Implementation

ROUNDING_ERRORS = {
    "fp32": 2.0**-24 / sqrt(3),
    "tf32": 2.0**-11 / sqrt(3),
    "fp16": 2.0**-11 / sqrt(3),
    "bf16": 2.0**-8 / sqrt(3),
    "fp8": 2.0**-4 / sqrt(3),
    "int8": 1 / (2.0**8 - 1),
    "int4": 1 / (2.0**4 - 1),
}
"""Root mean square of the error over that of the values. Floating point: half a unit in the last
place, evenly spread (fp8: e4m3). Integers: as many steps over the range of a row, values spread
evenly over it (a long-tailed row rounds worse: scale the budget)."""
KEEP = "keep"
"""The type that something has already, which every budget bears."""


def error_of(dtype: str) -> float:
    """Relative error of rounding to `dtype`; `WorkloadError` for an unknown type."""
    settings.require_known("low_precision", "dtype", dtype, ROUNDING_ERRORS)
    return ROUNDING_ERRORS[dtype]


def within(budget: float, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `dtypes` whose error is at most `budget`."""
    return tuple(dtype for dtype in dtypes if error_of(dtype) <= budget)


@dataclass(frozen=True)
class Choice:
    """One layer or table: `us` of a layer's product (`wide_us` in the type that it has already),
    `bytes` of weights or rows, and what keeps it from fewer bits (`held_by`)."""

    name: str
    dtype: str
    error: float
    budget: float
    us: float
    wide_us: float
    bytes: float
    wide_bytes: float
    held_by: str


@dataclass(frozen=True)
class Search:
    """Choices of all layers (bottom MLP, then top) and tables, and the type of the exchange."""

    layers: tuple[Choice, ...]
    tables: tuple[Choice, ...]
    exchange: str

    @property
    def higher(self) -> tuple[str, ...]:
        """Layers and tables that stay in a higher precision than the narrowest one chosen."""
        return tuple(
            choice.name
            for choices in (self.layers, self.tables)
            for choice in choices
            if choice.error < max(each.error for each in choices)
        )

    @property
    def saved_bytes(self) -> float:
        return sum(each.wide_bytes - each.bytes for each in (*self.layers, *self.tables))


def _layers(
    deployment: Deployment, budgets: Sequence[float], dtypes: tuple[str, ...]
) -> Iterator[Choice]:
    """Per layer the type in which its product takes least, of those within its budget."""
    workload = deployment.workload
    wide = workload.implementation.precision
    named = [
        (f"{name}[{number}]", n * k)
        for name, own in (("bottom", workload.bottom_widths), ("top", workload.top_widths))
        for number, (k, n) in enumerate(pairwise(own))
    ]
    each = _one_each(budgets, len(named), "layers")
    if not named:  # recorded layers are kept as they are
        return
    tried = (wide, *(dtype for dtype in dtypes if dtype != wide))
    about = workload, deployment.machine, deployment.samples
    taken = {dtype: mlp_us(*about, dtype).tolist() for dtype in tried}
    for at, ((name, weights), budget) in enumerate(zip(named, each, strict=True)):
        allowed = [dtype for dtype in tried if dtype in {wide, *within(budget, dtypes)}]
        dtype, free = (
            min(those, key=lambda d: (taken[d][at], error_of(d))) for those in (allowed, tried)
        )
        narrower = [other for other in dtypes if error_of(other) > error_of(dtype)]
        held = "no faster" if narrower else ""
        held = "error budget" if free in narrower and free not in allowed else held
        own, usual = (weights * item_bytes(each) for each in (dtype, wide))
        us = taken[dtype][at], taken[wide][at]
        yield Choice(name, dtype, error_of(dtype), budget, *us, own, usual, held)


def _tables(
    deployment: Deployment, budgets: Sequence[float], dtypes: tuple[str, ...]
) -> Iterator[Choice]:
    """Per table the narrowest type within its budget."""
    tables, placed = deployment.workload.tables, deployment.placement.tables
    each = _one_each(budgets, len(tables), "tables")
    for number, (table, about, budget) in enumerate(zip(tables, placed, each, strict=True)):
        sizes = {
            dtype: table.rows * float(row_bytes(dtype, table.dim))
            for dtype in (*dtypes, about.dtype)
        }
        allowed = {about.dtype, *within(budget, dtypes)} & set(sizes)
        dtype = min(allowed, key=lambda d: (sizes[d], error_of(d)))
        refused = any(sizes[d] < sizes[dtype] for d in dtypes)
        held, bytes_ = "error budget" if refused else "", (sizes[dtype], sizes[about.dtype])
        yield Choice(f"tables[{number}]", dtype, error_of(dtype), budget, 0.0, 0.0, *bytes_, held)


def _one_each(budgets: Sequence[float], count: int, what: str) -> tuple[float, ...]:
    if len(budgets) not in (1, count):
        raise WorkloadError(
            f"low_precision: {len(budgets)} error budgets for {count} {what}: one for each, or one"
        )
    return tuple(budgets) * (count if len(budgets) == 1 else 1)


HALF = ("fp16", "bf16", "fp32", "tf32")
KEPT = settings.instead((KEEP,))


def _named(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `dtypes` that are the name of a type."""
    return tuple(dtype for dtype in dtypes if dtype != KEEP)


@dataclass(frozen=True)
class LowPrecision(settings.Checked, of="low_precision"):
    """Rows, layers and exchanges in fewer bits, layer by layer within the user's error budgets.

    `layer_errors`: relative rounding error that each layer bears (bottom MLP, then top), one for
    all or one for each; the first and the last bear `ends_error` unless each has its own.
    `table_errors`: the same of tables; `exchange_errors`: of pooled rows on the wire, and of their
    gradients on the way back, one for both or one for each (software has one type for both ways).
    `layer_dtypes`, `row_dtypes`: what may be chosen beside the type that each has; `exchange`: that
    of the wire, where it is borne. `keep` as any of them leaves what there is; without a budget for
    anything narrower the step is that without the design. In training 16 bits
    are the fewest. Defaults: int8 is borne but at the ends; assumed, as production ranking keeps
    them (Deng et al. 2021 search per model; their budgets are not published).
    """

    layer_errors: tuple[settings.Amount, ...] = (0.005,)
    table_errors: tuple[settings.Amount, ...] = (0.005,)
    ends_error: settings.Amount = 0.001
    exchange_errors: tuple[settings.Amount, ...] = (0.005,)
    layer_dtypes: tuple[str, ...] = settings.step(("fp16", "int8"), plain=(KEEP,), less=KEPT)
    row_dtypes: tuple[str, ...] = settings.step(("fp16", "int8"), plain=(KEEP,), less=KEPT)
    exchange: str = settings.step(
        "fp16",
        plain="fp32",
        start={"exchange_precision": "fp32"},
        acts_on="several devices",
        less=settings.instead(KEEP),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, none in (("layer_dtypes", "int4"), ("row_dtypes", "tf32")):
            for dtype in _named(getattr(self, what)):
                error_of(dtype)
                if dtype == none:
                    raise WorkloadError(f"low_precision: {what}: {dtype} is none of them")
        wires = get_args(get_type_hints(Implementation)["exchange_precision"])
        settings.require_known(self.of, "exchange", self.exchange, (*wires, KEEP))

    def search(self, deployment: Deployment) -> Search:
        """Per layer the type of the fastest product within its budget, and per table the
        narrowest; what keeps each from fewer bits. Raises `WorkloadError`."""
        layers, rows = _named(self.layer_dtypes), _named(self.row_dtypes)
        layers = tuple(filter(deployment.machine.node.device.multiplies, layers))
        if deployment.train:
            layers = tuple(dtype for dtype in layers if dtype in HALF)
            rows = tuple(dtype for dtype in rows if dtype not in QUANTISED)
        count = len(deployment.workload.model.bottom_mlp) + len(deployment.workload.model.top_mlp)
        budgets = self.layer_errors
        if len(budgets) == 1:
            budgets = (self.ends_error, *budgets * (count - 2), self.ends_error)[:count]
        borne = min(_one_each(self.exchange_errors, 2, "ways of the exchange"))
        wire = within(borne, _named((self.exchange,)))
        return Search(
            tuple(_layers(deployment, budgets, layers)),
            tuple(_tables(deployment, self.table_errors, rows)),
            *(wire or (deployment.workload.implementation.exchange_precision,)),
        )

    def apply(self, deployment: Deployment) -> Deployment:
        """The precisions of `search`, on the deployment's layers and tables."""
        if any(table.caches for table in deployment.placement.tables):
            raise WorkloadError(
                "low_precision: caches were sized for wider rows: put this design before theirs"
            )
        if deployment.workload.sequence.layers:
            raise WorkloadError(
                "low_precision: layers over sequences have one type: implementation.precision"
            )
        result, workload = self.search(deployment), deployment.workload
        layers, wide = [choice.dtype for choice in result.layers], workload.implementation.precision
        if any(dtype != wide for dtype in layers):
            workload = workload.with_(
                implementation__name="torchrec", implementation__layer_precisions=layers
            )
        workload = workload.with_(implementation__exchange_precision=result.exchange)
        placement = deployment.placement.edited(
            lambda number, _: {"dtype": result.tables[number].dtype}
        )
        if (workload, placement) == (deployment.workload, deployment.placement):
            why = "the step is as without it: no budget bears a faster, narrower type"
            return deployment.unchanged(self.of, why)
        higher = [name for name in result.higher if not name.startswith("tables")]
        other = "recorded layers" if workload.recorded else "no layer"
        note = (
            f"low precision: {result.saved_bytes / 1e9:.3g} GB less of weights and rows; in higher "
            f"precision: {', '.join(higher) or other}"
        )
        return deployment.with_(note, workload=workload, placement=placement)
