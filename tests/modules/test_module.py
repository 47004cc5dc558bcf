"""PyTorch modules traced without computing them, and what they are predicted to take."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import PerfmodelError
from perfmodel.hardware import device
from perfmodel.lowering import lower
from perfmodel.ops.graph import AUTOGRAD_NODE, BACKWARD, NO_OP, OpGraph, tensors_in
from perfmodel.ops.read.module import Call, Program, as_run, program_of
from perfmodel.timeline.graph.kinds import Cause, NodeKind
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from perfmodel import predict, predict_module  # noqa: E402
from perfmodel.ops.read.module import graph_of_module, graph_of_program  # noqa: E402

SOURCE = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layer = torch.nn.Linear(32, width)

    def forward(self, x):
        return torch.relu(self.layer(x))


class Looks(torch.nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Breaks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("no such\\nwidth")


def get_inputs():
    return [torch.rand(8, 32)]


def long_inputs():
    return [torch.rand(800, 32)]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def pieces(graph: OpGraph) -> list[tuple[str, dict[str, float]]]:
    return [(piece.op, dict(piece.dims)) for piece in lower(graph, "cuda").pieces]


def of(module: Any, *inputs: Any, **call: Any) -> list[tuple[str, dict[str, float]]]:
    return pieces(graph_of_module(module, inputs, Call(**call)))


def names(found: list[tuple[str, dict[str, float]]]) -> list[str]:
    return [name for name, _ in found]


def test_a_linear_layer_is_one_product(path: Path) -> None:
    graph = graph_of_program(Program(path, "Net"))
    (linear, dims), (relu, _) = pieces(graph)
    assert (linear, relu) == ("linear", "relu")
    assert {name: dims[name] for name in "mnk"} == {"m": 8, "n": 64, "k": 32}
    assert [op.name for op in graph.ops if op.parent == -1] == ["aten::linear", "aten::relu"]


def test_arguments_of_the_constructor_and_inputs_can_be_given(path: Path) -> None:
    wide = pieces(graph_of_program(Program(path, "Net", init=(128,), inputs=("16x32:fp16",))))
    assert (wide[0][1]["m"], wide[0][1]["n"]) == (16, 128)
    named = pieces(graph_of_program(Program(path, "Net", inputs=("long_inputs",))))
    assert named[0][1]["m"] == 800
    batch = pieces(graph_of_program(Program(path, "Net"), Call(batch=40)))
    assert batch[0][1]["m"] == 40


def test_types() -> None:
    graph = graph_of_module(torch.nn.Linear(4, 4), [torch.rand(2, 4)], Call(dtype="bf16"))
    assert {t.dtype for op in graph.ops for t in op.tensors} == {"bf16"}
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    cast = graph_of_module(module, [torch.rand(2, 4)], Call(autocast="bf16"))
    dtypes = {piece.op: piece.dtype for piece in lower(cast, "cuda").pieces}
    assert (dtypes["linear"], dtypes["layer_norm"]) == ("bf16", "fp32")


def test_training_runs_the_gradients_and_the_optimizer() -> None:
    module = torch.nn.Linear(32, 64)
    forward = of(module, torch.rand(8, 32))
    trained = of(module, torch.rand(8, 32), training=True)
    assert names(forward) == ["linear"]
    assert [(d["m"], d["n"], d["k"]) for n, d in trained if n == "mm"] == [(64, 32, 8)]
    graph = graph_of_module(module, [torch.rand(8, 32)], Call(training=True, optimizer="Adam"))
    assert {op.phase for op in graph.ops} == {"forward", "backward", "optimizer"}
    assert "aten::zeros_like" not in [op.name for op in graph.ops]  # moments are there before
    assert all(not p.requires_grad or p.grad is None for p in module.parameters())


class Reused(torch.nn.Module):  # type: ignore[misc]
    """A value that two branches read, and a part that is run again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, values: Any) -> Any:
        made = self.layer(values)
        return checkpoint(torch.sigmoid, made.sin() + made, use_reentrant=False)


