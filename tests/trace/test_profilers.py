"""Profiles of other tools in SQLite: tables by hand, round trips, and what is refused.

The tables are made from the public schemas; no file of the tools themselves was at hand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_damage import damaged, reads_or_says_in_one_line
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight_writer import nsight_sqlite

from perfmodel import breakdown, read
from perfmodel.errors import TraceError
from perfmodel.trace.categories import Category
from perfmodel.trace.sqlite import decode_nsight, decode_sqlite

NSIGHT = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'void gemm<float>(float*)'),
  (3, 'cudaStreamWaitEvent_v3020'), (4, 'cudaMemcpyAsync_ptsz_v7000'), (5, 'layer'), (6, 'gemm');
CREATE TABLE TARGET_INFO_GPU (vmId INT, id INT, name TEXT, totalMemory INT, smCount INT);
INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100', 80000000000, 132);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES
  (2000, 7000, 0, 281475312254982, 11, 1, 0, NULL),
  (8000, 9000, 0, 281475312254982, 12, 3, 0, NULL),
  (9500, 9900, 0, 281475312254982, 13, 4, 0, NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INT, gridY INT, gridZ INT);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (12000, 20000, 0, 7, 11, 281475312254976, 2, 6, 32, 2, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES
  (21000, 22000, 0, 8, 13, 281475312254976, 4096, 1, 1, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INT, end INT, deviceId INT, contextId INT,
  streamId INT, correlationId INT, globalPid INT, syncType INT, eventId INT, eventSyncId INT);
INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES
  (8000, 9000, 0, 1, 8, 12, 281475312254976, 2, 3, 77);
CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, eventId INT, eventSyncId INT);
INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 1, 7, 11, 281475312254976, 3, 77);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId) VALUES
  (0, 30000, 59, 'iteration 4', 281475312254982, NULL, 0),
  (500, 29000, 59, NULL, 281475312254982, 5, 0),
  (1000, 9950, 59, 'aten::mm, seq = 5, op_id = 9, sizes = [[64, 8], [8, 2]]', 281475312254982,
   NULL, 0),
  (400, NULL, 34, 'a mark', 281475312254982, NULL, 0);
"""
"""One launch, one copy on another stream that waits for it. `globalTid`: process 20, thread 6."""

ROCPD = """
CREATE TABLE rocpd_string_x (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
INSERT INTO rocpd_string_x VALUES (1, 'g', 'hipLaunchKernel'), (2, 'g', 'HIP_RUNTIME_API'),
  (3, 'g', 'MEMORY_COPY_HOST_TO_DEVICE'), (4, 'g', 'MARKER_CORE_API'), (5, 'g', 'roctxRangePushA'),
  (6, 'g', 'KERNEL_DISPATCH'), (7, 'g', 'HSA_CORE_API'), (8, 'g', 'hsa_signal_store_screlease');
CREATE TABLE rocpd_info_agent_x (id INTEGER PRIMARY KEY, type TEXT, type_index INT, name TEXT,
  product_name TEXT);
INSERT INTO rocpd_info_agent_x VALUES (1, 'CPU', 0, 'cpu', 'EPYC'),
  (2, 'GPU', 3, 'gfx942', 'AMD Instinct MI300X');
CREATE TABLE rocpd_info_thread_x (id INTEGER PRIMARY KEY, tid INT, name TEXT);
INSERT INTO rocpd_info_thread_x VALUES (1, 555, 'python');
CREATE TABLE rocpd_info_kernel_symbol_x (id INTEGER PRIMARY KEY, kernel_name TEXT,
  display_name TEXT);
INSERT INTO rocpd_info_kernel_symbol_x VALUES (1, '_Z4gemm.kd', 'gemm(float*)');
CREATE TABLE rocpd_event_x (id INTEGER PRIMARY KEY, category_id INT, stack_id INT,
  correlation_id INT, extdata TEXT);
INSERT INTO rocpd_event_x VALUES (1, 2, 41, 0, '{}'), (2, 6, 41, 0, '{}'), (3, 2, 42, 0, '{}'),
  (4, 4, 40, 0, '{"message": "aten::mm"}'), (5, 7, 43, 0, '{}');
CREATE TABLE rocpd_region_x (id INTEGER PRIMARY KEY, tid INT, start BIGINT, end BIGINT,
  name_id INT, event_id INT, extdata TEXT);
INSERT INTO rocpd_region_x VALUES (1, 1, 2000, 3000, 1, 1, '{}'), (2, 1, 1000, 9000, 5, 4, '{}'),
  (3, 1, 4000, 5000, 1, 3, '{}'), (4, 1, 2100, 2200, 8, 5, '{}');
CREATE TABLE rocpd_kernel_dispatch_x (id INTEGER PRIMARY KEY, agent_id INT, kernel_id INT,
  queue_id INT, stream_id INT, start BIGINT, end BIGINT, workgroup_size_x INT,
  workgroup_size_y INT, workgroup_size_z INT, grid_size_x INT, grid_size_y INT, grid_size_z INT,
  event_id INT);
INSERT INTO rocpd_kernel_dispatch_x VALUES
  (1, 2, 1, 1, 4, 6000, 9000, 64, 4, 1, 640, 8, 1, 2);
CREATE TABLE rocpd_memory_copy_x (id INTEGER PRIMARY KEY, start BIGINT, end BIGINT, name_id INT,
  dst_agent_id INT, src_agent_id INT, size INT, queue_id INT, stream_id INT, event_id INT);
INSERT INTO rocpd_memory_copy_x VALUES (1, 9500, 9900, 3, 2, 1, 512, 1, 4, 3);
CREATE VIEW rocpd_region AS SELECT * FROM rocpd_region_x;
"""


