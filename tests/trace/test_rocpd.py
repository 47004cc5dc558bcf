"""rocpd of rocprofv3: a training loop in tables as rocprofiler-sdk's public schema 3 has them. No
file of the tool itself was at hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfmodel import breakdown, read
from perfmodel.errors import TraceError
from perfmodel.trace.categories import Category
from perfmodel.trace.sqlite import decode_sqlite

RUN = "_0001b2_5a1c_7e3f"
"""What the names of a run's tables end in."""
PID, THREAD = 4711, 4712
GPU = 4
"""Its id among the agents, behind those of the sockets."""
STRINGS = (
    *("hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize", "roctxThreadRangeA"),
    *("MEMORY_COPY_HOST_TO_DEVICE", "HIP_RUNTIME_API", "MARKER_CORE_RANGE_API"),
    *("KERNEL_DISPATCH", "MEMORY_COPY", "HSA_CORE_API", "hsa_queue_create", ""),
)
CATEGORIES = (
    *("HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "KERNEL_DISPATCH", "MEMORY_COPY"),
    "HSA_CORE_API",
)
INFO = f"""
CREATE TABLE rocpd_metadata{RUN} (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string{RUN} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_thread{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER,
  pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name TEXT, extdata JSONB DEFAULT "{{}}");
CREATE TABLE rocpd_info_agent{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
  type TEXT, absolute_index INTEGER, logical_index INTEGER, type_index INTEGER, uuid INTEGER,
  name TEXT, generic_name TEXT, model_name TEXT, vendor_name TEXT, product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER,
  pid INTEGER, code_object_id INTEGER, kernel_name TEXT, display_name TEXT);
INSERT INTO rocpd_info_thread{RUN} (id, nid, pid, tid) VALUES ({THREAD}, 1, {PID}, {THREAD});
INSERT INTO rocpd_info_agent{RUN} (id, type, type_index, name, product_name) VALUES
  (0, 'CPU', 0, 'AMD EPYC 9654', ''), ({GPU}, 'GPU', 0, 'gfx942', 'AMD Instinct MI300X');
INSERT INTO rocpd_info_kernel_symbol{RUN} (id, kernel_name, display_name) VALUES
  (12, 'Cijk_Ailk_Bljk_SB_MT64x64.kd', 'Cijk_Ailk_Bljk_SB_MT64x64'),
  (13, '_Z3addPf.kd', 'add(float*)');
"""
SIZES = ", ".join(f"{what}_size_{axis} INTEGER" for what in ("workgroup", "grid") for axis in "xyz")
TABLES = f"""
CREATE TABLE rocpd_event{RUN} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER,
  stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, call_stack JSONB,
  line_info JSONB, extdata JSONB DEFAULT "{{}}");
CREATE TABLE rocpd_track{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
  tid INTEGER, name_id INTEGER, extdata JSONB);
CREATE TABLE rocpd_region{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
  tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER,
  extdata JSONB DEFAULT "{{}}");
CREATE TABLE rocpd_kernel_dispatch{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER,
  pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER,
  queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT, {SIZES}, event_id INTEGER);
CREATE TABLE rocpd_memory_copy{RUN} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
  tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER,
  dst_address INTEGER, src_agent_id INTEGER, src_address INTEGER, size INTEGER, queue_id INTEGER,
  stream_id INTEGER, event_id INTEGER);
CREATE VIEW rocpd_region AS SELECT * FROM rocpd_region{RUN};
"""


class Writer:
    """Rows of the tables."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.executescript(INFO + TABLES)
        self._insert("metadata", tag="schema_version", value="3")
        self._names = {text: self._insert("string", string=text) for text in STRINGS}
        self._groups = [self._names[name] for name in CATEGORIES]

    def _insert(self, table: str, **values: object) -> int:
        marks = ", ".join("?" * len(values))
        columns = ", ".join(values)
        query = f"INSERT INTO rocpd_{table}{RUN} ({columns}) VALUES ({marks})"
        row = self._db.execute(query, [*values.values()]).lastrowid
        assert row is not None
        return row

    def _event(self, group: int, stack: int, message: str = "") -> int:
        extdata = f'{{"message":"{message}"}}' if message else "{}"
        ids = {"stack_id": stack, "parent_stack_id": stack, "correlation_id": 0}
        return self._insert("event", category_id=self._groups[group], extdata=extdata, **ids)

    def _timed(self, start: int, end: int, **place: int | None) -> dict[str, object]:
        return {"start": start, "end": end, **place, "nid": 1, "pid": PID, "tid": THREAD}

    def region(
        self, group: int, name: str, start: int, end: int, stack: int, text: str = ""
    ) -> None:
        event = self._event(group, stack, text)
        self._insert("region", name_id=self._names[name], event_id=event, **self._timed(start, end))

    def kernel(self, kernel: int, start: int, end: int, stack: int) -> None:
        work = {"workgroup_size_x": 256, "workgroup_size_y": 1, "workgroup_size_z": 1}
        work |= {"grid_size_x": 2560, "grid_size_y": 2, "grid_size_z": 1}
        timed = self._timed(start, end, agent_id=GPU, queue_id=1, stream_id=3)
        ids = {"kernel_id": kernel, "dispatch_id": stack, "event_id": self._event(2, stack)}
        self._insert("kernel_dispatch", **ids, **work, **timed)

    def copy(self, start: int, end: int, stack: int, size: int) -> None:
        timed = self._timed(start, end, stream_id=3)
        ends = {"dst_agent_id": GPU, "src_agent_id": 0, "size": size}
        name = self._names["MEMORY_COPY_HOST_TO_DEVICE"]
        self._insert("memory_copy", name_id=name, event_id=self._event(3, stack), **ends, **timed)

    def change(self, script: str) -> None:
        self._db.executescript(script)

    def content(self) -> bytes:
        self._db.commit()
        with closing(self._db):
            return self._db.serialize()


def loop(steps: int = 3) -> Writer:
    """Steps of 1000 us: a copy of 50, and two kernels of 300 and 100."""
    made, us = Writer(), 1000
    made.region(4, "hsa_queue_create", 10, 20, 1)
    for number in range(steps):
        begin, stack = (1_000_000 + 1000 * number) * us, 10 * number + 2
        made.region(1, "roctxThreadRangeA", begin, begin + 990 * us, stack, f"step {number}")
        text = "aten::mm, seq = 5, sizes = [[64, 8], [8, 2]]"
        made.region(1, "roctxThreadRangeA", begin + 80 * us, begin + 120 * us, stack + 1, text)
        made.region(0, "hipMemcpyAsync", begin + 10 * us, begin + 20 * us, stack + 2)
        made.copy(begin + 30 * us, begin + 80 * us, stack + 2, 4096)
        for nth, (kernel, at, took) in enumerate(((12, 120, 300), (13, 430, 100))):
            call = begin + (90 + 50 * nth) * us
            made.region(0, "hipLaunchKernel", call, call + 10 * us, stack + 3 + nth)
            made.kernel(kernel, begin + at * us, begin + (at + took) * us, stack + 3 + nth)
        made.region(0, "hipDeviceSynchronize", begin + 200 * us, begin + 540 * us, stack + 6)
    return made


def test_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "1234_results.db"
    path.write_bytes(loop().content())
    trace = read(path)
    (rank,) = trace.ranks
    assert (trace.device, trace.warnings) == ("AMD Instinct MI300X", [])
    assert [rank.text(row) for row in rank.of(Category.CPU_OP)] == ["aten::mm"] * 3
    assert len(rank.of(Category.RUNTIME)) == 4 * 3
    found = breakdown(trace)
    (summary,) = found.to_dict()["summary"]
    assert summary["step_us"] == pytest.approx(1000, rel=0.02)
    assert summary["gpu_active_us"] == 450
    kernels = {row["name"]: row["device_us"] for row in found.rows("top_kernels")}
    assert kernels["Cijk_Ailk_Bljk_SB_MT64x64"] == 300
    (operator,) = found.rows("top_operators")
    assert (operator["name"], operator["device_us"]) == ("aten::mm", 300)
    assert found.gaps[0].what.startswith("this is a rocpd database of rocprofv3")


def test_a_later_schema_is_one_line() -> None:
    made = loop()
    made.change(f"ALTER TABLE rocpd_region{RUN} RENAME COLUMN start TO start_id")
    with pytest.raises(TraceError, match=r"x: rocpd_region.* has no column start"):
        decode_sqlite(made.content(), "x")
