"""What if collectives sent a narrower type: parsing, matching, and TorchRec's own experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import COMMS, NCCL, Tiny

from perfmodel.errors import UsageError
from perfmodel.graph import build_graph
from perfmodel.hardware import cluster
from perfmodel.prediction import Result, predict
from perfmodel.prediction.explain.node import call_stack
from perfmodel.prediction.payload_codec import Codec, with_codecs
from perfmodel.trace import read

ELEMENTS = 1 << 26


def _tiny() -> Tiny:
    t = Tiny()
    t.step(1, 0, 9000)
    t.op("aten::mm", 0, 10)
    t.launch(2, 4, kernel=(10, 50), name="make")
    t.note("## forward ##", 11, 30)
    t.op("exchange", 12, 28)
    t.call("cudaStreamWaitEvent", 13, 14)
    t.launch(15, 17, kernel=(52, 4052), name=NCCL, stream=COMMS)
    t.op("aten::mm", 30, 50)
    t.call("cudaStreamWaitEvent", 31, 32)
    t.launch(33, 35, kernel=(4055, 4095), name="read")
    return t


def _read(result: Result) -> int:
    return result.timeline.graph.labels.index("read")


def test_the_transfer_halves_and_codecs_cost_kernels() -> None:
    trace = _tiny().trace()
    codec = f"forward.*exchange=fp16,elements={ELEMENTS}"
    plain, narrow = (predict(trace, codec=some).results[0] for some in ((), (codec,)))
    saved = plain.rank.comm_us - narrow.rank.comm_us
    assert saved == pytest.approx(2000, rel=0.05)
    added = narrow.rank.kernel_sum_us - narrow.rank.comm_us - 80
    assert 500 < added < 4000
    starts = [result.timeline.start_us[_read(result)] for result in (plain, narrow)]
    assert starts[1] == pytest.approx(starts[0] - saved + added, abs=20)
    assert narrow.rank.measured is None


def test_the_size_of_the_payload_is_the_recorded_one_where_it_is() -> None:
    tiny = _tiny()
    about = {"Collective name": "all_to_all", "In msg nelems": ELEMENTS}
    tiny.op("record_param_comms", 14, 20, **about)
    told = predict(tiny.trace(), codec=["exchange=fp16"]).results[0]
    given = predict(_tiny().trace(), codec=[f"exchange=fp16,elements={ELEMENTS}"]).results[0]
    assert told.rank.kernel_sum_us == pytest.approx(given.rank.kernel_sum_us)


def test_the_stack_names_annotations_and_operators_from_the_outside() -> None:
    rank, _ = _tiny().linked()
    launch = next(r for r in range(len(rank)) if rank.start_us[r] == 15)
    assert call_stack(rank, launch) == "ProfilerStep#1 / ## forward ## / exchange"


@pytest.mark.parametrize(
    "text", ["exchange", "exchange=fp12", "=fp16", "x=fp16,elements=0", "x=fp16,elements=many"]
)
def test_what_is_no_codec_says_what_was_expected(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected REGEX=DTYPE\[,elements=N\], DTYPE one of fp16"):
        Codec.parse(text)


def test_what_cannot_be_is_one_line() -> None:
    trace = _tiny().trace()
    with pytest.raises(UsageError, match="not a regular expression"):
        Codec.parse("(=fp16")
    with pytest.raises(UsageError, match="matches no collective"):
        predict(trace, codec=["backward=fp16,elements=8"])
    with pytest.raises(UsageError, match="say ,elements=N"):
        predict(trace, codec=["exchange=fp16"])
    with pytest.raises(UsageError, match="codec is for mode replay"):
        predict(trace, codec=["exchange=fp16"], hardware=["a100-sxm-80gb"])


def test_torchrecs_codecs(reference: Path) -> None:
    """From the set without codecs: their kernels as the set with codecs measured them."""
    folder = reference / "traces" / "torchrec_v100x4"
    plain = read(folder / "sst_long_a2a_optimizer_3_29220")
    graph = build_graph(plain)
    size = f"elements={4096 * 4 * 16 * 1024}"
    codecs = [
        Codec.parse(f"{what},{size}")
        for what in ("running sparse arch.*_AlltoAllSingle=fp16", "_AlltoAllSingleBackward=bf16")
    ]
    machine = cluster("v100-sxm2-16gb")
    edited, taken, _ = with_codecs(plain, graph, graph.nodes_.duration_us, codecs, machine)
    ranks, exchanges = 4, 3
    added_us = taken[len(graph) :].sum() / ranks / exchanges
    assert added_us == pytest.approx(19_100, rel=0.25)
    assert len(edited) - len(graph) == ranks * exchanges * 9
    shrunk = taken[: len(graph)] < graph.nodes_.duration_us
    ratio = taken[: len(graph)][shrunk] / graph.nodes_.duration_us[shrunk]
    np.testing.assert_allclose(ratio, 0.5, atol=0.05)


@pytest.mark.parametrize("name", ["dlrm_v100x8", "torchrec_v100x4/sst_long_a2a_optimizer_3_29220"])
def test_codecs_of_collectives_that_share_a_producer_follow_one_another(
    reference: Path, name: str
) -> None:
    """`schedule` refuses what would run at the same time on one stream."""
    found = predict(read(reference / "traces" / name), codec=[".=bf16,elements=100000"])
    for result in found.results:
        assert result.baseline is not None
        assert result.step_us < 1.1 * result.baseline.step_us
