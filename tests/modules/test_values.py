"""Modules whose sizes depend on values: of integers they are computed, of floats assumed. It is
longer than 400 lines, since the programs stand in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.lowering import lower
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.module import Call, Program, as_run

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

from perfmodel import predict, predict_module  # noqa: E402
from perfmodel.ops.read import values  # noqa: E402
from perfmodel.ops.read.module import graph_of_module, graph_of_program  # noqa: E402

SOURCE = '''\
import torch
from torch import nn
from torch.nn import functional as F


class Hit(nn.Module):
    """Experts as Hugging Face's Mixtral loops over those that are hit."""

    def __init__(self, experts=8, width=64):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        weights, chosen = torch.topk(F.softmax(self.gate(x), -1), 2, -1)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in (mask.sum((-1, -2)) > 0).nonzero():
            at, token = torch.where(mask[expert[0]])
            made = self.experts[expert[0]](x[token]) * weights[token, at, None]
            out.index_add_(0, token, made)
        return out


class Sorted(Hit):
    """... and sorted by expert, in slices."""

    def forward(self, x):
        chosen = self.gate(x).topk(2, -1).indices.flatten()
        order = chosen.argsort()
        sizes = torch.bincount(chosen, minlength=len(self.experts)).tolist()
        parts = x[order // 2].split(sizes)
        return torch.cat([expert(p) for expert, p in zip(self.experts, parts)])


class Grouped(Hit):
    def forward(self, x):
        chosen = self.gate(x).topk(2, -1).indices.flatten()
        ends = torch.bincount(chosen, minlength=len(self.experts)).cumsum(0).int()
        weights = torch.stack([e.weight for e in self.experts])
        return torch._grouped_mm(x[chosen.argsort() // 2].bfloat16(), weights.bfloat16(), offs=ends)


class Capacity(Hit):
    """... and as Switch, up to a capacity."""

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        mask = F.one_hot(chosen, len(self.experts))
        keep = (mask.cumsum(0) * mask).sum(-1) <= 20
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = ((chosen == number) & keep).nonzero().squeeze(1)
            out[rows] = expert(x[rows])
        return out


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 16)


class Unique(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 32)

    def forward(self, ids):
        rows, back = torch.unique(ids, return_inverse=True)
        return self.table(rows)[back]


class Masked(Layer):
    def forward(self, x, lengths):
        return self.layer(x[torch.arange(x.shape[1]) < lengths[:, None]])


class Selected(Layer):
    def forward(self, x, lengths):
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return self.layer(torch.masked_select(x, mask[..., None]).view(-1, 32))


class Loops(Layer):
    def forward(self, x, lengths):
        return torch.cat([self.layer(each[:n]) for each, n in zip(x, lengths.tolist())])


class Longest(Layer):
    def forward(self, x, lengths):
        if (lengths > 0).all():
            x = x[:, : lengths.max().item()]
        return self.layer(x.flatten(0, 1))


class Repeats(Layer):
    def forward(self, x, lengths):
        return self.layer(torch.repeat_interleave(x[:, 0], lengths, 0))


class Array(Layer):
    def forward(self, x, lengths):
        return self.layer(x[0, : int(lengths.numpy().sum())])


class Waits(Layer):
    def forward(self, x):
        while x.abs().max() > 1e-3:
            x = x / 2
        return self.layer(x)


class Written(Layer):
    """A view sees what is written to what it is a view of."""

    def forward(self, x, lengths):
        rest = lengths[1:]
        lengths[2] = 1
        return self.layer(x[0, : rest.sum().item()])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(32, 256, batch_first=True)

    def forward(self, x, lengths):
        pack = nn.utils.rnn.pack_padded_sequence
        return self.layer(pack(x, lengths, batch_first=True, enforce_sorted=False))[0].data


class Positive(Layer):
    def forward(self, x):
        return self.layer(x[self.layer(x).sum(-1) > 0])


class Scaled(Layer):
    def forward(self, x):
        return self.layer(x) * x.sum().item()


class Broken(Layer):
    def forward(self, x, lengths):
        return self.layer(x[0, : torch.arange(3)[lengths].sum().item()])


class Drops(Layer):
    """Its constructor looks at values that it computes."""

    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]

    def forward(self, x):
        return self.layer(x)


def tokens():
    return [torch.rand(256, 64)]


def rows():
    return [torch.rand(100, 32)]


def ids():
    return [torch.arange(60) % 7]


def lengths():
    return [torch.rand(4, 16, 32), torch.tensor([3, 16, 7, 9])]


def get_inputs():
    return [torch.rand(8, 32)]
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def traced(path: Path, name: str, given: str, **call: Any) -> OpGraph:
    return graph_of_program(Program(path, name, inputs=(given,)), Call(**call))


def products(graph: OpGraph, op: str = "linear") -> list[float]:
    return [piece.dims["m"] for piece in lower(graph, "cuda").pieces if piece.op == op]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("Masked", [35]),
        ("Selected", [35]),
        ("Loops", [3, 16, 7, 9]),
        ("Longest", [64]),
        ("Repeats", [35]),
        ("Array", [16]),
        ("Written", [16]),
    ],
)
def test_what_is_computed_from_lengths_alone_is_known(
    path: Path, name: str, rows: list[int]
) -> None:
    graph = traced(path, name, "lengths")
    assert products(graph) == rows
    assert graph.notes == graph.others == ()
    assert products(traced(path, name, "lengths", training=True))[: len(rows)] == rows


