"""Low precision: rows, layers and exchanges in as few bits as error budgets let them have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args, get_type_hints

from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.designs.precision_search import Search, search
from perfmodel.designs.rounding import error_of, require_budget
from perfmodel.errors import WorkloadError
from perfmodel.ops.stored_rows import QUANTISED, row_bytes
from perfmodel.workload.model import Implementation

HALF = ("fp16", "bf16", "fp32", "tf32")


@DESIGNS.register("low_precision")
@dataclass(frozen=True)
class LowPrecision:
    """Rows, layers and exchanges in fewer bits, layer by layer within the user's error budgets.

    `layer_errors`: relative rounding error that each layer bears (bottom MLP, then top), one for
    all or one for each; the first and the last bear `ends_error` unless each has its own.
    `table_errors`: the same of tables. `total_error` of all layers together (0: no limit).
    `layer_dtypes`, `row_dtypes`: what may be chosen; `exchange` of pooled rows. In training 16 bits
    are the fewest. Defaults: int8 is borne but at the ends; assumed, as production ranking keeps
    them (Deng et al. 2021 search per model; their budgets are not published).
    """

    layer_errors: tuple[float, ...] = (0.005,)
    table_errors: tuple[float, ...] = (0.005,)
    ends_error: float = 0.001
    total_error: float = 0.0
    layer_dtypes: tuple[str, ...] = ("fp16", "int8")
    row_dtypes: tuple[str, ...] = ("fp16", "int8")
    exchange: str = "fp16"

    def __post_init__(self) -> None:
        for what, dtypes in (("layer_dtypes", self.layer_dtypes), ("row_dtypes", self.row_dtypes)):
            for dtype in dtypes:
                error_of(dtype)
                if (what, dtype) in (("layer_dtypes", "int4"), ("row_dtypes", "tf32")):
                    raise WorkloadError(f"low_precision: {what}: {dtype} is none of them")
        wires = get_args(get_type_hints(Implementation)["exchange_precision"])
        if self.exchange not in wires:
            raise WorkloadError(
                f"low_precision: exchange {self.exchange!r}: one of {', '.join(wires)}"
            )
        for budget in (*self.layer_errors, *self.table_errors, self.ends_error, self.total_error):
            require_budget(budget)

    def search(self, deployment: Deployment) -> Search:
        """What each layer and table takes, and what keeps it from fewer bits."""
        layers, rows = self.layer_dtypes, self.row_dtypes
        if deployment.train:
            layers = tuple(dtype for dtype in layers if dtype in HALF)
            rows = tuple(dtype for dtype in rows if dtype not in QUANTISED)
        count = len(deployment.workload.model.bottom_mlp) + len(deployment.workload.model.top_mlp)
        budgets = self.layer_errors
        if len(budgets) == 1:
            budgets = (self.ends_error, *budgets * (count - 2), self.ends_error)
        return search(deployment, budgets, self.table_errors, layers, rows, self.total_error)

    def apply(self, deployment: Deployment) -> Deployment:
        """The precisions of `search`, on the deployment's layers and tables."""
        if any(table.caches for table in deployment.placement.tables):
            raise WorkloadError(
                "low_precision: caches were sized for wider rows: put this design before theirs"
            )
        found = self.search(deployment)
        workload = deployment.workload.with_(
            implementation__name="torchrec",
            implementation__layer_precisions=[choice.dtype for choice in found.layers],
            implementation__exchange_precision=self.exchange,
        )
        placement = deployment.placement.edited(
            lambda number, _: {"dtype": found.tables[number].dtype}
        )
        higher = [name for name in found.higher if not name.startswith("tables")]
        note = (
            f"low precision: {found.saved_bytes / 1e9:.3g} GB less of weights and rows; in higher "
            f"precision: {', '.join(higher) or 'no layer'}"
        )
        return deployment.with_(note, workload=workload, placement=placement)


def hosts_needed(deployment: Deployment) -> int:
    """Nodes of the deployment's kind that its rows need, by device memory alone."""
    node = deployment.machine.node
    pairs = zip(deployment.workload.tables, deployment.placement.tables, strict=True)
    total = sum(table.rows * float(row_bytes(p.dtype, table.dim)) for table, p in pairs)
    return max(1, int(-(-total // (node.gpus * node.device.hbm_bytes))))
