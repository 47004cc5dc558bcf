"""What a GPU runs for operators that the tracing machine would run otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import PerfmodelError
from perfmodel.lowering import lower
from perfmodel.ops.graph import AUTOGRAD_NODE
from perfmodel.ops.read.module import Call, as_run
from perfmodel.ops.read.tracing import ModuleError
from perfmodel.prediction import predict
from perfmodel.workload.memory_tiers import memory_use

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

from perfmodel import predict_module  # noqa: E402
from perfmodel.ops.read.module import graph_of_module  # noqa: E402


class Of(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def pieces(module: Any, *given: Any, training: bool = False) -> list[tuple[str, dict[str, float]]]:
    graph = graph_of_module(module, list(given), Call(training=training))
    return [(piece.op, dict(piece.dims)) for piece in lower(graph, "cuda").pieces]


def test_reduce_overhead_copies_what_a_call_is_given() -> None:
    """To where the graph reads it, in as much memory again."""
    graph = graph_of_module(torch.nn.ReLU(), [torch.rand(1 << 20)])
    reduced, plain = as_run(graph, "reduce-overhead"), as_run(graph, "compiled")
    assert reduced.cuda_graphs
    assert lower(reduced, "cuda").pieces[0].op == "copy"
    more_bytes = memory_use(reduced).total_bytes - memory_use(plain).total_bytes
    assert more_bytes == pytest.approx(4 << 20)


def test_on_a_cpu_nothing_is_captured_nor_copied() -> None:
    graph = graph_of_module(torch.nn.ReLU(), [torch.rand(1 << 20)])
    compiled, reduced = (
        predict(as_run(graph, how), hardware="cpu-epyc").results[0]
        for how in ("compiled", "reduce-overhead")
    )
    assert reduced.step_us == compiled.step_us


def test_what_a_meta_function_refuses_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.ones(3)

    with pytest.raises(ModuleError, match="its call fails"):
        graph_of_module(Net(), [torch.rand(8)])
    assert not caplog.records


def test_rms_norm_is_one_kernel_with_one_node_behind() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.RMSNorm(16))
    assert [op for op, _ in pieces(net, torch.rand(4, 8))] == ["linear", "rms_norm"]
    graph = graph_of_module(net, [torch.rand(4, 8)], Call(training=True))
    assert f"{AUTOGRAD_NODE}FusedRmsNormBackward" in [op.name for op in graph.ops]
    lowered = lower(graph, "cuda").pieces
    norms = [(p.direction, p.dims["cols"]) for p in lowered if p.op == "rms_norm"]
    assert norms == [("fwd", 16), ("bwd", 16)]


def test_rms_norm_of_two_dtypes_is_what_it_is_composed_of() -> None:
    norm = torch.nn.RMSNorm(16)
    assert len(pieces(norm, torch.rand(4, 16, dtype=torch.bfloat16))) > 3


def test_named_arguments_stand_where_the_operator_has_them() -> None:
    def attention(*given: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)

    values = torch.rand(2, 4, 16, 8)
    ((op, dims),) = pieces(Of(attention), values, values, values)
    assert (op, dims["causal"]) == ("attention", 1.0)


def test_attention_of_five_dimensions_runs_step_by_step_in_fp32() -> None:
    values = torch.rand(2, 4, 3, 16, 8, dtype=torch.bfloat16)
    graph = graph_of_module(
        Of(torch.nn.functional.scaled_dot_product_attention), [values] * 3, Call()
    )
    steps = [(piece.op, piece.dtype) for piece in lower(graph, "cuda").pieces]
    assert steps.count(("bmm", "fp32")) == 2
    assert ("softmax", "fp32") in steps


def test_normalisations_read_copies_of_what_lies_otherwise() -> None:
    values, norm = torch.rand(4, 16, 8), torch.nn.LayerNorm(16)
    found = pieces(Of(lambda x: norm(x.transpose(1, 2))), values)
    assert [op for op, _ in found] == ["transpose_copy", "layer_norm"]
    assert [op for op, _ in pieces(torch.nn.LayerNorm(8), values)] == ["layer_norm"]
    graph = graph_of_module(torch.nn.LayerNorm(16), [torch.rand(16, 4).T])
    _call, *kernels = as_run(graph, "compiled").ops
    assert len(kernels) == 1


def test_integers_are_summed_as_64_bits() -> None:
    graph = graph_of_module(Of(lambda x: (x > 0.5).sum(1)), [torch.rand(64, 32)])
    _, copy, total = lower(graph, "cuda").pieces
    assert (copy.op, copy.dims["elements"]) == ("elementwise", 64 * 32)
    assert (total.op, total.dtype) == ("sum", "int64")


def test_a_column_of_ids_is_looked_up_element_by_element() -> None:
    table, ids = torch.nn.Embedding(100, 64), torch.zeros(32, 4, dtype=torch.int64)
    ((_, dims),) = pieces(Of(lambda x: table(x[:, 1])), ids)
    assert dims["by_elements"] == 8
    for whole in (lambda x: table(x), lambda x: table(x.flatten())):
        ((_, dims),) = pieces(Of(whole), ids)
        assert "by_elements" not in dims


@pytest.mark.parametrize(("offsets", "longest"), [([0], 30), ([0, 1, 3], 27), ([0, 20, 20], 20)])
def test_the_longest_bag_is_that_of_the_offsets(offsets: list[int], longest: int) -> None:
    table, ids = torch.nn.EmbeddingBag(50, 8), torch.zeros(30, dtype=torch.int64)
    graph = graph_of_module(table, [ids, torch.tensor(offsets)])
    (bag,) = (piece for piece in lower(graph, "cuda").pieces if piece.op == "embedding_bag")
    assert bag.dims["longest_bag"] == longest


def test_a_recurrent_layer_of_whose_outputs_one_is_used_has_its_backward_pass() -> None:
    class Last(torch.nn.GRU):  # type: ignore[misc]
        def forward(self, given: Any) -> Any:
            return super().forward(given)[1]

    found = [op for op, _ in pieces(Last(16, 256), torch.rand(5, 4, 16), training=True)]
    assert found.count("mm") == 1 + 5 + 5 + 3


def test_what_a_caller_holds_is_given_back_when_it_returns() -> None:
    """The first layer's output is held by the block's frame while three more ops run."""

    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = x + 1
            return held.exp().sin().cos()

    graph = graph_of_module(torch.nn.Sequential(Block(), torch.nn.ReLU()), [torch.rand(8)])
    made = [op.outputs[0].storage_id for op in graph.ops]
    assert [graph.held[each] for each in made[:3]] == [3, 2, 3]
    assert [tensor.shape for tensor in graph.given] == [(8,)]


def test_finite_floats_and_backward_passes_within_a_call() -> None:
    class Force(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            with torch.enable_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                energy = super().forward(x.to(0).requires_grad_()).relu()
                assert torch.isfinite(energy).all()
                return torch.autograd.grad(energy.sum(), self.weight)[0]

    ops = graph_of_module(Force(64, 32, bias=False), [torch.rand(8, 64)]).ops
    phases = [(op.phase, op.outputs[0].dtype) for op in ops if op.name == "aten::mm"]
    assert phases == [("forward", "bf16"), ("backward", "bf16")]


def test_tensors_that_a_module_holds_are_not_written() -> None:
    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(2))
            self.sizes = [torch.tensor([3, 4])]

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x[: self.count.item() * self.sizes[0].tolist()[1]] @ x.new_empty(4, 8)

    module = Counting()
    ops = graph_of_module(module, [torch.rand(20, 4)]).ops
    assert [op.tensors[0].shape for op in ops if op.name == "aten::mm"] == [(3 * 4, 4)]
    assert module.count.item() == 2


def test_a_product_with_a_sparse_matrix_sums_the_rows_that_it_names() -> None:
    """And the transposed one in its backward pass; nothing goes over the zeros."""

    def product(ids: Any, x: Any, weight: Any) -> Any:
        return torch.sparse_coo_tensor(ids, torch.ones(30), (1000, 1000)) @ (x * weight)

    class Net(Of):
        def __init__(self) -> None:
            super().__init__(product)
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, *given: Any) -> Any:
            return self.function(*given, self.weight)

    ids = torch.randint(0, 1000, (2, 30))
    found = pieces(Net(), ids, torch.rand(1000, 8), training=True)
    bags = [dims for op, dims in found if op == "embedding_bag"]
    assert [(dims["hash_size"], dims["dim"]) for dims in bags] == [(1000, 8)] * 2
    assert [dims["batch"] * dims["pooling"] for dims in bags] == pytest.approx([30, 30])
    assert not any(op in ("mm", "unknown") for op, _ in found)


def test_indexed_reductions_and_packed_sequences_have_rules() -> None:
    def reduced(x: Any, at: Any, lengths: Any) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return torch.zeros(5, 8).index_reduce(0, at, packed.data, "amax")

    at, lengths = torch.randint(0, 5, (6,)), torch.tensor([3, 1, 2])
    found = dict(pieces(Of(reduced), torch.rand(4, 3, 8), at, lengths))
    assert (found["index_add"]["rows"], found["index_add"]["cols"]) == (6, 8)
    assert "unknown" not in found


@pytest.mark.parametrize(("device", "dtype"), [("p100-pcie-16gb", "bf16"), ("t4", "bf16")])
def test_a_type_that_a_device_has_no_units_for_is_refused(device: str, dtype: str) -> None:
    with pytest.raises(PerfmodelError, match=f"{device}: no units for {dtype}"):
        predict_module(torch.nn.Linear(4, 4), [torch.rand(2, 4)], hardware=device, dtype=dtype)


def test_of_several_devices_those_without_units_are_left_out() -> None:
    """Named in one line; none left is an error."""

    def on(*hardware: str) -> Any:
        inputs = [torch.rand(2, 4)]
        return predict_module(torch.nn.Linear(4, 4), inputs, hardware=hardware, dtype="bf16")

    found = on("t4", "h100-sxm", "p4")
    assert [each.hardware for each in found.results] == ["h100-sxm"]
    assert "left out t4, p4: no units for bf16: cast the module" in found.warnings
    with pytest.raises(PerfmodelError, match=r"^t4, p4: no units for bf16"):
        on("t4", "p4")


def test_rows_that_repeat_a_number_of_times_are_one_copy() -> None:
    thrice = Of(lambda x: x.repeat_interleave(3, 0))
    (result,) = predict_module(thrice, [torch.randn(64, 128)], hardware="h100-sxm").results
    assert [(row["family"], row["count"]) for row in result.families] == [("elementwise", 1)]