def test_distinct_ids_are_those_of_the_input(path: Path) -> None:
    pieces = lower(traced(path, "Unique", "ids"), "cuda").pieces
    assert [p.dims["rows"] for p in pieces if p.op == "embedding"] == [7]


def test_sequences_of_many_lengths_are_steps_of_the_mean_batch(path: Path) -> None:
    assert products(traced(path, "Packed", "lengths"), "mm") == [16 * 3, *[3] * 16]


def test_constructors_that_compute_values(path: Path) -> None:
    assert products(traced(path, "Drops", "rows")) == [100]


@pytest.mark.parametrize("name", ["Hit", "Sorted"])
def test_experts_are_chosen_alike_and_said_to_be(path: Path, name: str) -> None:
    graph = traced(path, name, "tokens")
    assert products(graph) == [64] * 8
    choice, covered = graph.notes
    assert choice.startswith("assumed: topk chooses each of 8 alike, line ")
    assert choice.endswith(" of net.py (--assume topk=0.25)")
    assert covered == "the interval covers half and twice the odds of what is assumed"


def test_a_busiest_expert_and_others_alike(path: Path) -> None:
    graph = traced(path, "Hit", "tokens", assume={"topk": 0.5})
    first, *others = products(graph)
    assert first == 128
    assert sum(others) == 2 * 256 - 128
    assert max(others) - min(others) <= 2
    half, twice = (products(other)[0] for other in graph.others)
    assert (half, twice) == (85, 170)  # odds of 1 to 2, and of 2 to 1


def test_experts_up_to_a_capacity(path: Path) -> None:
    assert products(traced(path, "Capacity", "tokens")) == [20] * 8
    few = traced(path, "Capacity", "tokens", assume={"argmax": 0.0})
    assert products(few) == [20] * 7


def test_grouped_products_are_those_of_alike_groups(path: Path) -> None:
    (found,) = [p for p in lower(traced(path, "Grouped", "tokens"), "cuda").pieces if p.op == "bmm"]
    assert [found.dims[name] for name in "bmnk"] == [8, 64, 64, 64]


def test_a_share_of_a_mask_of_floats(path: Path) -> None:
    graph = traced(path, "Positive", "rows", assume={"gt": 0.2})
    assert products(graph) == [100, 20]
    assert [products(other)[1] for other in graph.others] == [11, 33]


def test_a_number_is_assumed_as_it_is(path: Path) -> None:
    graph = traced(path, "Scaled", "rows", assume={"item": 3.5})
    assert any(3.5 in op.inputs for op in graph.ops)
    assert not graph.others


def test_the_interval_covers_other_odds(path: Path) -> None:
    graph = traced(path, "Positive", "rows", assume={"gt": 0.5})
    (found,) = predict(graph, hardware="l4").results
    each = [predict(other, hardware="l4").results[0] for other in graph.others]
    assert found.low_us == pytest.approx(min(other.low_us or 0.0 for other in each))
    assert found.high_us == pytest.approx(max(other.high_us or 0.0 for other in each))