def database(*scripts: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in scripts:
            connection.executescript(script)
        return connection.serialize()


def test_an_nsight_export_by_hand() -> None:
    (rank,) = decode_nsight(database(NSIGHT), "x")
    assert rank.devices[0].name == "NVIDIA H100"
    assert {rank.text(row) for row in range(len(rank))} == {
        *("iteration 4", "layer", "aten::mm", "cudaLaunchKernel"),
        *("cudaStreamWaitEvent", "Stream Wait Event", "cudaMemcpyAsync"),
        *("void gemm<float>(float*)", "Memcpy HtoD (Pinned -> Device)"),
    }
    (kernel,) = rank.of(Category.KERNEL)
    assert (rank.start_us[kernel], rank.duration_us[kernel]) == (12.0, 8.0)
    assert (rank.stream[kernel], rank.correlation[kernel]) == (7, 11)
    assert rank.strings[int(rank.grid[kernel])] == "[32, 2, 1]"
    (copy,) = rank.of(Category.MEMCPY)
    assert (rank.size_bytes[copy], rank.stream[copy]) == (4096, 8)
    (op,) = rank.of(Category.CPU_OP)
    assert (rank.sequence[op], rank.op_id[op], rank.thread[op]) == (5, 9, 6)
    assert rank.strings[int(rank.input_shapes[op])] == "[[64, 8], [8, 2]]"
    (wait,) = rank.of(Category.CUDA_SYNC)
    assert (rank.sync_stream[wait], rank.sync_source_stream[wait]) == (8, 7)
    assert rank.sync_record_correlation[wait] == 11


def test_a_breakdown_of_it(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(database(NSIGHT))
    summary = breakdown(read(path)).to_dict()["summary"][0]
    assert summary["step_us"] == pytest.approx(30.0)
    assert summary["gpu_active_us"] == pytest.approx(9.0)


def test_processes_with_a_device_are_ranks_in_the_order_of_devices() -> None:
    other = 21 << 24
    more = f"""
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 2000, 1, 7, 5, {19 << 24}, 2, 6, 1, 1, 1);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 20, 0, {other | 3}, 5, 1, 0, NULL);
    """
    ranks = decode_nsight(database(NSIGHT, more), "x")
    assert [(rank.rank, rank.where) for rank in ranks] == [(0, "x:process 20"), (1, "x:process 19")]
    assert [int(rank.device[rank.of(Category.KERNEL)[0]]) for rank in ranks] == [0, 1]


def test_a_rocpd_database_by_hand() -> None:
    (rank,) = decode_sqlite(database(ROCPD), "x")
    assert rank.devices[0].name == "AMD Instinct MI300X"
    (kernel,) = rank.of(Category.KERNEL)
    assert rank.text(kernel) == "gemm(float*)"
    assert (rank.stream[kernel], rank.device[kernel], rank.correlation[kernel]) == (4, 3, 41)
    assert rank.strings[int(rank.grid[kernel])] == "[10, 2, 1]"
    (copy,) = rank.of(Category.MEMCPY)
    assert rank.text(copy) == "Memcpy HtoD (Host -> Device)"
    assert (rank.correlation[copy], rank.device[copy]) == (42, 3)
    (op,) = rank.of(Category.CPU_OP)
    assert (rank.text(op), rank.thread[op]) == ("aten::mm", 555)
    calls = rank.of(Category.RUNTIME)
    assert rank.correlation[calls].tolist() == [41, 42]
    assert len(rank) == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 5", "KERNEL[0]: ends 11995 ns before"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'", "KERNEL[0].start: expected a whole"),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 99", "RUNTIME[0].nameId: no string has"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN start", "MEMCPY has no column start"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: str, text: str) -> None:
    with pytest.raises(TraceError) as error:
        decode_nsight(database(NSIGHT, change), "file.sqlite")
    assert text in str(error.value)
    assert str(error.value).startswith("file.sqlite: ")


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    path.write_bytes(database("CREATE TABLE photos (id INT)"))
    with pytest.raises(TraceError, match=r"neither an export of Nsight.*photos"):
        read(path)
    empty = database("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    with pytest.raises(TraceError, match="no ranges, calls or kernels"):
        decode_nsight(empty, "x")


def test_views_run_nothing() -> None:
    """A view over ranges that never ends is not looked at."""
    endless = """
    DROP TABLE NVTX_EVENTS;
    CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
      SELECT i AS start, i AS end, 59 AS eventType, 0 AS globalTid FROM n;
    """
    (rank,) = decode_nsight(database(NSIGHT, endless), "x")
    assert not len(rank.of(Category.CPU_OP))


@pytest.mark.parametrize(("script", "decode"), [(NSIGHT, decode_nsight), (ROCPD, decode_sqlite)])
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_bytes_give_one_line(
    script: str, decode: Callable[[bytes, str], Any], data: st.DataObject
) -> None:
    content = damaged(data, database(script))
    reads_or_says_in_one_line(lambda: decode(content, "x"), "x")


TRACES = (
    "dlrm_v100x8/kineto_rank0.json.gz",
    "critical_path/a100_event_sync.json.gz",
    pytest.param("inference/h100_timesformer.json.gz", marks=pytest.mark.slow),
    pytest.param("train/mi300x8_resnet_act_checkpoint.json.gz", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_written_as_tables_and_read_back_gives_the_same_times(
    name: str, reference: Path, tmp_path: Path
) -> None:
    """Of steps, the device and its streams, within a microsecond."""
    trace = read(reference / "traces" / name)
    path = tmp_path / "back.sqlite"
    path.write_bytes(nsight_sqlite(trace.ranks))
    before, after = (breakdown(each).to_dict()["summary"] for each in (trace, read(path)))
    for one, other in zip(before, after, strict=True):
        for key in ("step_us", "gpu_active_us"):
            assert other[key] == pytest.approx(one[key], abs=1.0)


def test_two_ranks_read_back_are_two_ranks(tmp_path: Path) -> None:
    trace = read(Path(__file__).parents[2] / "traces" / "cpu_dlrm_2rank")
    path = tmp_path / "both.sqlite"
    path.write_bytes(nsight_sqlite(trace.ranks))
    back = read(path)
    assert [rank.rank for rank in back.ranks] == [0, 1]
    for rank, other in zip(trace.ranks, back.ranks, strict=True):
        assert np.allclose(rank.start_us - rank.start_us.min(), other.start_us, atol=1e-3)
    assert nsight_sqlite(trace.ranks) == nsight_sqlite(trace.ranks)
