"""TorchRec's planner with its own estimators and with perfmodel's, on its golden rows, on the runs
of its pipeline benchmark, and by the plans that come out.

    python -m benchmarks.torchrec_planner golden FOLDER | pipelines FOLDER | plans

FOLDER holds golden.csv, benchmark_world2.csv and benchmark_yaml.json of TorchRec's planner. Needs
TorchRec (`perfmodel[torchrec]`) with FBGEMM for CPUs; tables lie on the meta device.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import chain, groupby, product
from math import exp, log, nan
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import perfmodel
import perfmodel.torchrec as rec
from benchmarks.published.torchrec_formulas import shard_cost, topology_of
from perfmodel.hardware import Cluster, load, with_settings
from perfmodel.prediction.step import cluster_of
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.settings import Implementation, Interaction, Model
from perfmodel.workload.tables import Table

PARTS = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms", "total")
GOLDEN = {"defaults": "dgx-2", "A100-80G": "dgx-a100-80gb", "H100-SXM": "dgx-h100"}
"""Machines of its constants; the defaults are of no machine, their memory is a V100's."""
LARGER = 64
"""So many times the samples leave of fixed costs little."""
Constraints = dict[str, Any]
"""Per table TorchRec's `ParameterConstraints`."""


def enumerator(
    tables: Sequence[Table], topology: Any, batch: int, limits: Constraints, estimators: Any
) -> tuple[Any, list[Any]]:
    """TorchRec's `EmbeddingEnumerator`, and what it takes: a module on the meta device and how its
    kind is sharded; without `estimators` it has its own."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

    configs = [
        EmbeddingBagConfig(
            name=f"table_{number}",
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=[f"feature_{number}"],
        )
        for number, table in enumerate(tables)
    ]
    module = EmbeddingBagCollection(device="meta", tables=configs)
    made = EmbeddingEnumerator(topology, batch, constraints=limits, estimator=estimators)
    return made, [module, [EmbeddingBagCollectionSharder()]]


def constraints(tables: Sequence[Table], **of: Any) -> Constraints:
    """`of`: further fields of every table's."""
    from torchrec.distributed.planner.types import ParameterConstraints

    return {
        f"table_{number}": ParameterConstraints(pooling_factors=[table.pooling], **of)
        for number, table in enumerate(tables)
    }


