"""What must hold between the figures of a workload."""

from __future__ import annotations

from perfmodel.errors import WorkloadError
from perfmodel.workload.model import Workload

FIXED_LAYERS = ("hugectr",)
MOST_INT32 = 2**31
_FUSED_ONLY = ("rowwise_adagrad", "adam", "adagrad")


def check(workload: Workload, where: str) -> None:
    """Raise `WorkloadError`, naming the key, where the parts of `workload` do not fit together."""
    _widths(workload, where)
    _tables(workload, where)
    _software(workload, where)


def _widths(workload: Workload, where: str) -> None:
    bottom, top = workload.model.bottom_mlp, workload.model.top_mlp
    if workload.interaction.kind == "dot" and bottom[-1] != workload.dim:
        raise WorkloadError(
            f"{where}: model: bottom_mlp ends in {bottom[-1]}, and the tables have dim "
            f"{workload.dim}: a dot interaction needs them equal"
        )
    if top[-1] != 1:
        raise WorkloadError(f"{where}: model: top_mlp ends in {top[-1]}: expected 1")


def _tables(workload: Workload, where: str) -> None:
    dims = sorted({table.dim for table in workload.tables})
    if len(dims) > 1 and workload.interaction.kind == "dot":
        raise WorkloadError(
            f"{where}: tables: dims {dims[0]} to {dims[-1]}: a dot interaction needs them equal"
        )
    if len(dims) > 1 and workload.implementation.name != "torchrec":
        raise WorkloadError(
            f"{where}: tables: dims {dims[0]} to {dims[-1]}: implementation.name "
            f'"{workload.implementation.name}" needs them equal'
        )


def _software(workload: Workload, where: str) -> None:
    software, training = workload.implementation, workload.training
    layers = len(workload.model.bottom_mlp) + len(workload.model.top_mlp)
    if software.layer_precisions and len(software.layer_precisions) != layers:
        raise WorkloadError(
            f"{where}: implementation: layer_precisions has {len(software.layer_precisions)} "
            f"entries for {layers} layers, those of the bottom MLP and then of the top MLP"
        )
    if software.layer_precisions and software.name in FIXED_LAYERS:
        raise WorkloadError(
            f"{where}: implementation: layer_precisions: {software.name!r} has one precision for "
            "all layers"
        )
    if software.sharding == "hybrid" and any(table.histogram for table in workload.tables):
        raise WorkloadError(
            f'{where}: tables: histogram: implementation.sharding "hybrid" knows zipf and uniform '
            "distributions only"
        )
    if not software.indices_ahead and software.sharding != "hybrid":
        raise WorkloadError(
            f'{where}: implementation: indices_ahead: only of sharding "hybrid", not '
            f'"{software.sharding}"'
        )
    if software.name in ("pytorch", "reference") and training.table_optimizer in _FUSED_ONLY:
        raise WorkloadError(
            f"{where}: training: table_optimizer {training.table_optimizer!r} is fused into the "
            f'backward pass: implementation.name "{software.name}" has only "sgd"'
        )
    if software.key_dtype != "int64":
        _narrow_keys(workload, where)
    if workload.evaluation.included and not workload.evaluation.every_samples:
        raise WorkloadError(f"{where}: evaluation: every_samples is missing where included is true")


def _narrow_keys(workload: Workload, where: str) -> None:
    software, most = workload.implementation, max(table.rows for table in workload.tables)
    if software.name != "torchrec":
        raise WorkloadError(
            f"{where}: implementation: key_dtype {software.key_dtype!r}: implementation.name "
            f'"{software.name}" sends int64 keys'
        )
    if most > MOST_INT32:
        raise WorkloadError(
            f"{where}: implementation: key_dtype {software.key_dtype!r}: a table of {most:,} rows "
            "needs int64"
        )
