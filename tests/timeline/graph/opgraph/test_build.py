"""Op graphs of hand-made execution traces and profiles, every answer checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from counting import calls_of
from opgraph_nodes import Et, op, profile, tensor

from perfmodel.errors import TraceError
from perfmodel.ops.graph import BACKWARD, FORWARD, INPUT, NO_OP, OPTIMIZER, Tensor
from perfmodel.ops.read import op_graph


def step() -> Et:
    """Copy the batch, mm and relu; its backward on the engine's thread; the update."""
    et = Et()
    x, w, y, z = (tensor(i, 4, 4) for i in (11, 12, 13, 14))
    et.add("aten::copy_", [x, tensor(10, 4, 4, device="cpu")], [x])
    forward = et.label("## forward ##")
    mm = et.add("aten::mm", [x, w], [y], at=forward)
    et.add("aten::resolve_conj", [y], [y], at=mm)
    et.add("aten::relu", [y], [z], at=forward)
    engine = et.engine_thread()
    wrapper = et.add("autograd::engine::evaluate_function: ReluBackward0", at=engine, tid=2)
    node = et.add("ReluBackward0", [z], at=wrapper, tid=2)
    et.add("aten::threshold_backward", [z, y], [tensor(15, 4, 4)], at=node, tid=2)
    et.add("aten::sum", [tensor(15, 4, 4)], [tensor(16, 4)], at=engine, tid=2)
    update = et.label("Optimizer.step#SGD.step")
    et.add("aten::add_", [w, tensor(15, 4, 4)], [w], at=update)
    return et


def test_nodes_become_ops_and_annotations_do_not() -> None:
    graph = step().graph()
    assert [o.name for o in graph.ops] == [
        *("aten::copy_", "aten::mm", "aten::resolve_conj", "aten::relu"),
        "autograd::engine::evaluate_function: ReluBackward0",
        *("ReluBackward0", "aten::threshold_backward", "aten::sum", "aten::add_"),
    ]
    assert [o.parent for o in graph.ops] == [NO_OP, NO_OP, 1, NO_OP, NO_OP, 4, 5, NO_OP, NO_OP]
    assert list(graph.top_level()) == [0, 1, 3, 4, 7, 8]
    assert graph.ops[1].attributes == {"annotation": "## forward ##"}
    assert graph.ops[0].attributes == {}


def test_phases_and_threads() -> None:
    graph = step().graph()
    phases = [INPUT, FORWARD, FORWARD, FORWARD, *[BACKWARD] * 4, OPTIMIZER]
    assert [o.phase for o in graph.ops] == phases
    assert [o.thread for o in graph.ops] == ["main"] * 4 + ["autograd"] * 4 + ["main"]
    assert {o.step for o in graph.ops} == {0}


def test_data_edges_follow_tensors_to_the_innermost_writer() -> None:
    graph = step().graph()
    edges = {(graph.ops[a].name, graph.ops[b].name) for a, b in graph.data.tolist()}
    assert ("aten::copy_", "aten::mm") in edges
    assert ("aten::threshold_backward", "aten::add_") in edges
    assert ("aten::relu", "ReluBackward0") in edges
    assert not any(b == "aten::copy_" for _, b in edges)


def test_arguments_keep_ids_types_lists_and_plain_values() -> None:
    et = Et()
    half = tensor(1, 2, 3)
    listed = ([tensor(3, 2)[0], tensor(4, 5)[0]], [[2], [5]])
    undefined = ([0, 0, 0, 0, 0, ""], [])
    et.add(
        "aten::thing",
        [half, listed, undefined, 7],
        types=[
            "Tensor(c10::BFloat16)",
            "GenericList[Tensor(long int),Tensor(float)]",
            "Tensor(nullptr (uninitialized))",
            "Int",
        ],
    )
    first, tensors, nothing, number = et.graph().ops[0].inputs
    assert first == Tensor((2, 3), "bf16", 1, 1001, "cuda:0")
    assert tensors == (
        Tensor((2,), "int64", 3, 1003, "cuda:0"),
        Tensor((5,), "fp32", 4, 1004, "cuda:0"),
    )
    assert nothing is None
    assert number == 7


def test_old_schemas_have_no_device_and_unknown_types_are_noted() -> None:
    et = Et("1.0.0")
    et.add("aten::relu", [tensor(1, 2, device=None)], types=["Tensor(c10::Strange)"])
    graph = et.graph()
    assert graph.ops[0].inputs[0] == Tensor((2,), "c10::Strange", 1, 1001)
    assert graph.notes == ("1 tensors have the unknown type 'c10::Strange'",)


def test_ops_belong_to_the_step_entered_last() -> None:
    et = Et()
    et.add("aten::relu", [tensor(1, 2)])
    for number in (7, 8):
        at = et.label(f"ProfilerStep#{number}")
        et.add("aten::relu", [tensor(1, 2)], at=at)
    assert [o.step for o in et.graph().ops] == [-1, 0, 1]