def planned(
    tables: Sequence[Table], machine: Cluster, batch: int, limits: Constraints, perf: Any = None
) -> tuple[Any, float]:
    """TorchRec's plan of `batch` samples per rank, and how many milliseconds it is rated at: by its
    own estimators, or by perfmodel's."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.perf_models import NoopPerfModel
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

    topology, kept = rec.topology(machine), list[Any]()
    made, given = enumerator(tables, topology, batch, limits, list(perf) if perf else None)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch,
        enumerator=made,
        constraints=limits,
        storage_reservation=FixedPercentageStorageReservation(0.15),
        performance_model=perf[0] if perf else None,
        callbacks=[lambda best: kept.append(best) or best],
        debug=False,
    )
    plan = planner.plan(*given)
    return plan, (perf[0] if perf else NoopPerfModel(topology)).rate(kept[0])


def golden(folder: Path) -> None:
    """Per sharding and kernel perfmodel's times over TorchRec's, medians over its golden rows; and
    of `LARGER` times the samples, where launches and latencies no longer count."""
    ratios = defaultdict[tuple[str, str], list[list[float]]](list)
    with (folder / "golden.csv").open() as lines:
        for row in csv.DictReader(lines):
            nodes = int(row["world_size"]) // int(row["local_world_size"])
            machine = gpus(GOLDEN[row["config"].split()[0]], 8, nodes)
            table = Table(int(row["rows"]), int(row["dim"]), float(row["pooling"]))
            kind, kernel = row["sharding"], row["kernel"]
            columns = table.dim // 2 if kind == "column_wise" else table.dim
            cut = {"min_partition": columns} if kind == "column_wise" else {}
            limits = constraints([table], sharding_types=[kind], compute_kernels=[kernel], **cut)
            found = []
            for batch in (512, 512 * LARGER):
                topology = rec.topology(machine)
                estimators = list(rec.estimators(machine, topology))
                made, given = enumerator([table], topology, batch, limits, estimators)
                (option,) = made.enumerate(*given)
                found.append([getattr(option.shards[0].perf, part) for part in PARTS])
            about = [table.rows], [columns], [table.pooling], [kind], [kernel]
            more_ms = shard_cost(*about, topology_of(machine, 512 * LARGER)).total_ms[0]
            theirs = [float(row[f"{part}_ms"]) or nan for part in PARTS]
            own = [one / other for one, other in zip(found[0], theirs, strict=True)]
            ratios[kind, kernel].append([*own, found[1][-1] / more_ms])
    print("| sharding | kernel | rows |", " | ".join(PARTS), f"| total, {LARGER} x the samples |")
    for key, rows in ratios.items():
        middle = (f"{median(each):.2f}" for each in zip(*rows, strict=True))
        print("|", " | ".join((*key, str(len(rows)), *middle)), "|")


def gpus(name: str, count: int, nodes: int = 1) -> Cluster:
    return cluster_of(with_settings(load(name), [f"node.gpus={count}"]), nodes)


BATCH, BASE_ROWS = 32_768, 100_000
"""Of the pipeline benchmark: samples per rank, to which the exchange of the printed plans amounts,
and rows of a table."""
BY = ("TorchRec", "estimators", "schedule")
PAIR = ("dgx-a100-80gb", "dgx-h100")
"""Two GPUs of either: none is named."""


class Case(NamedTuple):
    """What either planner knows of a run."""

    workload: Workload
    of_table: tuple[tuple[str, str], ...]
    """Type of sharding and kernel."""
    pipeline: str
    train: bool


def case_of(run: dict[str, str], files: dict[str, str]) -> Case:
    """By its configuration; of two, and of pipelines, by the words of its name."""
    import yaml

    words, named = run["case"].lower(), run["yaml"].split(";")
    named = [each for each in named if ("uvm" in each) == ("uvm" in words)] or named
    about = yaml.safe_load(files[f"{run['commit'][:12]}:{named[-1]}"])
    of_tables, model = about["EmbeddingTablesConfig"], about["ModelSelectionConfig"]["model_config"]
    of_planner, layers = about["PlannerConfig"], model.get("submodule_kwargs", {})
    usual = of_planner.get("sharding_type", "table_wise"), of_planner.get("compute_kernel", "fused")
    pooling = float(about["ModelInputConfig"]["feature_pooling_avg"])
    tables, ways = list[Table](), list[tuple[str, str]]()
    for kind in ("num_unweighted_features", "num_weighted_features"):
        for number in range(of_tables[kind]):
            rows = max(number + 1, 100) * BASE_ROWS // 100
            tables.append(Table(rows, of_tables["embedding_feature_dim"], pooling))
            ways.append(usual)
    for each in chain(*of_tables.get("additional_tables", [])[:2]):
        limits = of_planner.get("additional_constraints", {}).get(each["name"], {})
        tables.append(Table(each["num_embeddings"], each["embedding_dim"], pooling))
        kernels = limits.get("compute_kernels", [usual[1]])
        ways.append((limits.get("sharding_types", [usual[0]])[0], kernels[0]))
    wide = layers.get("over_arch_out_size", 1024)
    top = (*(wide,) * (layers.get("over_arch_hidden_layers", 5) + 1), 1)
    bottom = (*layers.get("dense_arch_hidden_sizes", ()), layers.get("dense_arch_out_size", 128))
    workload = Workload(
        "benchmark",
        Model(model["num_float_features"], bottom, top),
        tuple(tables),
        2 * BATCH,
        Interaction("cat"),
        implementation=Implementation("torchrec"),
    )
    pipeline = about["PipelineConfig"]["pipeline"]
    is_ahead = pipeline == "prefetch" and not words.startswith("sparse")
    named_so = "train_prefetch_sparse_dist" if is_ahead else "train_sparse_dist"
    return Case(workload, tuple(ways), named_so, not pipeline.startswith("eval"))


@cache
def rated(case: Case, name: str) -> dict[str, float]:
    """Milliseconds of a step: TorchRec's rating of its plan, perfmodel's of its own, and the full
    schedule of that."""
    machine, (workload, ways, pipeline, train) = gpus(name, 2), case
    limits = {}
    for number, (kind, kernel) in enumerate(ways):
        of = {"sharding_types": [kind], "compute_kernels": [kernel]}
        every = constraints(workload.tables, **of)
        limits[f"table_{number}"] = every[f"table_{number}"]
    given = {"workload": workload, "pipeline": pipeline, "train": train}
    perf = rec.estimators(machine, rec.topology(machine), **given)
    _, theirs = planned(workload.tables, machine, BATCH, limits)
    plan, ours = planned(workload.tables, machine, BATCH, limits, perf)
    laid = rec.deployment(plan, workload, machine, pipeline=pipeline, train=train)
    scheduled = perfmodel.predict(laid).results[0].step_us / 1e3
    return {"TorchRec": theirs, "estimators": ours, "schedule": scheduled}


def pipelines(folder: Path) -> None:
    """Runs of one commit over its first, measured and predicted; those that do not differ in what
    either planner knows are equal to both. Errors are factors, of the mean logarithm."""
    files = json.loads((folder / "benchmark_yaml.json").read_text())
    with (folder / "benchmark_world2.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    errors, alike = defaultdict[tuple[str, str], list[float]](list), list[float]()
    print("| run, over the first of its commit | GPU | measured |", " | ".join(BY), "|")
    for _, runs in groupby(rows, key=itemgetter("commit")):
        first, *others = ((case_of(run, files), run) for run in runs)
        for case, run in others:
            measured = float(run["gpu_runtime_ms"]) / float(first[1]["gpu_runtime_ms"])
            if case == first[0]:
                alike.append(abs(log(measured)))
                continue
            for name in PAIR:
                one, other = (rated(each, name) for each in (case, first[0]))
                ratios = {by: one[by] / other[by] for by in BY}
                said = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
                what = f"{run['case']} over {first[1]['case']}"
                print(f"| {what} | {name} | {measured:.2f} | {said} |")
                for by, ratio in ratios.items():
                    errors[by, name].append(abs(log(ratio / measured)))
    print(f"{len(alike)} runs alike: {exp(mean(alike)):.3f}, whoever predicts")
    for (by, name), own in errors.items():
        every = mean([*own, *alike])
        print(f"{by}, {name}: {len(own)} others {exp(mean(own)):.3f}, all {exp(every):.3f}")


PLANS = (
    *product(("torchrec-golden", "criteo-terabyte"), ("dgx-a100-80gb",), (1, 2)),
    *product(("dlrm-dcnv2",), ("dgx-a100-80gb", "dgx-h100"), (1, 2)),
    *product(("criteo-terabyte", "dlrm-dcnv2"), ("hgx-mi300x",), (1,)),
)


def plans() -> None:
    """TorchRec's planner with its estimators and with perfmodel's, both at the machine's own rates:
    the steps of both plans by perfmodel's full schedule."""
    print("| workload | machine | samples | TorchRec's ms | perfmodel's ms | ratio | plans |")
    for name, on, nodes in PLANS:
        workload, machine = load_workload(name), cluster_of(load(on), nodes)
        batch = max(workload.batch // machine.gpus, 1)
        limits, taken, mixes = constraints(workload.tables), [], []
        perf = rec.estimators(machine, rec.topology(machine), workload=workload)
        for estimators in (None, perf):
            plan, _ = planned(workload.tables, machine, batch, limits, estimators)
            laid = rec.deployment(plan, workload, machine, batch=batch * machine.gpus)
            taken.append(perfmodel.predict(laid).results[0].step_us / 1e3)
            mixes.append(Counter(table.sharding for table in laid.placement.tables))
        mix = " / ".join(", ".join(f"{n} {kind}" for kind, n in each.items()) for each in mixes)
        said = f"{taken[0]:.2f} | {taken[1]:.2f} | {taken[1] / taken[0]:.2f} | {mix}"
        print(f"| {name} | {nodes} x {on} | {batch} | {said} |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    verb, *folders = sys.argv[1:]
    globals()[verb](*map(Path, folders))
