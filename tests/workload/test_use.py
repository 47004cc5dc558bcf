"""Memory of a step whose storages can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import perfmodel
from perfmodel.errors import WorkloadError
from perfmodel.hardware import device
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.workload.memory_tiers import memory_use, require_fit


def _tensor(identity: int, *shape: int, dtype: str = "fp32") -> Tensor:
    return Tensor(shape, dtype, tensor_id=identity, storage_id=identity)


TABLE, INDICES, WEIGHT = _tensor(1, 1000, 16), _tensor(2, 8, 5, dtype="int64"), _tensor(3, 16, 4)
POOLED, HIDDEN, LOSS = _tensor(4, 8, 16), _tensor(5, 8, 4), _tensor(6, 1)
STEP = OpGraph(
    (
        Op("aten::embedding_bag", (TABLE, INDICES), (POOLED,)),
        Op("aten::mm", (POOLED, WEIGHT), (HIDDEN,)),
        Op("aten::sum", (HIDDEN,), (LOSS,)),
    )
)


def test_resident_and_temporary_bytes() -> None:
    use = memory_use(STEP)
    assert use is not None
    assert use.tables_bytes == 1000 * 16 * 4
    assert use.resident_bytes == 8 * 5 * 8 + 16 * 4 * 4
    assert use.temporary_bytes == 8 * 16 * 4 + 8 * 4 * 4
    assert use.peak_op == "aten::mm"


def test_what_the_program_holds_lives_longer_and_takes_slack() -> None:
    """The lookup's result beside the sum; Inductor writes over what a kernel reads last."""
    use = memory_use(replace(STEP, held={POOLED.storage_id: 2}))
    assert use is not None
    assert use.temporary_bytes == 8 * 16 * 4 + 8 * 4 * 4 + 4
    told = use.to_dict(device("v100-sxm2-16gb"))
    assert told["total_bytes"] == use.total_bytes + 0.5e9 == told["driver_bytes"] + use.total_bytes
    slack_bytes = 0.25 * use.temporary_bytes
    assert told["high_bytes"] == pytest.approx(told["total_bytes"] + slack_bytes)
    fused = Op("triton_poi_fused_relu", (HIDDEN,), (_tensor(7, 8, 4),))
    use = memory_use(replace(STEP, ops=(*STEP.ops[:2], fused)))
    assert use is not None
    assert use.temporary_bytes == 8 * 16 * 4 + 8 * 4 * 4


def test_a_view_is_no_second_allocation() -> None:
    view = Tensor((32,), "fp32", tensor_id=7, storage_id=5)
    longer = OpGraph((*STEP.ops, Op("aten::view", (HIDDEN,), (view,))))
    assert memory_use(longer) == memory_use(STEP)


def test_a_graph_without_identities_says_nothing() -> None:
    assert memory_use(OpGraph((Op("aten::mm", (Tensor((2, 2)),)),))) is None


def test_what_does_not_fit_says_by_how_much_and_why() -> None:
    huge = _tensor(1, 10**9, 64)
    use = memory_use(OpGraph((Op("aten::embedding_bag", (huge, INDICES), (POOLED,)),)))
    assert use is not None
    with pytest.raises(WorkloadError, match=r"rank 3 needs 256\.5 GB.*embedding tables, 256\.0"):
        require_fit(use, device("a100-sxm-80gb"), rank=3)


def test_what_fits_passes() -> None:
    use = memory_use(STEP)
    assert use is not None
    require_fit(use, device("v100-sxm2-16gb"))
    assert use.to_dict(device("v100-sxm2-16gb"))["fits"]


def test_a_cpu_holds_every_tensor_and_a_gpu_those_on_it() -> None:
    waiting = Tensor((8, 5), "int64", tensor_id=2, storage_id=2, device="cpu")
    op = Op("aten::embedding_bag", (TABLE, waiting), (POOLED,))
    on_gpu, on_cpu = (memory_use(OpGraph((op,)), in_host_memory=own) for own in (False, True))
    assert on_gpu is not None
    assert on_cpu is not None
    assert on_cpu.resident_bytes - on_gpu.resident_bytes == 8 * 5 * 8


@pytest.mark.parametrize(("optimizer", "per_row"), [("rowwise_adagrad", 4), ("adam", 2 * 4 * 16)])
def test_what_an_optimizer_keeps_of_rows_counts_with_them(optimizer: str, per_row: int) -> None:
    rows, tables_bytes = 33_762_577, []
    for name in ("sgd", optimizer):
        settings = {"implementation.name": "torchrec", "training.table_optimizer": name}
        given = {f"workload.{key}": value for key, value in settings.items()}
        predicted = perfmodel.predict("criteo-kaggle", hardware="h100-sxm", settings=given)
        tables_bytes.append(predicted.results[0].memory["tables_bytes"])
    assert tables_bytes[1] - tables_bytes[0] == pytest.approx(per_row * rows)