def test_the_backward_pass_is_nodes_on_a_thread_of_their_own() -> None:
    graph = graph_of_module(Reused(), [torch.rand(4, 8)], Call(training=True))
    tops = [op for op in graph.ops if op.parent == NO_OP and op.phase == BACKWARD]
    nodes = [op.name.removeprefix(AUTOGRAD_NODE) for op in tops if op.thread == AUTOGRAD_THREAD]
    named = ("Add", "Sum", "Sigmoid", "Add", "Sin", "Addmm", "T")
    accumulated = 2 * ["torch::autograd::AccumulateGrad"]
    assert sorted(nodes) == sorted([f"{name}Backward0" for name in named] + accumulated)
    assert [op.name for op in tops if op.thread == MAIN_THREAD] == ["aten::ones_like"]

    def below(node: str) -> list[str]:
        at = next(i for i, op in enumerate(graph.ops) if op.name == f"{AUTOGRAD_NODE}{node}")
        return [op.name for op in graph.ops if op.parent == at and op.name != "aten::detach"]

    assert below("SigmoidBackward0") == ["aten::sigmoid", "aten::sigmoid_backward"]
    assert below("SinBackward0") == [
        "aten::cos",
        "aten::mul",
        "aten::add",
    ]  # what both branches give


def test_convolutions_and_what_a_gpu_runs_for_normalisation_dropout_and_attention() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8))
    found = of(net, torch.rand(2, 3, 16, 16))
    assert names(found) == ["conv2d", "add_scalar", "batch_norm"]  # it counts its batches
    dims = found[0][1]
    assert (dims["in_channels"], dims["out_channels"], dims["input_size"]) == (3, 8, 16)
    assert len(of(torch.nn.Dropout(0.5), torch.rand(64, 64))) == 1
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    found = of(layer, torch.rand(2, 16, 64))
    (attention,) = [dims for name, dims in found if name == "attention"]
    assert (attention["b"], attention["heads"], attention["s"]) == (2, 4, 16)


def test_a_transposed_convolution_is_the_gradient_of_one_from_its_output() -> None:
    net = torch.nn.ConvTranspose2d(8, 3, 4, stride=2, bias=False)
    graph = graph_of_module(net, [torch.rand(2, 8, 16, 16)])
    (piece,) = lower(graph, "cuda").pieces
    assert (piece.op, piece.direction) == ("conv2d", "bwd_data")
    assert (piece.dims["in_channels"], piece.dims["out_channels"]) == (3, 8)
    assert piece.dims["input_size"] == 34


def test_recurrent_layers_take_a_product_and_gates_for_each_step() -> None:
    found = of(torch.nn.LSTM(16, 256, num_layers=2), torch.rand(5, 4, 16))
    products = [(dims["m"], dims["n"], dims["k"]) for name, dims in found if name == "mm"]
    assert products == [(20, 1024, 16), (20, 1024, 256), *[(4, 1024, 256)] * 5 * 2]
    assert [name for name, _ in found].count("elementwise") == 5 * 2
    found = of(torch.nn.GRU(16, 256, num_layers=2, bidirectional=True), torch.rand(5, 4, 16))
    products = [(dims["m"], dims["n"], dims["k"]) for name, dims in found if name == "mm"]
    assert [k for _, _, k in products[:4]] == [16, 16, 512, 512]
    assert products[4:] == [(4, 768, 256)] * 5 * 2 * 2


def test_the_gradient_of_a_recurrent_layer_is_one_node_that_launches_without_pause() -> None:
    layer, batch = torch.nn.LSTM(16, 256, bidirectional=True), torch.rand(5, 4, 16)
    graph = graph_of_module(layer, [batch], Call(training=True))
    assert [op.name for op in graph.ops].count(f"{AUTOGRAD_NODE}CudnnRnnBackward") == 1
    (gradient,) = [op for op in graph.ops if op.name == "aten::_cudnn_rnn_backward"]
    shapes = [tensor.shape for tensor in tensors_in(gradient.outputs)]
    assert shapes == [tuple(p.shape) for p in layer.parameters()]
    found = of(layer, batch, training=True)
    products = [(d["m"], d["n"], d["k"]) for name, d in found if name == "mm"]
    assert products[-16:-6] == [(4, 256, 1024)] * 5 * 2  # the state's, step by step
    assert products[-6:] == [(20, 16, 1024), (1024, 16, 20), (1024, 256, 20)] * 2
    made = predict(graph, hardware="h200-sxm").results[0].timeline.graph.nodes_
    assert sum(made.cause == Cause.HOST_T5) < 16 < sum(made.kind == NodeKind.LAUNCH)


