"""What if collectives sent a narrower type: parsing, matching, and TorchRec's own experiment."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tiny import COMMS, NCCL, Tiny, nodes_named, trace_of

from perfmodel.errors import UsageError
from perfmodel.hardware import cluster
from perfmodel.prediction import Result, predict
from perfmodel.prediction.what_if import Codec, with_codecs
from perfmodel.timeline.graph import build_graph
from perfmodel.trace import Trace, read
from perfmodel.trace.link import rows_around

ELEMENTS = 1 << 26
PASS_US = 4 * ELEMENTS / 1e3 / cluster("v100-sxm2-16gb").node.device.stream_gb_per_s
"""What streaming the fp32 payload once takes, about 0.34 ms."""
CLAMP_AND_ENCODE, ENCODE, DECODE = 2 + 1.5, 1.5, 1.5
"""Bytes read and written, in payloads."""
MASKS = 1.25 + 1.25 + 0.75 + 2.25


def _tiny(rank: int | None = None, begins: float = 52, ends: float = 4052) -> Tiny:
    """A kernel, an exchange of what it made, and a kernel that reads what came."""
    t = Tiny(rank, 2, where=f"rank{rank}.json")
    t.step(1, 0, 9000)
    t.op("aten::mm", 0, 10)
    t.launch(2, 4, kernel=(10, begins - 2), name="make")
    t.note("## forward ##", 11, 30)
    t.op("exchange", 12, 28)
    t.call("cudaStreamWaitEvent", 13, 14)
    t.launch(15, 17, kernel=(begins, ends), name=NCCL, stream=COMMS)
    t.op("aten::mm", 30, 50)
    t.call("cudaStreamWaitEvent", 31, 32)
    t.launch(33, 35, kernel=(ends + 3, ends + 43), name="read")
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
    assert added == pytest.approx((CLAMP_AND_ENCODE + DECODE) * PASS_US, rel=0.05)
    ends = [result.timeline.end_us[_read(result)] for result in (plain, narrow)]
    assert ends[1] == pytest.approx(ends[0] - saved + added, abs=20)
    assert narrow.rank.measured is None


def _changes(trace: Trace, *codecs: str) -> dict[str, list[float]]:
    """By label: passes over the payload that its nodes take longer, or what is left of them."""
    graph = build_graph(trace)
    was_us, found = graph.nodes_.duration_us, defaultdict(list)
    parsed = [Codec.parse(f"{codec},elements={ELEMENTS}") for codec in codecs]
    taken_us, _ = with_codecs(trace, graph, was_us, parsed)
    for node in np.flatnonzero(taken_us != was_us).tolist():
        longer_us = float(taken_us[node] - was_us[node])
        left_frac = float(taken_us[node] / was_us[node])
        found[graph.labels[node]].append(left_frac if left_frac < 1 else longer_us / PASS_US)
    return dict(found)


def _are(found: dict[str, list[float]], expected: dict[str, list[float]]) -> bool:
    return found == {key: pytest.approx(each, rel=0.05) for key, each in expected.items()}


def test_what_made_the_payload_encodes_and_what_reads_it_decodes() -> None:
    halved = {"make": [CLAMP_AND_ENCODE], NCCL: [0.5], "read": [DECODE]}
    assert _are(_changes(_tiny().trace(), "exchange=fp16"), halved)
    assert _are(_changes(_tiny().trace(), "exchange=bf16"), halved | {"make": [ENCODE]})


def test_without_others_the_one_before_encodes_and_the_transfer_decodes() -> None:
    """3900 us become 1950; the first of two also encodes, for itself and for the second."""
    t = Tiny()
    t.step(1, 0, 9000)
    for begin in (10, 4100):
        t.op("exchange", begin, begin + 10)
        t.launch(begin + 3, begin + 5, (begin + 10, begin + 3910), NCCL, COMMS)
    graph = t.graph()
    codec = Codec.parse(f"exchange=bf16,elements={ELEMENTS}")
    taken_us, _ = with_codecs(t.trace(), graph, graph.nodes_.duration_us, [codec])
    wanted_us = [1950 + passes * PASS_US for passes in (2 * ENCODE + DECODE, DECODE)]
    np.testing.assert_allclose(taken_us[nodes_named(graph, NCCL)], wanted_us, rtol=0.05)


def test_who_reads_a_gradient_also_masks_it_where_values_were_clamped() -> None:
    backward = _tiny()
    backward.op("exchangeBackward", 12.5, 20)
    plain = _changes(backward.trace(), "exchangeBackward=bf16")
    assert _are(plain, {"make": [ENCODE], NCCL: [0.5], "read": [DECODE]})
    clamped = _changes(backward.trace(), "exchangeBackward=fp16")
    assert _are(clamped, {"make": [CLAMP_AND_ENCODE], NCCL: [0.5], "read": [DECODE + MASKS]})


def test_where_ranks_meet_each_encodes_before_its_arrival_and_decodes_behind_the_transfer() -> None:
    """The transfer is the shortest of the ranks': 4000 us, of which half is left."""
    ranks = _tiny(0, 52, 5052), _tiny(1, 1052, 5052)
    found = _changes(trace_of(*ranks), "exchange=fp16")
    expected = {"make": [CLAMP_AND_ENCODE], NCCL: [0.5], "read": [DECODE]}
    assert _are(found, {label: each * 2 for label, each in expected.items()})


def test_the_size_of_the_payload_is_the_recorded_one_where_it_is() -> None:
    tiny = _tiny()
    about = {"Collective name": "all_to_all", "In msg nelems": ELEMENTS}
    tiny.op("record_param_comms", 14, 20, **about)
    told = predict(tiny.trace(), codec=["exchange=fp16"]).results[0]
    given = predict(_tiny().trace(), codec=[f"exchange=fp16,elements={ELEMENTS}"]).results[0]
    assert told.rank.kernel_sum_us == pytest.approx(given.rank.kernel_sum_us)


def test_the_stack_is_annotations_and_operators_from_the_outside() -> None:
    rank, _ = _tiny().linked()
    launch = next(r for r in range(len(rank)) if rank.start_us[r] == 15)
    names = [rank.text(row) for row in rows_around(rank, launch).tolist()]
    assert names == ["ProfilerStep#1", "## forward ##", "exchange"]


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
    with pytest.raises(UsageError, match="codec cannot be combined with mode transfer"):
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
    was_us = graph.nodes_.duration_us
    taken_us, _ = with_codecs(plain, graph, was_us, codecs)
    ranks, exchanges = 4, 3
    longer = taken_us > was_us
    added_us = (taken_us - was_us)[longer].sum() / ranks / exchanges
    assert added_us == pytest.approx(19_100, rel=0.25)
    shrunk = taken_us < was_us
    assert shrunk.sum() == 2 * ranks * exchanges
    np.testing.assert_allclose(taken_us[shrunk] / was_us[shrunk], 0.5, atol=0.05)


@pytest.mark.parametrize("name", ["dlrm_v100x8", "torchrec_v100x4/sst_long_a2a_optimizer_3_29220"])
def test_codecs_of_every_collective(reference: Path, name: str) -> None:
    found = predict(read(reference / "traces" / name), codec=[".=bf16,elements=100000"])
    for result in found.results:
        assert result.baseline is not None
        assert result.step_us < 1.1 * result.baseline.step_us
