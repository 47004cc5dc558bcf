"""The largest batch that memory holds: the search, and what is predicted of what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import perfmodel
from perfmodel.designs.deployment import Deployment, largest
from perfmodel.designs.layouts import default
from perfmodel.errors import DoesNotFit, UsageError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.timeline.schedule import StepRole
from perfmodel.workload import load_workload


@pytest.mark.parametrize(
    ("filled", "most"),
    [
        (lambda n: 0.2 + n / 1e6, 800_000),
        (lambda n: 0.1 + (n / 1e5) ** 2, 94_868),
        (lambda n: 0.2 + n / 1e6 if n < 5e5 else None, 499_999),
        (lambda n: 0.5 + n / 1e6 if n < 4e5 else 1.4 + n / 1e7, 399_999),
        (lambda n: float(n), 1),
        (lambda n: None, 0),
    ],
)
def test_the_search_ends_below_what_fits_by_a_percent(
    filled: Callable[[int], float | None], most: int
) -> None:
    tried: list[int] = []
    found = largest(lambda n: [tried.append(n), filled(n)][1], 64)  # type: ignore[func-returns-value]
    assert 0.99 * most <= found <= most
    assert len(tried) <= 16


def test_of_a_workload_it_fits_and_a_little_more_does_not() -> None:
    one = cluster("dgx-a100-80gb")
    device = replace(one.node.device, hbm_bytes=6 * 10**9)
    one = replace(one, node=replace(one.node, device=device, gpus=1))
    small = load_workload("nvidia-dlrm-small")
    small = replace(small, tables=small.tables[:4])
    found = perfmodel.largest_batch(small, hardware=[one], train=False)
    told = found.source["largest_batch"]
    assert 0.98 < told["filled_frac"] <= 1.0
    assert told["batch"] == found.source["batch"]
    step_us = found.results[0].step_us
    assert told["samples_per_s"] == pytest.approx(told["batch"] / step_us * 1e6)
    assert predict(small, hardware=[one], batch=told["batch"], train=False).results == found.results
    with pytest.raises(DoesNotFit):
        predict(small, hardware=[one], batch=int(1.03 * told["batch"]), train=False)


def test_what_would_do_is_found_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of each batch that a search tries and that does not fit."""
    read: list[Deployment] = []
    monkeypatch.setattr(default, "_remedies", lambda own, *_: [read.append(own), "hope"][1:])
    with pytest.raises(DoesNotFit) as refused:
        predict("dlrm-dcnv2", hardware="a100-sxm-80gb")
    assert not read
    assert str(refused.value) == str(refused.value)
    assert str(refused.value).endswith("what would do: hope")
    assert len(read) == 1


def test_of_a_module_its_call_is_traced_at_each_batch(tmp_path: Path) -> None:
    """A row has 4,096 bytes, and as many of the result."""
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return x + 1\n"
        "def get_inputs(): return [torch.randn(8, 1024)]\n"
    )
    found = perfmodel.largest_batch(f"{path}:Net", hardware="t4")
    memory, told = found.results[0].memory, found.source["largest_batch"]
    assert memory is not None
    assert 0.98 < told["filled_frac"] <= 1.0
    assert memory["total_bytes"] - memory["driver_bytes"] == 2 * 4096 * told["batch"]


def test_what_does_not_tell_its_memory_is_one_line() -> None:
    with pytest.raises(UsageError, match="batch cannot be combined with a search"):
        perfmodel.largest_batch("dlrm-dcnv2", hardware="t4", batch=3)
    with pytest.raises(UsageError, match="expected one"):
        perfmodel.largest_batch("dlrm-dcnv2", hardware=["dgx-a100-80gb", "dgx-h100"])


@pytest.mark.slow
def test_steps_in_which_the_host_runs_ahead_are_as_complete_as_the_first() -> None:
    """At a batch that keeps the device busy, the host issues six steps within the first two."""
    trace = perfmodel.read("traces/cpu_dlrm_2rank")
    result = predict(trace, hardware="dgx-a100-80gb", mode="model", batch=65536).results[0]
    assert {step.role for step in result.rank.steps} == {StepRole.STEADY}
    assert result.step_us == pytest.approx(result.rank.steps[2].step_us, rel=0.01)