def test_recurrent_products_are_in_tf32_where_a_device_has_it() -> None:
    graph = graph_of_module(torch.nn.GRU(16, 32), [torch.rand(5, 4, 16)])
    for name, dtype in (("h200-sxm", "tf32"), ("v100-sxm2-16gb", "fp32")):
        made = lower(graph, "cuda", device=device(name)).pieces
        assert {piece.dtype for piece in made if piece.op == "mm"} == {dtype}
        assert {piece.dtype for piece in made if piece.op == "elementwise"} == {"fp32"}


def test_windows_count_by_their_dimensions() -> None:
    line = of(torch.nn.AvgPool1d(4), torch.rand(2, 3, 64))[0][1]
    image = of(torch.nn.AvgPool2d(4), torch.rand(2, 3, 64, 64))[0][1]
    assert line["kernel_size"] ** 2 == pytest.approx(4)
    assert image["kernel_size"] ** 2 == pytest.approx(16)


def test_nothing_is_allocated_for_a_large_model() -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(*(torch.nn.Linear(65536, 65536) for _ in range(16)))
    graph = graph_of_module(module, [torch.rand(1, 65536)])
    weights = {t.storage_id for op in graph.ops for t in op.tensors if t.elements == 1 << 32}
    assert len(weights) == 16  # 256 GiB in fp32


def test_a_module_stays_in_the_mode_that_it_is_in() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    assert len(of(module, torch.rand(4, 8))) == 2
    assert len(of(module.eval(), torch.rand(4, 8))) == 1
    assert len(of(module, torch.rand(4, 8), training=True)) > 2
    assert not module.training


class Composed(torch.nn.Module):  # type: ignore[misc]
    """What is composed of other operators on every device, and views by indexing."""

    def forward(self, values: Any) -> Any:
        return torch.nn.functional.kl_div(values[:, 0, None, 2:5], values[:, 1, None, 2:5])


def test_what_is_composed_is_counted_once() -> None:
    found = of(Composed(), torch.rand(16, 8, 64))
    assert (
        max(dims.get("elements", dims.get("rows", 1) * dims.get("cols", 1)) for _, dims in found)
        == 48
    )
    assert names(found).count("mean") + names(found).count("sum") == 1


def test_verbs_that_take_a_module(path: Path, tmp_path: Path) -> None:
    from perfmodel.cli import main

    program = [f"{path}:Net", "--hardware", "l4"]
    page, timeline = tmp_path / "page.html", tmp_path / "timeline.json"
    assert main(["report", *program, "-o", str(page)]) == 0
    assert main(["export", *program, "-o", str(timeline)]) == 0
    assert b"linear" in page.read_bytes()
    assert b"linear" in timeline.read_bytes()
    assert main(["export", *program, "-o", str(tmp_path / "graph.graphml")]) == 2
    assert main(["predict", *program, "--nodes", "2"]) == 2
    assert main(["predict", *program[:1]]) == 2


def test_every_output_is_known(path: Path) -> None:
    graph = graph_of_program(Program(path, "Net"))
    assert all(list(tensors_in(op.outputs)) for op in graph.ops)


@pytest.mark.parametrize(
    ("name", "call", "word"),
    [
        ("Nope", {}, "no torch.nn.Module 'Nope'; it has Net, Looks, Breaks"),
        ("Looks", {}, "its call fails at line 15 of net.py: aten._local_scalar_dense.default dep"),
        ("Breaks", {}, "its constructor fails at line 21 of net.py: ValueError: no such width"),
        ("Net", {"training": True, "optimizer": "Nadam"}, "optimizer 'Nadam': one of SGD"),
    ],
)
def test_errors_are_one_line(path: Path, name: str, call: dict[str, Any], word: str) -> None:
    with pytest.raises(PerfmodelError, match=r"^[^\n]+$") as raised:
        graph_of_program(Program(path, name), Call(**call))
    assert word in str(raised.value)