def test_an_execution_trace_without_arguments_is_refused() -> None:
    et = Et()
    et.add("aten::relu")
    with pytest.raises(TraceError, match=r"et\.json: none of its 1 ops records arguments"):
        et.graph()


def test_a_profile_nests_by_time_and_reads_concrete_inputs() -> None:
    trace = profile(
        {"name": "ProfilerStep#3", "cat": "user_annotation", "ts": 0, "dur": 100},
        op("aten::linear", 1, 20, dims=[[4, 8], [2, 8], [2]], types=["float", "float", "float"]),
        op("aten::addmm", 3, 9, dims=[[2], [4, 8], [8, 2]], types=["float"] * 3),
        op(
            "aten::sum",
            30,
            5,
            dims=[[4, 2], [], []],
            types=["c10::Half", "ScalarList", "Scalar"],
            values=["", "[0, 1]", "False"],
        ),
        op("aten::cat", 40, 5, dims=[[[4, 2], [4, 3]], []], types=["TensorList", "Scalar"]),
    )
    (graph,) = op_graph(trace)
    assert [o.parent for o in graph.ops] == [NO_OP, 0, NO_OP, NO_OP]
    assert [o.event for o in graph.ops] == [1, 2, 3, 4]
    assert graph.ops[2].inputs == (Tensor((4, 2), "fp16"), (0, 1), False)
    assert graph.ops[3].inputs == ((Tensor((4, 2)), Tensor((4, 3))), None)
    assert not len(graph.data)
    assert "profile alone" in graph.notes[0]


def test_a_profile_without_shapes_says_how_many_lack_them() -> None:
    trace = profile(op("aten::mm", 0, 5), op("aten::relu", 6, 5))
    with pytest.raises(TraceError, match=r"profile\.json: 2 of 2 ops lack shapes"):
        op_graph(trace)


def test_a_recorded_collective_carries_what_is_known_of_it() -> None:
    about = {
        "Collective name": "all_to_allv",
        "Process Group Name": "0",
        "Group size": 2,
        "dtype": "BFloat16",
        "In msg nelems": 6,
        "Out msg nelems": 8,
        "In split size": "[2, 4]",
        "Out split size": "[]",
    }
    trace = profile(op("record_param_comms", 0, 5, dims=[[6]], types=["c10::BFloat16"], **about))
    assert op_graph(trace)[0].ops[0].attributes == {
        "collective": "all_to_all",
        "process_group": "0",
        "group_size": "2",
        "dtype": "bf16",
        "in_elements": "6",
        "out_elements": "8",
        "in_split": "2,4",
    }


def test_both_together_have_ids_of_one_and_events_of_the_other() -> None:
    et = Et()
    x, y = tensor(1, 3), tensor(2, 3)
    first = et.add("aten::relu", [x], [y])
    second = et.add("aten::neg", [y], [tensor(3, 3)])
    trace = profile(
        *(
            op(name, at, 3, **{"Record function id": number})
            for at, name, number in ((0, "aten::relu", first), (5, "aten::neg", second))
        )
    )
    trace.execution_traces.update(et.trace().execution_traces)
    (graph,) = op_graph(trace)
    assert [o.event for o in graph.ops] == [0, 1]
    assert [t.tensor_id for o in graph.ops for t in o.tensors] == [1, 2]
    np.testing.assert_array_equal(graph.data, [[0, 1]])


def test_a_graph_takes_work_in_proportion() -> None:
    def calls(nodes: int) -> int:
        et = Et()
        for i in range(nodes):
            et.add("aten::relu", [tensor(i, 4, 8)], [tensor(i + 1, 4, 8)])
        trace = et.trace()
        return calls_of(lambda: op_graph(trace))

    calls(50)
    assert calls(800) - calls(400) == pytest.approx(2 * (calls(400) - calls(200)), rel=0.05)


def test_the_last_op_before_a_wait_for_the_device_says_so() -> None:
    """The outermost of its thread; what an op waits for is its own, and a stream no device."""
    shape = {"dims": [[4]], "types": ["float"]}

    def call(name: str, ts: float) -> dict[str, object]:
        return {"name": name, "cat": "cuda_runtime", "ts": ts, "dur": 2}

    trace = profile(
        call("cudaDeviceSynchronize", 0),
        op("aten::linear", 10, 20, **shape),
        op("aten::mm", 12, 10, **shape),
        op("aten::relu", 40, 10, **shape),
        op("aten::sum", 42, 2, **shape) | {"tid": 2},
        call("cudaDeviceSynchronize", 55),
        op("aten::tanh", 60, 10, **shape),
        call("cudaDeviceSynchronize", 65),
        call("cudaStreamSynchronize", 75),
        op("aten::add", 80, 10, **shape),
        call("hipDeviceSynchronize", 95),
    )
    (graph,) = op_graph(trace)
    waiting = [o.name for o in graph.ops if o.attributes.get("waits_for") == "device"]
    assert waiting == ["aten::relu", "aten::add"]
