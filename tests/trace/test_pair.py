"""Host events of a profile and the nodes of an execution trace, in the three regimes of ids."""

from __future__ import annotations

from tiny import AUTOGRAD, MAIN, EtNode, Tiny, execution_trace

from perfmodel.trace.execution_trace_columns import (
    EXTERNAL_ID,
    ORDINAL,
    RECORD_FUNCTION_ID,
    ExecutionTrace,
    Pairing,
    pair,
)

NAMES = ("aten::empty", "aten::mm", "aten::add_", "aten::sum")
ET = execution_trace(*(EtNode(name, 10 + i) for i, name in enumerate(NAMES)))


def profiled(times: int = 1, key: str | None = None, first: int = 10) -> Tiny:
    """The operators one after the other; `key` numbers them from `first`."""
    t = Tiny()
    t.step(1, 0, 100 * times)
    for i, name in enumerate(NAMES * times):
        ids = {key: first + i} if key else {}
        t.op(name, 10 * i, 10 * i + 5, **{"Ev Idx": i} | ids)
    return t


def told(t: Tiny, trace: ExecutionTrace) -> tuple[Pairing, list[tuple[float, str, int]]]:
    """The pairing, and (start of the event, its name, `rf_id` of its node) of each pair."""
    rank = t.rank_trace()
    found = pair(rank, trace)
    for event, node in zip(found.event, found.node, strict=True):
        assert rank.text(event) == trace.text(node)
    pairs = [
        (float(rank.start_us[e]), rank.text(e), int(trace.rf_id[n]))
        for e, n in zip(found.event, found.node, strict=True)
    ]
    return found, sorted(pairs)


def expected(times: int = 1) -> list[tuple[float, str, int]]:
    return [(10.0 * i, name, 10 + i % len(NAMES)) for i, name in enumerate(NAMES * times)]


def test_record_function_ids() -> None:
    found, pairs = told(profiled(key="Record function id"), ET)
    assert (found.regime, found.matched_frac) == (RECORD_FUNCTION_ID, 1.0)
    assert pairs == expected()


def test_external_ids() -> None:
    found, pairs = told(profiled(key="External id"), ET)
    assert (found.regime, pairs) == (EXTERNAL_ID, expected())


def test_ids_that_agree_by_coincidence_are_not_taken() -> None:
    # Shifted by one: every id but the last is one of the trace's, under another name.
    found, pairs = told(profiled(key="External id", first=11), ET)
    assert (found.regime, pairs) == (ORDINAL, expected())


def test_order_per_thread_where_there_are_no_ids() -> None:
    found, pairs = told(profiled(), ET)
    assert (found.regime, found.matched_frac, pairs) == (ORDINAL, 1.0, expected())


def test_one_iteration_of_nodes_is_every_iteration_of_the_profile() -> None:
    found, pairs = told(profiled(times=3), ET)
    assert (found.regime, found.matched_frac) == (ORDINAL, 1.0)
    assert pairs == expected(times=3)


def test_a_run_of_nodes_within_other_events() -> None:
    t = profiled()
    t.op("aten::zeros", 50, 55, **{"Ev Idx": 4})
    found, pairs = told(t, ET)
    assert (found.matched_frac, pairs) == (0.8, expected())


def test_ties_in_time_are_ordered_by_event_index() -> None:
    t = Tiny()
    for i, name in reversed(list(enumerate(NAMES))):
        t.op(name, 0, 5, **{"Ev Idx": i})
    _, pairs = told(t, ET)
    assert [(name, rf_id) for _, name, rf_id in pairs] == [
        (name, 10 + NAMES.index(name)) for name in sorted(NAMES)
    ]


def test_threads_are_matched_by_their_names_not_their_numbers() -> None:
    t = profiled()
    t.op("MmBackward0", 50, 60, AUTOGRAD)
    t.op("aten::mm", 52, 58, AUTOGRAD)
    trace = execution_trace(
        EtNode("MmBackward0", 20, thread=MAIN),
        EtNode("aten::mm", 21, thread=MAIN),
        *(EtNode(name, 10 + i, thread=AUTOGRAD) for i, name in enumerate(NAMES)),
    )
    found, pairs = told(t, trace)
    assert (found.regime, found.matched_frac) == (ORDINAL, 1.0)
    assert pairs == [*expected(), (50.0, "MmBackward0", 20), (52.0, "aten::mm", 21)]


def test_another_program_matches_nothing() -> None:
    found, _ = told(profiled(), execution_trace(EtNode("aten::conv2d", 10)))
    assert found.matched_frac == 0


def test_steps_are_not_host_events_to_match() -> None:
    found, _ = told(profiled(), ET)
    assert found.events == len(NAMES)


def test_a_profile_without_host_events() -> None:
    t = Tiny()
    t.kernel(0, 10)
    found, pairs = told(t, ET)
    assert (pairs, found.matched_frac) == ([], 0.0)