def test_inputs_that_do_not_fit(path: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"its call fails at line 10 of net\.py"):
        graph_of_program(Program(path, "Net", inputs=("8x31",)))
    with pytest.raises(PerfmodelError, match="expected sizes as 1024x1024"):
        graph_of_program(Program(path, "Net", inputs=("8xa",)))
    with pytest.raises(PerfmodelError, match=f"'{2**63 - 1}x8': a tensor of it fails"):
        graph_of_program(Program(path, "Net", inputs=(f"{2**63 - 1}x8",)))
    with pytest.raises(PerfmodelError, match="a batch of 1000000000000000000 fails"):
        graph_of_program(Program(path, "Net", inputs=("8x32",)), Call(batch=10**18))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit(0)", "its import fails at line 1 of net.py: SystemExit: 0"),
        ("x = 1\nclass Net(:", "its import fails at line 2 of net.py: SyntaxError"),
        ("class E(BaseException):\n    pass\nraise E", "its import fails at line 3 of net.py: E"),
        (
            SOURCE + "def get_init_inputs():\n    exit(0)\n",
            r"get_init_inputs\(\) fails.*: SystemEx",
        ),
        ("def __getattr__(name):\n    raise ValueError(name)\n", "tracing it fails at line 2"),
    ],
)
def test_files_that_end_the_process_or_are_no_python(
    tmp_path: Path, source: str, message: str
) -> None:
    path = tmp_path / "net.py"
    path.write_text(source)
    with pytest.raises(PerfmodelError, match=message):
        graph_of_program(Program(path, "Net", inputs=("8x32",)))


def test_a_file_leaves_the_process_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.py"
    sets = "import os, sys\nos.chdir('/')\nsys.path.append('/')\nprint('hello')\n"
    path.write_text(sets + SOURCE + "torch.set_default_dtype(torch.float64)\n")
    before = os.getcwd(), list(sys.path), torch.get_default_dtype()
    graph_of_program(Program(path, "Net", inputs=("8x32:fp64",)))
    assert (os.getcwd(), list(sys.path), torch.get_default_dtype()) == before
    assert capsys.readouterr() == ("", "hello\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"gone\.py: cannot be read: no such file"):
        graph_of_program(Program(tmp_path / "gone.py", "Net"))


def test_predictions_are_of_the_module_in_memory_as_of_its_file(path: Path) -> None:
    graph = graph_of_program(Program(path, "Net"))
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU())
    ours = predict_module(module, [torch.rand(8, 32)], hardware=["h100-sxm", "l4"])
    file = predict(graph, hardware=["h100-sxm", "l4"])
    assert [r.step_us for r in ours.results] == pytest.approx([r.step_us for r in file.results])
    for result in file.results:
        assert result.low_us is not None
        assert result.high_us is not None
        assert result.low_us < result.step_us < result.high_us


def test_cuda_graphs_leave_one_launch(path: Path) -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))
    eager = predict_module(module, [torch.rand(8, 32)], hardware="h100-sxm").results[0]
    graphs = predict_module(module, [torch.rand(8, 32)], hardware="h100-sxm", mode="graphs")
    assert graphs.results[0].step_us < eager.step_us / 2
    with pytest.raises(PerfmodelError, match="eager, compiled, graphs, reduce-overhead"):
        as_run(graph_of_program(Program(path, "Net")), "jit")


MOVES = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 64).half().to("cuda")
        self.bias = torch.nn.Parameter(torch.ones(64, device="cuda"))

    def forward(self, x):
        return self.layer(x) + self.bias.half()


def get_inputs():
    return [torch.rand(8, 32).cuda().half()]
"""


def test_a_module_that_moves_itself_is_as_one_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "moved.py").write_text(MOVES)
    plain = MOVES.replace('.to("cuda")', "").replace(', device="cuda"', "").replace(".cuda()", "")
    (tmp_path / "plain.py").write_text(plain)
    moved, stayed = (
        graph_of_program(Program(tmp_path / name, "Net")) for name in ("moved.py", "plain.py")
    )
    assert pieces(moved) == pieces(stayed)
    assert "fp16" in {piece.dtype for piece in lower(moved, "cuda").pieces}


def test_longer_inputs_take_longer() -> None:
    taken = [
        predict_module(torch.nn.Linear(4096, 4096), [torch.rand(rows, 4096)], hardware="a10")
        .results[0]
        .step_us
        for rows in (1024, 4096, 16384)
    ]
    assert taken[0] * 2 < taken[1] < taken[2] / 2


@pytest.mark.parametrize(
    ("text", "is_program"),
    [("a/net.py:Net", True), ("net.py", False), ("trace.json:x", False), ("net.py:a-b", False)],
)
def test_what_names_a_program(text: str, is_program: bool) -> None:
    assert (program_of(text) is not None) == is_program
