"""Training loops as people write them for a GPU: each runs, without one, under fake tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perfmodel.errors import PerfmodelError
from perfmodel.ops.graph import OpGraph

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import perfmodel.torch as own  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64, padding_idx=0)
        self.norm, self.out = nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, words: Any) -> Any:
        return self.out(self.norm(self.words(words)))


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return torch.randn(64), row % 10


def mixed_precision() -> None:
    model = Net().cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.cuda.amp.GradScaler()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        words, labels = torch.randint(1, 100, (32,)).cuda(), torch.randint(10, (32,)).cuda()
        with torch.cuda.amp.autocast():
            loss = F.cross_entropy(model(words), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        assert scaler.get_scale() == pytest.approx(1.0)


def averaged_weights() -> None:
    model = Net().cuda()
    mean = copy.deepcopy(model).eval().requires_grad_(False)
    assert mean.out.weight is not model.out.weight
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randint(100, (32,), device="cuda")).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
        for old, new in zip(mean.state_dict().values(), model.state_dict().values(), strict=True):
            old.copy_(new)


def loader_with_workers() -> None:
    model = nn.Linear(64, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for rows, labels in DataLoader(Rows(), batch_size=16, num_workers=2, timeout=5):
        loss = F.cross_entropy(model(rows.cuda()), labels.to("cuda", non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def packed_words() -> None:
    layer = nn.LSTM(16, 32, batch_first=True).cuda()
    lengths = torch.tensor([3, 5, 1])
    rows = nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 5, 16), lengths, batch_first=True, enforce_sorted=False
    )
    padded, back = nn.utils.rnn.pad_packed_sequence(layer(rows)[0], batch_first=True)
    assert padded.shape == (3, 5, 32)
    assert back.tolist() == [3, 5, 1]
    padded.sum().backward()


def streams_and_figures() -> None:
    found = torch.cuda.get_device_properties(0)
    assert (torch.cuda.get_device_name(), found.multi_processor_count) == ("h100-sxm", 132)
    assert torch.cuda.get_device_capability() == (9, 0)
    model, stream = nn.Linear(64, 64).to(torch.device(0)), torch.cuda.Stream()
    with torch.cuda.nvtx.range("step"), torch.cuda.stream(stream):
        x = torch.randn(32, 64, device="cuda")
        x.record_stream(stream)
        model(x).sum().backward()
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.reset_peak_memory_stats()


def captured_whole() -> None:
    model = torch.compile(nn.Linear(64, 10), mode="max-autotune").cuda()
    optimizer = torch.optim.SGD(model.parameters())

    @torch.compile(fullgraph=True)
    def loss_of(rows: Any, labels: Any) -> Any:
        return F.cross_entropy(model(rows), labels)

    for _ in range(2):
        loss_of(torch.randn(8, 64).cuda(), torch.randint(10, (8,)).cuda()).backward()
        optimizer.step()


def gradients_by_sample() -> None:
    model = nn.Linear(64, 1).cuda()

    def loss_of(parameters: Any, rows: Any) -> Any:
        return torch.func.functional_call(model, parameters, (rows,)).sum()

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))
    found = each(dict(model.named_parameters()), torch.randn(8, 64).cuda())
    assert found["weight"].shape == (8, 1, 64)


def counted_hits() -> None:
    """Numbers of what is true of floats are logged; distributions ask whether parameters fit."""
    model = nn.Linear(64, 2).cuda()
    mean, spread = model(torch.randn(32, 64).cuda()).chunk(2, -1)
    drawn = torch.distributions.Normal(mean, spread.exp()).rsample()
    assert (drawn > 0.5).sum().item() == 1
    drawn.sum().backward()


def attention_of_one_kind() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (
        nn.Linear(64, 192)(torch.randn(2, 32, 64)).view(2, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
    )
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True).sum().backward()


def other_kinds_of_programs() -> None:
    """Scripted, traced, exported before it runs, without sizes at first, on a device by default."""
    torch.set_default_device("cuda")
    x = torch.randn(8, 64)
    lazy = nn.LazyLinear(64)
    lazy(x)
    assert lazy.weight.shape == (64, 64)
    scripted, traced = torch.jit.script(nn.Linear(64, 64)), torch.jit.trace(nn.Linear(64, 64), x)
    traced(scripted(x)).sum().backward()


@pytest.mark.parametrize(
    ("loop", "products", "drawn"),
    [
        (mixed_precision, 3, 2),
        (averaged_weights, 3, 1),
        (loader_with_workers, 2, 0),  # workers draw on the host; no gradient of the rows
        (packed_words, None, 0),
        (streams_and_figures, 2, 0),  # what comes before the step is not of it
        (captured_whole, 2, 2),
        (gradients_by_sample, None, 0),
        (counted_hits, 2, 1),
        (attention_of_one_kind, 2, 0),
        (other_kinds_of_programs, 1 + 2 + 3, 0),
    ],
)
def test_loops_run(loop: Callable[[], None], products: int | None, drawn: int) -> None:
    with own.predicting("h100-sxm") as step:
        loop()
    assert step.step_us > 0
    assert "aten::rand" not in str(step.prediction.warnings)  # without a rule
    names = [op.name for op in step.graph.ops]
    assert products in (None, count(step.graph, "mm"))
    assert sum(name in ("aten::normal_", "aten::random_") for name in names) == drawn


def test_what_is_exported_is_no_step() -> None:
    with own.predicting("h100-sxm") as step:
        exported = torch.export.export(nn.Linear(64, 64), (torch.randn(8, 64),))
        exported.module()(torch.randn(8, 64))
    assert count(step.graph, "mm") == 1


def test_inference_mode_runs_what_no_grad_does() -> None:
    model, found = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Softmax(-1)), []
    for mode in (torch.no_grad, torch.inference_mode):
        with own.predicting("h100-sxm") as step, mode():
            if (model(torch.randn(8, 64)).argmax(-1) == 2).all():
                pass
        found.append([op.name for op in step.graph.ops if op.name != "aten::t"])
    assert found[0] == found[1]
    assert "aten::addmm" in found[1]


def test_an_operator_of_higher_order_is_one_line() -> None:
    attention = pytest.importorskip("torch.nn.attention.flex_attention")
    q = torch.randn(1, 2, 128, 16)
    told = pytest.raises(PerfmodelError, match=r"line .* test_loops.py: flex_attention is not cov")
    with told, own.predicting("h100-sxm"):
        attention.flex_attention(nn.Linear(16, 16)(q), q, q)


@contextmanager
def ranks(count: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("is_view", [False, True])
def test_buckets_are_those_of_later_steps(*, is_view: bool) -> None:
    """Of four layers of about 17,000 bytes, the last first, 20,000 are full with every second; what
    is copied out, or the step, waits for its bucket."""
    with ranks(4), own.predicting("dgx-h100") as step:
        sizes = [(256, 16), (16, 256)] * 2
        model = nn.Sequential(*[nn.Linear(*each) for each in sizes]).cuda()
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=20_000 / 2**20, gradient_as_bucket_view=is_view
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            wrapped(torch.randn(8, 256).cuda()).sum().backward()
            optimizer.step()
    ops = step.graph.ops
    sums = [n for n, op in enumerate(ops) if op.attributes.get("collective") == "all_reduce"]
    told = [int(ops[n].attributes["in_elements"]) for n in sums]
    assert told == [256 + 4096 + 16 + 4096] * 2
    reads = {int(target) for source, target in step.graph.data if int(source) in sums}
    names = {ops[n].name for n in reads}
    assert names == ({"aten::_foreach_add_"} if is_view else {"aten::copy_"})


def test_a_counter_that_a_program_keeps_in_host_memory_is_not_waited_for() -> None:
    with own.predicting("h100-sxm") as step:
        device = torch.device("cuda:0")
        done = torch.zeros(1, dtype=torch.int64, device="cpu")
        seen, model = torch.zeros(1, dtype=torch.int64, device=device), nn.Linear(8, 8).to(device)
        model(torch.randn(4, 8, device=device))
        for each in (done, seen):
            each.add_(1).item()
    asked = [op for op in step.graph.ops if op.name == "aten::_local_scalar_dense"]
    assert [op.tensors[0].device for op in asked] == ["cpu", "cuda:0"]


def test_groups_and_weights_are_as_on_nccl() -> None:
    """Weights that do not change on their way to the device stay those that optimizers hold."""
    with ranks(4), own.predicting("dgx-h100") as step:
        assert torch.distributed.get_backend() == "nccl"
        group = torch.distributed.new_group([0, 1], backend="nccl")
        model = nn.Linear(8, 8)
        weight = model.weight
        assert model.to("cuda").weight is weight
        torch.distributed.all_reduce(model(torch.randn(4, 8).cuda()), group=group)
    told = [op.attributes["group_ranks"] for op in step.graph.ops if "group_ranks" in op.attributes]
    assert told == ["0,1"]


def test_gradients_are_compressed_on_the_wire() -> None:
    """By PyTorch's hook: to half the bytes, and back into the bucket."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    with ranks(4), own.predicting("dgx-h100") as step:
        model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
        model.register_comm_hook(None, bf16_compress_hook)
        model(torch.randn(8, 64).cuda()).sum().backward()
    (sent,) = [op for op in step.graph.ops if op.attributes.get("collective") == "all_reduce"]
    assert (sent.attributes["in_elements"], sent.attributes["dtype"]) == ("4160", "bf16")


def test_batches_are_normalised_over_ranks() -> None:
    """Forward a gather of mean, deviation and count; backward two sums, beside DDP's bucket."""
    with ranks(4), own.predicting("dgx-h100") as step:
        layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).cuda()
        model = nn.SyncBatchNorm.convert_sync_batchnorm(layers)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
        model(torch.randn(8, 3, 32, 32).cuda()).sum().backward()
    about = [op.attributes for op in step.graph.ops if "collective" in op.attributes]
    sizes = [(each["collective"], each["in_elements"]) for each in about if "in_elements" in each]
    assert [each for each in sizes if each[0] != "broadcast"] == [
        ("all_gather", "33"),
        ("all_reduce", "32"),
        ("all_reduce", "480"),
    ]


def count(graph: OpGraph, product: str) -> int:
    """Of these products, and those that add a bias."""
    return sum(op.name in (f"aten::{product}", f"aten::add{product}") for op in graph.ops)
