"""TorchRec's sharded models on fake process groups, beside the same model as a workload file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfmodel.torchrec as rec
from perfmodel.hardware import cluster
from perfmodel.ops.read.module import Call, Program, graph_of_program
from perfmodel.prediction.shapes import predict_passes
from perfmodel.prediction.types import Result
from perfmodel.workload import op_graph
from tests.slow import slow_but

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
import torch.distributed as dist  # noqa: E402

import perfmodel.torch as own  # noqa: E402

BATCH, TABLES, ROWS, DIM, POOLING = 16384, 16, 200_000, 64, 4
WORKLOAD = f"""
title = "mine"
batch = {BATCH}
[model]
dense_features = 13
bottom_mlp = [512, {DIM}]
top_mlp = [512, 256, 1]
[interaction]
kind = "dot"
[[tables]]
count = {TABLES}
rows = {ROWS}
dim = {DIM}
pooling = {POOLING}
[training]
loss = "bce_with_logits"
dense_optimizer = "sgd"
table_optimizer = "rowwise_adagrad"
[implementation]
name = "torchrec"
precision = "fp32"
exchange_precision = "fp32"
prefetch = false
"""
WHOLE, ROW_WISE, COPIED = ("table_wise",), ("row_wise",), ("data_parallel",)
MIXED = ("table_wise", "row_wise", "column_wise")
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchRec's own


@pytest.fixture(scope="module", autouse=True)
def torchrec() -> Any:
    try:
        import torchrec.distributed.planner
    except (ImportError, OSError):  # OSError: FBGEMM's libraries
        pytest.skip("needs TorchRec and FBGEMM for CPUs")
    return torchrec


NAMES = [f"feature_{number}" for number in range(TABLES)]


def given() -> Any:
    """A batch, as users have it."""
    from torchrec import KeyedJaggedTensor

    lengths = torch.full((TABLES * BATCH,), POOLING, dtype=torch.int32)
    indices = torch.randint(ROWS, (TABLES * BATCH * POOLING,))
    return SimpleNamespace(
        dense_features=torch.rand(BATCH, 13),
        sparse_features=KeyedJaggedTensor(NAMES, indices, lengths=lengths),
        labels=torch.zeros(BATCH),
    )


def dlrm(device: str) -> Any:
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.models.dlrm import DLRM, DLRMTrain

    configs = [
        EmbeddingBagConfig(
            name=f"table_{number}",
            num_embeddings=ROWS,
            embedding_dim=DIM,
            feature_names=[NAMES[number]],
        )
        for number in range(TABLES)
    ]
    tables = EmbeddingBagCollection(device=device, tables=configs)
    return DLRMTrain(DLRM(tables, 13, [512, DIM], [512, 256, 1]))


def sharded(ranks: int, kinds: Sequence[str]) -> tuple[Any, Any]:
    """A DLRM as users write them, and its plan."""
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    model = dlrm("meta")
    limits = {
        f"table_{number}": ParameterConstraints(
            sharding_types=[kind],
            compute_kernels=["dense" if kind == "data_parallel" else "fused"],
            min_partition=32,
        )
        for number, kind in zip(range(TABLES), cycle(kinds), strict=False)
    }
    tables = model.model.sparse_arch.embedding_bag_collection
    if "data_parallel" not in kinds:
        apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.01})
    sharders = [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=ranks, local_world_size=ranks, compute_device="cuda")
    planner = EmbeddingShardingPlanner(topology=topology, constraints=limits)
    plan = planner.plan(model, sharders)
    made = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cuda:0"),
        plan=plan,
        sharders=sharders,
    )
    return made, plan


@contextmanager
def group(ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@cache
def trained(ranks: int, kinds: tuple[str, ...]) -> tuple[Any, Any]:
    """Two steps of such a model, which tests share."""
    batch = given()
    with group(ranks), own.predicting("dgx-h100") as step:
        model, plan = sharded(ranks, kinds)
        is_replicated = "data_parallel" in kinds
        dense = [
            p for n, p in model.named_parameters() if is_replicated or "embedding_bags" not in n
        ]
        optimizer = torch.optim.SGD(dense, lr=0.1)
        for _ in range(2):
            loss, _ = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return step, plan


def brought_us(result: Result) -> float:
    """A workload's step also brings its batch to the device; here it is there."""
    return float(sum(r["time_us"] for r in result.families if r["family"] == "memcpy_host"))


@pytest.mark.parametrize(
    ("kinds", "ranks", "within"),
    slow_but(
        1,
        [
            (WHOLE, 8, 0.03),
            (ROW_WISE, 8, 0.03),
            (MIXED, 8, 0.03),
            (WHOLE, 2, 0.03),
            (ROW_WISE, 2, 0.03),
            (MIXED, 2, 0.03),
            (COPIED, 8, 0.03),
        ],
    ),
)
def test_a_sharded_model_takes_what_its_workload_takes(
    kinds: tuple[str, ...], ranks: int, within: float, tmp_path: Path
) -> None:
    step, plan = trained(ranks, kinds)
    (tmp_path / "mine.toml").write_text(WORKLOAD)
    machine = cluster("dgx-h100")
    machine = replace(machine, node=replace(machine.node, gpus=ranks))
    laid = rec.deployment(
        plan, tmp_path / "mine.toml", machine, batch=BATCH * ranks, pipeline="none"
    )
    # Of the same rank: plans give ranks different tables.
    graph = op_graph(laid.workload, laid.batch, ranks=ranks, placement=laid.placement)
    (ours,) = step.prediction.results
    (theirs,) = predict_passes(graph, [machine], (), None).results
    of_batch_us = brought_us(theirs) - brought_us(ours)
    on_device_us = theirs.rank.gpu_active_us - of_batch_us
    assert ours.rank.gpu_active_us == pytest.approx(on_device_us, rel=within)
    assert ours.step_us == pytest.approx(theirs.step_us - of_batch_us, rel=within)
    is_told = "assumed: other ranks send what this one does" in str(step.prediction.warnings)
    assert is_told == ("data_parallel" not in kinds)
    path = "DistributedModelParallel._dmp_wrapped_module.module.model.sparse_arch"
    assert step.modules.loc[path, ["forward_us", "backward_us"]].min() > 100


def test_replicated_tables_sum_their_gradients() -> None:
    """TorchRec's slices of their rows are tensors of a class of its own."""
    step, _ = trained(8, COPIED)
    sums = [op for op in step.graph.ops if op.attributes.get("collective") == "all_reduce"]
    assert max(int(op.attributes["in_elements"]) for op in sums) == TABLES * ROWS * DIM
    assert step.step_us > 1000


PROGRAM = """
import torch
from tests.integrations import test_sharded as it

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = it.dlrm("cuda")

    def forward(self, batch):
        return self.model(batch)[0]

class Sharded(Whole):
    def __init__(self):
        torch.nn.Module.__init__(self)
        self.model, _ = it.sharded(8, ["table_wise"])

def get_inputs():
    return [it.given()]
"""


def test_a_file_of_a_sharded_model_takes_what_its_loop_takes(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(PROGRAM)
    call = Call(training=True, optimizer="SGD")
    with group(8):
        graph = graph_of_program(Program(file, "Sharded"), call)
    found = predict_passes(graph, [cluster("dgx-h100")], (), None)
    step, _ = trained(8, WHOLE)
    (ours,), (loop,) = found.results, step.prediction.results
    assert ours.rank.gpu_active_us == pytest.approx(loop.rank.gpu_active_us, rel=0.05)