def test_modes_keep_other_odds_and_say_what_compiling_breaks_at(path: Path) -> None:
    graph = traced(path, "Positive", "rows", assume={"gt": 0.5})
    compiled = as_run(graph, "compiled")
    assert compiled.notes[-1].startswith("1 operators wait for values: torch.compile breaks")
    assert len(compiled.others) == 2
    assert all(other.cuda_graphs for other in as_run(graph, "graphs").others)
    assert predict(as_run(graph, "graphs"), hardware="l4").results[0].step_us > 0


@pytest.mark.parametrize(
    ("name", "given", "call", "message"),
    [
        ("Positive", "rows", {}, "what aten.gt.Scalar makes of floats, line .*assume gt=FRACT"),
        ("Scaled", "rows", {}, "they are floats: assume item=NUMBER"),
        ("Masked", "lengths", {"assume": {"gt": 0.5}}, "assume gt: no size depends on an operator"),
        ("Hit", "tokens", {"assume": {"gt": 0.5}}, "of that name; on these: topk"),
        ("Broken", "lengths", {}, "aten.index.Tensor, which fails: index 3 is out of bounds"),
    ],
)
def test_what_is_not_known_is_one_line(
    path: Path, name: str, given: str, call: dict[str, Any], message: str
) -> None:
    with pytest.raises(PerfmodelError, match=f"^[^\n]*{message}[^\n]*$"):
        traced(path, name, given, **call)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk", "--assume 'topk': expected OPERATOR=FRACTION"),
        ("topk=1.5", "assume topk=1.5: a share is from 0 to 1"),
        ("item=nan", "assume item=nan"),
    ],
)
def test_shares_that_are_none(
    path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from perfmodel.cli import main

    program = [f"{path}:Hit", "--input", "tokens", "--hardware", "l4"]
    assert main(["predict", *program, "--assume", text]) == 2
    assert message in capsys.readouterr().err


def test_more_elements_than_are_computed(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr("perfmodel.ops.read.values.MAX_ELEMENTS", 50)
    with pytest.raises(PerfmodelError, match=r"64 elements of aten.lt.Tensor .* and 50 are comp"):
        traced(path, "Masked", "lengths")


def test_assumptions_are_in_the_answer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from perfmodel.cli import main

    program = [f"{path}:Hit", "--input", "tokens", "--hardware", "l4", "--format", "json"]
    assert main(["predict", *program, "--assume", "topk=0.5"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("0.5 of the rows of topk choose the first of 8" in each for each in warnings)


def test_values_are_those_of_what_is_in_memory() -> None:
    class Buffered(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keep", torch.tensor([True, False, True, True]))

        def forward(self, x: Any, count: Any) -> Any:
            return x[: count.item(), self.keep] @ x.new_empty(3, 8)

    module, given = Buffered(), [torch.rand(10, 4), torch.tensor(6)]
    assert products(graph_of_module(module, given), "mm") == [6]
    predicted = predict_module(module, given, hardware="l4")
    assert predicted.results[0].step_us > 0


def test_a_batch_repeats_the_integers_that_are_given(path: Path) -> None:
    assert products(traced(path, "Masked", "lengths", batch=8)) == [70]


@pytest.mark.parametrize("name", ["adam", "ADAMW"])
def test_optimizers_by_name_in_any_letters(path: Path, name: str) -> None:
    graph = traced(path, "Drops", "rows", training=True, optimizer=name)
    assert "optimizer" in {op.phase for op in graph.ops}
    with pytest.raises(UsageError, match=r"one of SGD, .*RMSprop$"):
        traced(path, "Drops", "rows", training=True, optimizer="nadam")


def test_a_loop_that_waits_for_what_is_assumed_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MAX_GUESSES", 3)
    with pytest.raises(
        PerfmodelError, match=r"3 values are asked for .*: does a loop wait"
    ) as error:
        traced(path, "Waits", "rows", assume={"gt": 1.0})
    assert "line" in str(error.value)
