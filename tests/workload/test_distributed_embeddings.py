"""NVIDIA's TensorFlow 2 example: tables in columns, equal collectives, what one rank gathers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from perfmodel.graph.ops import OpGraph
from perfmodel.lowering.lower import lower
from perfmodel.validate.published import SOFTWARE
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.parts.one_thread import (
    CALL_US,
    CLUSTER_US,
    SCHEDULE_US,
    UNBATCH_BYTES_PER_US,
)
from perfmodel.workload.planner import memory_balanced
from perfmodel.workload.shards import plan

EXAMPLE = SOFTWARE["TF2 + distributed-embeddings"]


def test_tables_are_dealt_out_there_and_back() -> None:
    """Sixteen tables on four ranks, the largest first: 0 to 3, then 7 down to 4, and so on."""
    held, columns = memory_balanced({number: 100 - number for number in range(16)}, 4)
    assert held == [[0, 8, 7, 15], [1, 9, 6, 14], [2, 10, 5, 13], [3, 11, 4, 12]]
    assert set(columns.values()) == {1}


def test_tables_of_more_than_ten_billion_elements_are_halved() -> None:
    held, columns = memory_balanced({0: 37_000_000_000, 1: 10_000_000_000, 2: 10_000_000_001}, 8)
    assert columns == {0: 4, 1: 1, 2: 2}
    assert sorted(number for own in held for number in own) == [0, 0, 0, 0, 1, 2, 2]


def test_slices_hold_the_whole_model() -> None:
    workload = load_workload("nvidia-dlrm-extra-large")
    slices = [shard for own in plan(workload, 8).shards for shard in own]
    elements = sum(part.rows * part.dim for part in (s.of(workload.tables) for s in slices))
    assert elements == sum(table.rows * table.dim for table in workload.tables)


def test_all_ranks_call_the_same_collectives_and_send_all_rows_once() -> None:
    workload = load_workload("nvidia-dlrm-extra-large")
    graphs = [op_graph(workload, 1024, ranks=8, rank=rank) for rank in range(8)]
    called = [
        [op.attributes for op in graph.ops if op.name == "record_param_comms"] for graph in graphs
    ]
    kinds = [[each["collective"] for each in own] for own in called]
    exchange, sums = "all_to_all", "all_reduce"
    assert all(own == [exchange, sums, sums, exchange, sums] for own in kinds)
    forward = sum(int(own[0]["in_elements"]) for own in called)
    backward = sum(int(own[3]["out_elements"]) for own in called)
    assert forward == backward == 1024 * 26 * 128


def test_one_rank_gathers_every_table_at_once() -> None:
    graph = op_graph(load_workload("nvidia-dlrm-extra-large"), 1024)
    gathers = [op for op in graph.ops if op.name.endswith("forward_unweighted_cuda")]
    assert [op.attributes["tables"] for op in gathers] == ["26"]
    assert not [op for op in graph.ops if op.name == "record_param_comms"]


def _kernels(precision: str, ranks: int) -> Counter[str]:
    """Kernels between products by name, of one rank."""
    software = {"precision": precision, "exchange_precision": precision.replace("tf32", "fp32")}
    workload = load_workload("nvidia-dlrm-extra-large").with_(
        **{f"implementation__{key}": value for key, value in software.items()}
    )
    graph = op_graph(workload, 1024 // ranks, ranks=ranks)
    return Counter(op.name.removeprefix("hugectr::") for op in graph.ops)


def test_short_chains_stay_kernels_of_their_own() -> None:
    """Two of three and four of five layers are hidden: bias and ReLU are two ops, too few."""
    for precision, ranks in (("fp16", 1), ("fp16", 8), ("tf32", 1), ("tf32", 8)):
        found = _kernels(precision, ranks)
        assert (found["bias"], found["relu"], found["bias_relu"]) == (6, 6, 2)


def test_backwards_only_one_rank_in_mixed_precision_has_chains_long_enough() -> None:
    for precision, ranks, apart in (("fp16", 1, 0), ("fp16", 8, 6), ("tf32", 1, 6), ("tf32", 8, 6)):
        found = _kernels(precision, ranks)
        assert found["relu_backward"] == found["bias_backward"] == apart
        assert found["bias_relu_backward"] == 8 - apart


def test_parameters_are_cast_and_gradients_scaled_one_by_one() -> None:
    """Eight weights and eight biases; of one rank, hidden biases' gradients lie in clusters."""
    assert _kernels("fp16", 8)["cast_weight"] == _kernels("fp16", 8)["unscale"] == 16
    assert _kernels("fp16", 1)["unscale"] == 8
    assert not _kernels("tf32", 8)["unscale"]


