"""Collectives by process group: sizes and bandwidths by hand, as nccl-tests has them."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import COMMS, MAIN, NCCL, Tiny

from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.rates import collective_sums
from perfmodel.prediction.breakdown.tables import collective_rows


def rows_of(t: Tiny) -> list[dict[str, Any]]:
    rank, links = t.linked()
    return collective_rows(collective_sums(Hotspots(rank, links, tuple(range(len(links.steps))))))


def said(name: str, elements: int, out: int, group: str = "0", ranks: int = 4) -> dict[str, Any]:
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": out,
        "Group size": ranks,
        "dtype": "Float",
        "Process Group Name": group,
    }


def send(t: Tiny, at: float, us: float, name: str, about: dict[str, Any] | None = None) -> None:
    """A collective within its `record_param_comms`, which says what is sent."""
    if about:
        t.op("record_param_comms", at, at + 10, MAIN, **about)
    t.launch(at + 2, at + 4, (at + 5, at + 5 + us), name=name, stream=COMMS)


@pytest.mark.parametrize(
    ("about", "name", "size", "turns"),
    [
        (said("allreduce", 1_000_000, 1_000_000), "all_reduce", 4e6, 2 * 3 / 4),
        (said("_allgather_base", 250_000, 1_000_000), "all_gather", 4e6, 3 / 4),
        (said("_reduce_scatter_base", 1_000_000, 250_000), "reduce_scatter", 4e6, 3 / 4),
        (said("all_to_allv", 1_000_000, 1_000_000), "all_to_all", 4e6, 3 / 4),
        (said("broadcast", 1_000_000, 1_000_000), "broadcast", 4e6, 1),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(
    about: dict[str, Any], name: str, size: float, turns: float
) -> None:
    t = Tiny()
    t.step(0, 0, 200)
    send(t, 10, 50, NCCL, about)
    (row,) = rows_of(t)
    assert (row["collective"], row["process_group"], row["group_size"]) == (name, "0", 4)
    assert (row["count"], row["size_bytes"], row["time_us"]) == (1, size, 50)
    assert row["algbw_gb_per_s"] == pytest.approx(size / 50e-6 / 1e9)
    assert row["busbw_gb_per_s"] == pytest.approx(size / 50e-6 / 1e9 * turns)


def test_groups_stand_apart_and_rows_are_per_step() -> None:
    t = Tiny()
    for number in range(2):
        at = 300 * number
        t.step(number, at, at + 300)
        send(t, at + 10, 50, NCCL, said("allreduce", 100, 100, group="dp"))
        send(t, at + 80, 20, NCCL, said("allreduce", 100, 100, group="tp", ranks=2))
        send(t, at + 120, 20, NCCL, said("allreduce", 200, 200, group="tp", ranks=2))
    first, second = rows_of(t)
    assert (first["process_group"], first["count"], first["time_us"]) == ("dp", 1, 50)
    assert (second["process_group"], second["count"], second["time_us"]) == ("tp", 2, 40)
    assert (second["group_size"], second["size_bytes"]) == (2, 1200)


def test_kernels_of_one_call_share_its_bytes() -> None:
    t = Tiny()
    t.step(0, 0, 200)
    t.op("record_param_comms", 10, 30, MAIN, **said("all_to_all", 1000, 1000))
    t.launch(12, 14, (20, 40), name="ncclDevKernel_SendRecv()", stream=COMMS)
    t.launch(16, 18, (40, 60), name="ncclDevKernel_SendRecv()", stream=COMMS)
    (row,) = rows_of(t)
    assert (row["count"], row["size_bytes"]) == (2, 4000)
    assert row["algbw_gb_per_s"] == pytest.approx(4000 / 40e-6 / 1e9)


def test_without_sizes_there_is_no_bandwidth() -> None:
    t = Tiny()
    t.step(0, 0, 400)
    send(t, 10, 50, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    send(t, 100, 30, "void deep_ep::internode_ll::dispatch<true, 7168>(void*, float*)")
    send(t, 200, 20, NCCL, {"Collective name": "allreduce", "Process Group Name": "3"})
    send(t, 300, 10, NCCL, said("allreduce", 100, 100, group="4", ranks=0))
    *rows, odd = rows_of(t)
    assert (odd["group_size"], odd["size_bytes"], odd["busbw_gb_per_s"]) == (None, 400, None)
    names = [(row["collective"], row["process_group"], row["group_size"]) for row in rows]
    assert names == [("send_recv", None, None), ("dispatch", None, None), ("all_reduce", "3", None)]
    for row in rows:
        assert row["size_bytes"] is row["algbw_gb_per_s"] is row["busbw_gb_per_s"] is None


def test_collectives_of_a_cpu_are_its_annotations() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.note("gloo:all_reduce", 10, 40, thread=3)
    t.note("something", 50, 60)
    (row,) = rows_of(t)
    assert (row["collective"], row["count"], row["time_us"]) == ("all_reduce", 1, 30)


def test_a_trace_without_collectives_has_no_table() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.launch(10, 12, (20, 30))
    assert rows_of(t) == []
