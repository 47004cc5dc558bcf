"""Answers to one question asked two ways, and to questions whose answers have an order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perfmodel import predict_module
from perfmodel.hardware import cluster
from perfmodel.prediction.types import Result

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import perfmodel.torch as own  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
GPU = "h100-sxm"
BOARDS = ("v100-sxm2-32gb", "a100-sxm-80gb", GPU)
"""Each faster in all than the one before, but for kernels that only start and end."""


class Towers(nn.Module):
    """Two tables, one of a million rows, and a tower on each."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 64) for rows in (1_000_000, 50_000))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(2)
        )

    def forward(self, ids: Any) -> Any:
        columns = zip(self.tables, self.towers, ids.unbind(1), strict=True)
        users, items = (tower(table(one)) for table, tower, one in columns)
        return functional.log_softmax((users * items).sum(1, keepdim=True), -1)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, bias=False), nn.Conv2d(32, 64, 3, 2)
        self.norm, self.last = nn.BatchNorm2d(32), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = self.second(functional.relu(self.norm(self.first(x))))
        return self.last(x.mean((2, 3)))


def layer() -> Any:
    return nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[int], list[Any]]]] = {
    "towers": (Towers, lambda batch: [torch.zeros((64 * batch, 2), dtype=torch.int64)]),
    "images": (Images, lambda batch: [torch.zeros(2 * batch, 3, 128, 128)]),
    "layer": (layer, lambda batch: [torch.zeros(4 * batch, 128, 512)]),
}
each_program = pytest.mark.parametrize("name", PROGRAMS)


def asked(name: str, batch: int = 16, *, hardware: Any = GPU, **options: Any) -> list[Result]:
    make, inputs = PROGRAMS[name]
    found = predict_module(make(), inputs(batch), hardware=hardware, **options)
    return list(found.results)


@each_program
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_loop_and_its_module_agree(name: str, is_inside: bool) -> None:
    """In time and memory, wherever the module was built: the loop lets go of what it returns."""
    make, inputs = PROGRAMS[name]
    before = None if is_inside else make()
    with own.predicting(GPU) as step:
        model = before or make()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(*inputs(16)).sum().backward()
            optimizer.step()
    (one,) = asked(name, train=True, optimizer="Adam")
    assert step.step_us == pytest.approx(one.step_us, rel=0.02)
    assert one.memory is not None
    needed = one.memory["total_bytes"] - one.memory["driver_bytes"]
    assert step.memory_bytes == pytest.approx(needed, rel=0.03)


@each_program
def test_more_work_takes_longer_and_a_better_board_less(name: str) -> None:
    one, twice = (asked(name, batch, hardware=BOARDS) for batch in (16, 32))
    trained = asked(name, hardware=BOARDS, train=True, optimizer="SGD")
    for small, large, both in zip(one, twice, trained, strict=True):
        assert (
            small.rank.gpu_active_us <= large.rank.gpu_active_us <= 2.2 * small.rank.gpu_active_us
        )
        assert both.rank.gpu_active_us > 1.5 * small.rank.gpu_active_us
    for results in (one, twice, trained):
        taken = [result.rank.gpu_active_us for result in results]
        assert all(newer < 1.05 * older for older, newer in pairwise(taken))


@each_program
@pytest.mark.parametrize("options", [{}, {"train": True, "optimizer": "Adam"}])
def test_compiling_takes_no_kernel_longer(name: str, options: dict[str, Any]) -> None:
    modes = ("eager", "graphs", "compiled", "reduce-overhead")
    eager, graphs, compiled, both = (asked(name, mode=mode, **options)[0] for mode in modes)
    assert compiled.rank.gpu_active_us < 1.02 * eager.rank.gpu_active_us
    assert graphs.step_us < eager.step_us
    assert both.step_us < compiled.step_us
    parameters = sum(each.numel() * 4 for each in PROGRAMS[name][0]().parameters())
    held = parameters * (4 if options else 1)  # with gradients and two states
    for result in (eager, graphs, compiled, both):
        assert result.memory is not None
        assert result.memory["total_bytes"] > held


@pytest.mark.parametrize("board", BOARDS)
def test_no_product_is_faster_than_the_data_sheet(board: str) -> None:
    size, device = 8192, cluster(board).node.device
    product, inputs = nn.Linear(size, size, bias=False), [torch.zeros(size, size)]
    for dtype in ("fp32", "fp16"):
        found = predict_module(product, inputs, hardware=board, dtype=dtype)
        peak = device.matrix_tflop_per_s(dtype)
        rate = 2 * size**3 / found.results[0].rank.gpu_active_us / 1e6
        assert 0.4 * peak < rate < peak