def test_the_host_waits_for_horovod_before_each_exchange() -> None:
    waits = [op.attributes["wait_us"] for op in _graph().ops if op.name == "tier::pause"]
    assert waits == ["125.0", "2.0", "125.0", "2.0"]
    assert not _kernels("fp16", 1)["tier::pause"]


def test_the_host_calls_once_and_each_cluster_and_the_dataset_has_a_thread_of_its_own() -> None:
    work = [op.attributes for op in _graph().ops if op.name == "tier::one_thread"]
    blocking = [float(each["measured_us"]) for each in work if each["blocks"] == "1"]
    assert blocking == [CALL_US, SCHEDULE_US, *7 * [CLUSTER_US]]
    (beside,) = [each for each in work if each["blocks"] == "0"]
    batch_bytes = 128 * (13 * 2 + 1) + 1024 * 4 * 4
    assert beside["stream"] == "dataset"
    assert float(beside["measured_us"]) == pytest.approx(batch_bytes / UNBATCH_BYTES_PER_US)


def test_gradients_of_the_top_are_summed_while_the_backward_pass_goes_on() -> None:
    graph = _graph()
    names = [op.name for op in graph.ops]
    sums = [at for at, op in enumerate(graph.ops) if op.name == "hugectr::packed"]
    of_top, of_bottom = (sum(x.elements for x in graph.ops[at].inputs) for at in sums)
    widths = (480, 1024, 1024, 512, 256, 1)
    assert of_top == sum(a * b + b for a, b in pairwise(widths))
    assert of_bottom == sum(a * b + b for a, b in pairwise((16, 512, 256, 128)))
    assert sums[0] < names.index("hugectr::interaction_backward") < sums[1]
    beside = [op for op in graph.ops if op.name in ("hugectr::packed", "hugectr::unpacked")]
    assert {op.attributes["stream"] for op in beside} == {"comm"}


def test_before_an_exchange_the_host_waits_for_what_it_launched_last() -> None:
    graph = _graph()
    behind = [at for at, op in enumerate(graph.ops) if op.name == "tier::pause" and op.inputs]
    assert len(behind) == 2
    for at in behind:
        made = [op for op in graph.ops[:at] if op.outputs]
        assert graph.ops[at].inputs[0] in made[-1].outputs


def test_the_batch_is_copied_within_the_step_and_the_host_waits_for_its_keys() -> None:
    lowered = lower(_graph(), "cuda")
    copies = [piece for piece in lowered.pieces if piece.op == "copy_h2d"]
    assert [piece.dims["elements"] for piece in copies] == [128 * 13, 128, 1024 * 4]
    assert [piece.dtype for piece in copies] == ["fp16", "int8", "int32"]
    assert [piece.blocks for piece in copies] == [False, False, True]
    assert {piece.dims["pinned"] for piece in copies} == {1.0}
    assert not [op for op in _graph().ops if "pipeline" in op.attributes]


def _graph() -> OpGraph:
    """Of the rank that holds most slices of eight."""
    return op_graph(load_workload("nvidia-dlrm-large").with_(**EXAMPLE), 1024, ranks=8, rank=6)
