"""Sharding plans of TorchRec as deployments, and deployments as TorchRec's; its modules, pipelines
and names of tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from perfmodel.designs import Deployment
from perfmodel.embedding import Pipeline
from perfmodel.errors import UsageError
from perfmodel.explore import torchrec as documents
from perfmodel.prediction.request import Hardware, changed_workload
from perfmodel.prediction.step import cluster_of
from perfmodel.workload import Workload
from perfmodel.workload.sharding import plan_of_placement

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.explore.planner import Plan

OLDEST = (1, 1)
"""The first TorchRec whose planner knows the rate between device and host memory."""
PIPELINES = {
    "none": Pipeline(),
    "train_base": Pipeline(),
    "train_sparse_dist": Pipeline(input_ahead=True),
    "train_prefetch_sparse_dist": Pipeline(input_ahead=True, rows_ahead=True),
}
"""By the values of TorchRec's `PipelineType`."""


def deployment(
    plan: Any,
    workload: str | Path | Workload,
    hardware: Hardware,
    *,
    nodes: int | None = None,
    batch: int | None = None,
    names: Sequence[str] = (),
    pipeline: Any = "train_sparse_dist",
    train: bool = True,
) -> Deployment:
    """The workload with its tables as TorchRec's `ShardingPlan` has them, for `perfmodel.predict`;
    arguments as of `estimators`, `batch` of all ranks. Raises `PerfmodelError`."""
    model, machine = changed_workload(workload, ()), cluster_of(hardware, nodes)
    check_names(names, model)
    placement = documents.placement_of_torchrec(document(plan, model, names), model, machine)
    plan_of_placement(model, placement, machine.gpus, machine.linked_gpus)
    return Deployment(model, machine, batch or model.batch, placement, pipeline_of(pipeline), train)


def document(plan: Any, workload: Workload, names: Sequence[str] = ()) -> dict[str, Any]:
    """TorchRec's `ShardingPlan` as JSON that `--plan` takes, its tables named by their numbers."""
    found: dict[str, Any] = {}
    for fqn, name, about in tables_of(plan):
        module = found.setdefault(fqn.removesuffix(f".{name}"), {})
        module[f"table_{documents.number_of(name, workload, name[:60], names)}"] = asdict(about)
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))  # devices, enumerations
    return plain


def sharding_plan(
    given: Plan | Deployment, *, names: Sequence[str] = (), module: str = documents.MODULE
) -> Any:
    """TorchRec's `ShardingPlan` of `perfmodel.plan`'s answer, or of a deployment: all tables in the
    `module` of that path, with `names` in the workload's order. Raises `WorkloadError` for what
    TorchRec's plans have not."""
    it = given if isinstance(given, Deployment) else given.deployment
    types, made = module_of("distributed.types"), {}
    written = documents.torchrec_document(it.placement, it.workload, it.machine)[documents.MODULE]
    check_names(names, it.workload)
    for name, about in zip(names or written, written.values(), strict=True):
        spec, cached = about["sharding_spec"], about["cache_params"]
        shards = [types.ShardMetadata(**each) for each in spec["shards"]] if spec else []
        made[name] = types.ParameterSharding(
            sharding_type=about["sharding_type"],
            compute_kernel=about["compute_kernel"],
            ranks=about["ranks"],
            sharding_spec=types.EnumerableShardingSpec(shards) if spec else None,
            cache_params=types.CacheParams(**cached) if cached else None,
        )
    return types.ShardingPlan({module: types.EmbeddingModuleShardingPlan(made)})


def tables_of(plan: Any) -> Iterable[tuple[str, str, Any]]:
    """(path, name, `ParameterSharding`) of each."""
    for path, module in plan.plan.items():
        yield from ((f"{path}.{name}", name, about) for name, about in module.items())


def pipeline_of(given: Any) -> Pipeline:
    return documents.known(PIPELINES, getattr(given, "value", given), "pipeline")


def check_names(names: Sequence[str], workload: Workload) -> None:
    if names and len(names) != len(workload.tables):
        has = f"{workload.name} has {len(workload.tables)} tables"
        raise UsageError(f"names: {len(names)}, but {has}")


def module_of(name: str) -> Any:
    """One of TorchRec's modules. Raises `UsageError` where it is missing or too old."""
    needed = "{}.{} or later: pip install torchrec".format(*OLDEST)
    try:
        found = version("torchrec")
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise UsageError(f"TorchRec {found} is too old: perfmodel.torchrec needs {needed}")
        return import_module(f"torchrec.{name}")
    except (PackageNotFoundError, ImportError, OSError) as error:  # OSError: of FBGEMM's libraries
        reason = str(error)[:100]
        raise UsageError(f"perfmodel.torchrec needs TorchRec {needed} ({reason})") from None
