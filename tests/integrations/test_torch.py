"""Training loops, collectives and run times inside PyTorch, on fake tensors and process groups. It
is longer than 400 lines: each part of PyTorch that it meets has a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel import durations, predict_module
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.shapes import predict_passes
from perfmodel.prediction.step import cluster_of

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import perfmodel.torch as own  # noqa: E402

GPU, WIDTH, TOKENS = "h100-sxm", 1024, 2048
DOCS = Path(__file__).parents[2] / "docs" / "torch.md"
pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def group(ranks: int, rank: int = 0) -> Iterator[Any]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def layers(count: int = 2) -> Any:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))


def trained(model: Any, optimizer: Any = None, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.empty(TOKENS, WIDTH)).sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def collectives(graph: OpGraph) -> list[tuple[str, int, str]]:
    """What, elements (the larger of those that a rank gives and gets), group."""
    found = []
    for about in (op.attributes for op in graph.ops if "in_elements" in op.attributes):
        elements = max(int(about["in_elements"]), int(about["out_elements"]))
        found.append((about["collective"], elements, about["group_ranks"]))
    return found


def test_a_loop_takes_what_its_module_takes() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    with own.predicting(GPU) as step:
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    whole = predict_module(
        model, [torch.rand(TOKENS, WIDTH)], hardware=GPU, train=True, optimizer="SGD"
    )
    assert step.step_us == pytest.approx(whole.results[0].step_us, rel=0.05)
    assert step.modules.loc["Sequential", "forward_us"] == pytest.approx(
        step.modules.loc[["Sequential.0", "Sequential.1", "Sequential.2"], "forward_us"].sum()
    )
    # Two products backward for one forward, but none for the input of the first.
    forward, backward = step.modules.loc["Sequential.2", ["forward_us", "backward_us"]]
    assert 1.7 * forward < backward < 2.5 * forward


def test_real_modules_are_left_as_they_were() -> None:
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    before = [value.clone() for value in model.parameters()]
    with own.predicting(GPU):
        trained(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(value.grad is None for value in model.parameters())
    assert not optimizer.state
    assert optimizer.param_groups[0]["foreach"] is None
    model(torch.rand(1, WIDTH)).sum().backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_last_period_of_an_optimizer_is_the_step() -> None:
    with own.predicting(GPU) as once:
        model = layers()
        trained(model, torch.optim.Adam(model.parameters()))
    with own.predicting(GPU) as thrice:
        model = layers()
        trained(model, torch.optim.Adam(model.parameters()), steps=3)
    states = [
        [op.name for op in each.graph.ops].count("aten::zeros_like") for each in (once, thrice)
    ]
    assert states == [4, 0]  # two of each parameter, at first
    assert [op.name for op in thrice.graph.ops].count("aten::mm") == 2 + 3
    # Adam counts its steps in host memory: nothing waits for the device.
    assert not any(
        t.device != "cpu" for op in thrice.graph.ops if op.name == "aten::_local_scalar_dense"
        for t in op.tensors
    )  # fmt: skip


def test_a_loop_is_as_long_as_what_steps_least_often() -> None:
    with own.predicting(GPU) as step:
        critic, generator = layers(1), layers(1)
        often, seldom = (torch.optim.SGD(each.parameters()) for each in (critic, generator))
        for _ in range(3):
            trained(generator, seldom)
            trained(critic, often, steps=2)
    assert [op.name for op in step.graph.ops].count("aten::mm") == 3 * 2
    assert set(step.modules.index) == {
        "",
        "Sequential",
        "Sequential.0",
        "Sequential_2",
        "Sequential_2.0",
    }


def test_a_loop_for_a_gpu_runs_as_on_one() -> None:
    """Also where it recomputes activations: in the backward pass, for the same module."""
    from torch.utils.checkpoint import checkpoint

    with own.predicting(GPU) as step:
        model = layers().to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = torch.empty(TOKENS, WIDTH, device="cuda")
            loss = checkpoint(model, x, use_reentrant=False).float().sum()
        torch.autograd.backward([loss])
    products = [op for op in step.graph.ops if op.name == "aten::mm"]
    assert {op.outputs[0].dtype for op in products} == {"bf16"}
    # Forward; the first again, whose result the last saved; two each, but for the first's input.
    assert [op.phase for op in products] == ["forward"] * 2 + ["backward"] * (1 + 3)
    modules = {op.attributes["module"] for op in products}
    assert modules == {"Sequential.0", "Sequential.1"}


def test_memory_is_what_pytorch_tracks() -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    def made() -> tuple[Any, Any]:
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4))
        )
        return model, torch.optim.Adam(model.parameters())

    with own.predicting(GPU) as step:
        trained(*made(), steps=2)
    with FakeTensorMode():
        model, optimizer = made()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            trained(model, optimizer)
            tracker.reset_mod_stats()
            trained(model, optimizer)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert step.memory_bytes == pytest.approx(peak, rel=0.1)


def test_data_parallelism_sums_each_gradient_once_beside_the_backward_pass() -> None:
    with group(16), own.predicting("dgx-h100") as step:
        model = nn.parallel.DistributedDataParallel(layers(16), bucket_cap_mb=4)
        trained(model)
    sums = collectives(step.graph)
    assert {(kind, ranks) for kind, _, ranks in sums} == {
        ("all_reduce", ",".join(map(str, range(16))))
    }
    assert sum(elements for _, elements, _ in sums) == 16 * WIDTH**2
    assert {op.attributes["nodes"] for op in step.graph.ops if "nodes" in op.attributes} == {"2"}
    rank = step.prediction.results[0].rank
    assert 0 < rank.exposed_comm_us < 0.99 * rank.comm_us  # the last one is waited for


@pytest.mark.parametrize("is_compressed", [False, True])
def test_data_parallelism_from_before_runs_as_made_inside(*, is_compressed: bool) -> None:
    """Of its hook and its buckets, also where the first step is the only one."""

    def compressed(bucket: Any) -> Any:
        work: Any = dist.all_reduce(bucket.buffer().to(torch.bfloat16), async_op=True)
        return work.get_future().then(lambda future: bucket.buffer().copy_(future.value()[0]))

    def made() -> Any:
        model = nn.parallel.DistributedDataParallel(layers(16), bucket_cap_mb=4)
        if is_compressed:
            model.register_comm_hook(None, lambda _, bucket: compressed(bucket))
        return model

    def ran(is_made_inside: bool) -> list[tuple[str, dict[str, str]]]:
        with group(16):
            model = made()
            before = model.reducer, [*model._comm_hooks]
            with own.predicting("dgx-h100") as step:
                trained(made() if is_made_inside else model, steps=1)
            assert before == (model.reducer, model._comm_hooks)
        return [(op.name, {**op.attributes}) for op in step.graph.ops]

    found = ran(is_made_inside=True)
    assert ran(is_made_inside=False) == found
    sent = [about["dtype"] for _, about in found if "in_elements" in about]
    assert (set(sent), len(sent) > 1) == ({"bf16" if is_compressed else "fp32"}, True)


def test_ranks_send_one_another_what_this_one_sends() -> None:
    with group(4, rank=1), own.predicting("dgx-h100") as step:
        sizes = torch.tensor([1, 2, 3, 4])
        dist.all_to_all_single(got := torch.zeros_like(sizes), sizes)
        dist.all_gather_into_tensor(every := torch.zeros(16, dtype=torch.int64), sizes)
        longest, total, parts = sizes.clone(), sizes.clone(), list(torch.zeros(4, 2).long())
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        dist.reduce_scatter_tensor(part := torch.zeros(1, dtype=torch.int64), sizes)
        dist.all_reduce(total)
        dist.all_gather(parts, sizes[:2])
        dist.all_reduce(loss := layers(1)(torch.empty(1, WIDTH)).sum().detach())
        assert (got.tolist(), longest.tolist(), total.tolist()) == (
            [2] * 4,
            [1, 2, 3, 4],
            [4, 8, 12, 16],
        )
        assert part.tolist() == [8]
        assert every.tolist() == [1, 2, 3, 4] * 4
        assert [each.tolist() for each in parts] == [[1, 2]] * 4
        assert loss.item() == 1
    assert "assumed: other ranks send what this one does" in str(step.prediction.warnings)


def test_what_reads_a_collectives_result_waits_for_it_also_through_a_view() -> None:
    def step_us(view: bool) -> float:
        with group(16), own.predicting("dgx-h100") as step:
            nn.Linear(8, 8)(torch.empty(8, 8))
            large, b = torch.empty(1 << 26), torch.empty(8192, 8192)
            dist.all_reduce(large)
            (large.view(-1) if view else large).mul_(0.5)
            b @ b
        return step.step_us

    assert step_us(view=True) == pytest.approx(step_us(view=False), rel=0.01)


class Summed(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(1)

    def forward(self, x: Any) -> Any:
        out = self.layers(x)
        dist.all_reduce(out)
        return out


def test_a_module_alone_sums_among_as_many_nodes_as_in_a_loop() -> None:
    x = torch.empty(TOKENS, WIDTH)
    with group(8), torch.no_grad():
        alone = predict_module(Summed(), [x], hardware="dgx-h100").results[0]
        with own.predicting("dgx-h100") as step:
            Summed()(x)
    looped = step.prediction.results[0]
    assert alone.rank.comm_us == pytest.approx(looped.rank.comm_us, rel=1e-6)


def test_what_is_real_is_afterwards_as_it_was() -> None:
    model, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5, foreach=False)
    model(torch.ones(2, 4)).sum().backward()
    before = [each.clone() for each in (model.weight, model.weight.grad, norm.num_batches_tracked)]
    with own.predicting(GPU):
        optimizer.zero_grad()
        norm(model(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    after = (model.weight, model.weight.grad, norm.num_batches_tracked)
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("is_raised", [False, True])
def test_whatever_a_loop_does_to_what_is_real_ends_with_it(is_raised: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weight, parts, names = model[0].weight, list(model), sorted(vars(model[1]))
    before, drawn = [each.clone() for each in model.state_dict().values()], torch.get_rng_state()

    def loop() -> None:
        model.half().cuda()
        model[1].seen = model(torch.ones(2, 4).half())
        weight.data = torch.empty(3, 4)
        model[0] = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        model[1].register_forward_hook(print)
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        weight.register_post_accumulate_grad_hook(print)
        weight.requires_grad_(False).tag = 1
        optimizer.step()
        schedule.step()
        torch.manual_seed(5)
        torch.set_grad_enabled(False)
        if is_raised:
            raise ValueError

    try:
        with own.predicting(GPU):
            loop()
    except ValueError:
        assert is_raised
    after = model.state_dict().values()
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (list(model), sorted(vars(model[1]))) == (parts, names)
    assert not [*model[1]._forward_hooks, *nn.modules.module._global_forward_hooks]
    assert weight is model[0].weight
    assert weight.requires_grad
    assert not [*vars(weight), *(weight._post_accumulate_grad_hooks or ())]
    rates = optimizer.param_groups[0]["lr"], *schedule.get_last_lr()
    assert rates == pytest.approx((1.0, 1.0))
    assert schedule.last_epoch == 0
    assert torch.is_grad_enabled()
    assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_an_optimizer_steps_what_is_moved_and_cast_after_it_was_made(is_made_inside: bool) -> None:
    def made() -> Any:
        model = nn.Linear(64, 64)
        return model, torch.optim.Adam(model.parameters())

    real = made()
    with own.predicting(GPU) as step:
        model, optimizer = made() if is_made_inside else real
        model.cuda().half()
        for _ in range(2):
            model(torch.randn(8, 64).half()).sum().backward()
            optimizer.step()
    (update,) = [op for op in step.graph.ops if op.name == "aten::_foreach_addcdiv_"]
    assert {each.dtype for each in update.tensors} == {"fp16"}


def test_steps_of_a_real_optimizer_are_counted_on_the_host() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    with own.predicting(GPU) as step:
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    asked = [op for op in step.graph.ops if op.name == "aten::_local_scalar_dense"]
    assert not [op for op in asked if op.tensors[0].device != "cpu"]


def test_data_parallelism_that_cannot_be_made_leaves_nothing_behind() -> None:
    with group(2), own.predicting("dgx-h100") as step:
        with pytest.raises(TypeError):
            dist.Reducer("of none of what it takes")
        nn.Linear(4, 4)(torch.zeros(2, 4)).sum().backward()
    assert {t.device for op in step.graph.ops for t in op.tensors} == {"cuda:0"}


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_a_tensor_with_other_data_is_read_in_their_shape(is_made_inside: bool) -> None:
    """Also where a step before still holds what stood for it."""
    (model,), held = layers(1), []
    other, half = torch.empty(3, WIDTH), torch.empty(5, WIDTH, dtype=torch.float64)
    with own.predicting(GPU) as step:
        held.append(model(torch.empty(2, WIDTH)))
        model.weight.data = torch.empty(3, WIDTH) if is_made_inside else other
        held.append(model(torch.empty(2, WIDTH)))
        model.weight.data = half
        held.append(model(torch.empty(2, WIDTH, dtype=torch.float64)))
    assert [tuple(each.shape) for each in held] == [(2, WIDTH), (2, 3), (2, 5)]
    weights = [op.inputs[1] for op in step.graph.ops if op.name == "aten::linear"]
    assert [each.dtype for each in weights] == ["fp32", "fp32", "fp64"]


def test_a_tensor_that_nothing_has_read_is_given_other_data() -> None:
    (model,) = layers(1)
    with own.predicting(GPU):
        model.weight.data = torch.empty(3, WIDTH)
        assert model(torch.empty(2, WIDTH)).shape == (2, 3)


def test_clipping_is_a_few_kernels_and_steps_within_the_backward_pass_belong_to_it() -> None:
    with own.predicting(GPU) as step:
        model = layers(8)
        model(torch.empty(TOKENS, WIDTH)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert not [op for op in step.graph.ops if op.name == "aten::linalg_vector_norm"][2:]
    with own.predicting(GPU) as step:
        model = layers(2)
        optimizers = {each: torch.optim.SGD([each]) for each in model.parameters()}
        for each in optimizers:
            each.register_post_accumulate_grad_hook(lambda each: optimizers[each].step())
        model(torch.empty(TOKENS, WIDTH)).sum().backward()
    phases = [op.phase for op in step.graph.ops if op.name == "aten::mm"]
    assert phases.count("backward") == 3  # of a weight each, and of what lies between


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_scaler_steps(device: str) -> None:
    with own.predicting(GPU) as step:
        model, scaler = layers(), torch.amp.GradScaler(device)
        assert scaler.is_enabled()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler.scale(model(torch.empty(TOKENS, WIDTH)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert "optimizer" in {op.phase for op in step.graph.ops}


def test_operators_whose_size_depends_on_values_are_not_estimated() -> None:
    with pytest.raises(UsageError, match="depends on values"):
        own.estimate(torch.ops.aten.nonzero.default, (torch.empty(4),), hardware=GPU)


def test_sharded_parameters_are_gathered_twice_and_gradients_scattered_once() -> None:
    from torch.distributed.fsdp import fully_shard

    with group(8) as mesh, own.predicting("dgx-h100") as step:
        model = layers(4)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        trained(fully_shard(model, mesh=mesh))
    found = pd.DataFrame(collectives(step.graph), columns=["kind", "elements", "ranks"])
    sums = found.groupby("kind")["elements"].sum().to_dict()
    assert sums == {"all_gather": 2 * 4 * WIDTH**2, "reduce_scatter": 4 * WIDTH**2}
    gathers = [at for at, op in enumerate(step.graph.ops) if "allgather" in op.name]
    assert set(gathers) <= set(step.graph.data[:, 0].tolist())


def test_tensor_parallelism_works_on_shards_and_sums_activations() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with group(4) as mesh, own.predicting("dgx-h100") as step:
        model = layers()
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        trained(model, torch.optim.AdamW(model.parameters()))
    assert collectives(step.graph) == [("all_reduce", TOKENS * WIDTH, "0,1,2,3")]
    first, second = [op for op in step.graph.ops if op.name == "aten::mm"][:2]
    assert first.outputs[0].shape == (TOKENS, WIDTH // 4)
    assert second.tensors[1].shape == (WIDTH // 4, WIDTH)


def test_stages_of_a_pipeline_meet() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    count, steps = 4, []
    for rank in range(2):
        with group(2, rank), own.predicting("dgx-h100", name=f"rank {rank}") as step:
            part = torch.empty(TOKENS, WIDTH)
            first = {} if rank == 0 else {"input_grads": (part,)}
            stage = PipelineStage(
                *(layers(4), rank, 2, torch.device("cpu")),
                input_args=(part,), output_args=(part,), output_grads=(part,), **first,
            )  # fmt: skip
            schedule = ScheduleGPipe(stage, count, loss_fn=lambda out, target: out.sum())
            whole = torch.empty(count * TOKENS, WIDTH)
            schedule.step(*[whole] * (rank == 0), **({"target": whole} if rank else {}))
        steps.append(step)
    sent = [ranks for _, _, ranks in collectives(steps[0].graph)]
    assert sent == ["0,1"] * count + ["1,0"] * count
    together = own.together(steps).results[0]
    # Each waits for the other once: forward, then backward, of one of so many micro-batches.
    alone = max(each.prediction.results[0].rank.gpu_active_us for each in steps)
    assert alone < together.step_us < alone * (1 + 2 / count)
    assert len(together.ranks) == 2
    both = [each.graph for each in steps]
    on_cpus = predict_passes(both[0], [cluster_of("cpu-epyc", 2)], (), None, both[1:])
    assert len(on_cpus.results[0].ranks) == 2


def test_operators_nodes_and_collectives() -> None:
    aten = torch.ops.aten
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    row = pd.DataFrame([{"op": "linear", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}])
    product_us = own.estimate(aten.mm.default, (a, a), hardware=GPU)
    assert product_us == pytest.approx(durations(row, GPU)["duration_us"].iloc[0], rel=0.1)
    assert own.estimate(aten.view.default, (a, [-1]), hardware=GPU) == 0.0
    zeta = (a.float(), a.float())
    with pytest.raises(own.NotCovered, match=r"special_zeta\.default: not covered") as unknown:
        own.estimate(aten.special_zeta.default, zeta, hardware=GPU)
    assert unknown.value.streaming_us > 3 * 4096**2 * 4 / 3.35e6  # three tensors at the peak rate
    with pytest.raises(UsageError, match="not an operator"):
        own.estimate(len, (a,), hardware=GPU)


def test_overlap_scheduling_hides_a_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    scheduling = pytest.importorskip("torch._inductor.fx_passes.overlap_scheduling")
    from torch.fx.experimental.proxy_tensor import make_fx

    figures = "torch.utils._runtime_estimation."  # of this machine's GPU, asked for but not used
    monkeypatch.setattr(f"{figures}get_gpu_dram_gbps", lambda: 1.0)
    monkeypatch.setattr(f"{figures}get_device_tflops", lambda dtype: 1.0)

    def loss(x: Any, shard: Any, weight: Any) -> Any:
        gathered = functional.all_gather_tensor(shard, 0, dist.group.WORLD)
        return (x @ weight) @ gathered

    asked: dict[str, float | None] = {}
    estimate = own.node_estimator("dgx-h100")

    def noted(node: Any, message_bytes: int | None = None) -> float | None:
        return asked.setdefault(node.name, estimate(node, message_bytes))

    with group(8):
        with FakeTensorMode():
            given = (torch.empty(n, 4096, dtype=torch.bfloat16) for n in (8192, 512, 4096))
            graph = make_fx(loss)(*given)
        order = [
            node.name
            for node in scheduling.schedule_overlap_bucketing(
                graph, custom_runtime_estimation=noted
            ).graph.nodes
        ]
        whole = next(node for node in graph.graph.nodes if node.name == "all_gather_into_tensor")
        gather_us = own.estimate(whole, hardware="dgx-h100")
        assert own.estimate(whole, hardware="dgx-h100", message_bytes=8 * 4096**2) > 2 * gather_us
    assert asked["all_gather_into_tensor"] == pytest.approx(gather_us / 1e3)
    assert asked["mm"]
    places = [order.index(name) for name in ("all_gather_into_tensor", "mm", "wait_tensor")]
    assert places == sorted(places)


def test_estimators_of_pytorch_take_ours() -> None:
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator

    usual = RuntimeEstimator._roofline_estimate
    with FakeTensorMode(), own.estimating(GPU):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        with RuntimeEstimator()("operator-level-cost-model") as found:
            trained(model)
        with SACEstimator()("operator-level-cost-model") as kept:
            trained(model)
    assert usual == RuntimeEstimator._roofline_estimate
    with own.predicting(GPU) as step:
        trained(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()))
    forward_us = step.modules.loc["Sequential", "forward_us"]
    assert found.mod_runtimes["Sequential"]["fw"] == pytest.approx(forward_us / 1e3, rel=0.02)
    assert sum(kept.sac_mod_stats["Sequential"].runtimes) == pytest.approx(
        forward_us / 1e3, rel=0.02
    )


def test_loops_for_gpus_need_none() -> None:
    """Devices by number, waits, scaled losses that are logged and looked at."""
    with group(8), own.predicting("dgx-h100") as step:
        torch.cuda.set_device(0)
        x = torch.rand(TOKENS, WIDTH).pin_memory().to(0, non_blocking=True)
        model = nn.parallel.DistributedDataParallel(layers().to(0), device_ids=[0])
        loss = model(x).sum() + torch.zeros((), device=0)
        assert torch.isfinite(loss)
        assert not torch.isnan(loss)
        assert not torch.isinf(loss)
        loss.backward()
        torch.cuda.synchronize()
        assert f"{loss:.1f} {loss.tolist()} {loss.detach().cpu().numpy()}" == "1.0 1.0 1.0"
    assert {kind for kind, *_ in collectives(step.graph)} == {"all_reduce"}


def test_streams_events_meshes_and_checkpoints_for_gpus_need_none() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with group(16), own.predicting("dgx-h100") as step:
        mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
        model, begun = layers().cuda(), torch.cuda.Event(enable_timing=True)
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        begun.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            loss = model(torch.empty(TOKENS, WIDTH, device="cuda")).sum()
        loss.backward()
        assert begun.elapsed_time(torch.cuda.Event(enable_timing=True)) == 1
        torch.save(model.state_dict(), "/nowhere/model.pt")
    groups = {(kind, ranks) for kind, _, ranks in collectives(step.graph)}
    assert ("all_gather", "0,4,8,12") in groups
    assert ("all_reduce", "0,1,2,3") in groups


def test_values_of_real_optimizers_are_read_and_not_written() -> None:
    model = layers(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.rand(2, WIDTH)).sum().backward()
    optimizer.step()
    (state,) = optimizer.state.values()
    kept = [value.clone() for value in (*state.values(), *model.parameters())]
    with own.predicting(GPU):
        trained(model, optimizer)
        assert state["step"].item() == 2
    after = (*optimizer.state[model[0].weight].values(), *model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))


def test_a_backward_pass_begins_at_an_edge() -> None:
    graph = pytest.importorskip("torch.autograd.graph")
    if not hasattr(graph, "get_gradient_edge"):
        pytest.skip("PyTorch 2.4 and later begin at edges")
    with own.predicting(GPU) as step:
        edge = graph.get_gradient_edge(layers()(torch.empty(TOKENS, WIDTH)))
        torch.autograd.backward([edge], [torch.ones(TOKENS, WIDTH)])
    products = [op.phase for op in step.graph.ops if op.name == "aten::mm"]
    assert products == ["forward"] * 2 + ["backward"] * 3


@pytest.mark.parametrize(("share", "rows"), [(0.25, TOKENS // 4), (0.5, TOKENS // 2)])
def test_loops_assume_shares(share: float, rows: int) -> None:
    with own.predicting(GPU, assume={"gt": share}) as step:
        x = torch.empty(TOKENS, WIDTH)
        layers(1)(x[layers(1)(x)[:, 0] > 0])
    assert step.graph.ops[-1].outputs[0].shape == (rows, WIDTH)
    with (
        pytest.raises(UsageError, match="assume gt: no size depends"),
        own.predicting(GPU, assume={"gt": share}),
    ):
        layers(1)(torch.empty(TOKENS, WIDTH))


def test_bad_loops_are_one_line() -> None:
    nothing = pytest.raises(PerfmodelError, match="nothing ran: call a module inside")
    with nothing as error, own.predicting(GPU) as step:
        torch.ones(3)
    assert "\n" not in str(error.value)
    with pytest.raises(PerfmodelError, match="holds no step"):
        _ = step.step_us
    valued = pytest.raises(PerfmodelError, match=r"line \d+ of test_torch.py.*depends on values")
    with valued, own.predicting(GPU):
        layers()(torch.empty(1, WIDTH)).ne(0).nonzero().sum().item()
    few = pytest.raises(UsageError, match="8 devices for 32 ranks")
    with group(32), few, own.predicting("dgx-h100", nodes=1):
        pass
    with pytest.raises(UsageError, match="no steps"):
        own.together([])
    as_it_is = pytest.raises(ValueError, match="mine")  # an error of the loop's own
    with as_it_is, own.predicting(GPU):
        raise ValueError("mine")


def test_an_old_pytorch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.1.2")
    with pytest.raises(PerfmodelError, match=r"takes PyTorch 2.4 or later, not 2.1.2: pip install"):
        own.estimate(torch.ops.aten.relu.default, (torch.ones(1),), hardware=GPU)


@pytest.mark.parametrize("number", range(3))
def test_examples_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    try:
        exec(compile(blocks[number], f"{DOCS.name} {number}", "exec"), {})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    figures = [float(text) for text in re.findall(r"\b\d+\.\d+\b", capsys.readouterr().out)]
    assert figures
    assert np.isfinite(figures).all()
