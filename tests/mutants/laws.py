"""Could a sound profiler have written these events? What time, streams and numbers demand.

A mutant that breaks none of these laws more often than the undamaged trace is a recording that may
exist: a kernel that took longer, a launch less. Nobody can tell it from the file, and any answer to
it is right. The laws are written from what CUDA streams and PyTorch's profiler promise, in plain
Python, and share nothing with perfmodel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from itertools import chain, pairwise

from mutants.parts import (
    CALLS,
    DEVICE,
    HOST,
    OPS,
    Events,
    arg,
    complete,
    correlation,
    end_us,
    is_step,
    start_us,
)
from mutants.seeds import Event

OVERLAP_US = 30.0
CLOCKS_US = 100.0
"""What clocks of host and device, and neighbours of one stream, differ by in sound files."""


def broken(events: Events) -> Counter[str]:
    """How often each law is broken."""
    recorded = complete(events)
    of_recorded = (law for laws in (_tracks, _launches, _steps) for law in laws(recorded))
    return Counter(chain(of_recorded, _numbers(events, recorded), _span(recorded)))


def broken_more(mutant: Events, original: Counter[str]) -> list[str]:
    """The laws that a mutant breaks more often than the trace that it was made from."""
    return [law for law, count in broken(mutant).items() if count > original[law]]


def _by(events: Events, *keys: str) -> dict[Hashable, Events]:
    """Events by these fields, each group in order of start, longest first."""
    groups: dict[Hashable, Events] = defaultdict(list)
    for event in events:
        groups[tuple(str(event.get(key, arg(event, key))) for key in keys)].append(event)
    for group in groups.values():
        group.sort(key=lambda event: (start_us(event), -float(event["dur"])))
    return groups


def _tracks(events: Events) -> Iterator[str]:
    """What a thread does nests; what a stream does follows one another."""
    for group in _by(complete(events, HOST), "tid").values():
        open_until: list[float] = []
        for event in group:
            while open_until and open_until[-1] <= start_us(event) + 3:
                open_until.pop()
            if open_until and end_us(event) > open_until[-1] + 3:
                yield "events of a thread cross"
            open_until.append(end_us(event))
    for group in _by(complete(events, DEVICE), "device", "stream").values():
        for before, event in pairwise(group):
            together = correlation(before) == correlation(event) != 0
            if end_us(before) > start_us(event) + OVERLAP_US and not together:
                yield "operations of a stream overlap"
    for event in complete(events):
        if not event.get("cat"):
            yield "no category"


def _launches(events: Events) -> Iterator[str]:
    """Operations follow their calls, in their order, and all before a call that waits for them."""
    calls = [e for e in complete(events, CALLS) if correlation(e)]
    work = complete(events, DEVICE)
    call_of = {correlation(event): event for event in calls}
    yield from ["two calls of one number"] * (len(calls) - len(call_of))
    kernels = Counter(correlation(e) for e in work if correlation(e))
    for event in work:
        if not correlation(event) or arg(event, "stream") is None or arg(event, "device") is None:
            yield "an operation without a number, stream or device"
    launches = [e for e in calls if "LaunchKernel" in e["name"]]
    for number in {correlation(event) for event in launches}:
        yield from ["two kernels of one launch"] * (kernels[number] - 1)
    last_us = max((start_us(e) for e in launches if kernels[correlation(e)]), default=-1e300)
    waits = [e for e in complete(events, CALLS) if "DeviceSynchronize" in e["name"]]
    waited_us = max((start_us(event) for event in waits), default=-1e300)
    for event in launches:
        if not kernels[correlation(event)] and start_us(event) < max(last_us, waited_us):
            yield "a launch without its kernel"
    for group in _by(work, "device", "stream").values():
        called = [call_of.get(correlation(event)) for event in group]
        known = [(e, call) for e, call in zip(group, called, strict=True) if call is not None]
        first = next((i for i, call in enumerate(called) if call is not None), len(called))
        yield from ["a kernel without its launch"] * sum(c is None for c in called[first:])
        for event, call in known:
            if start_us(event) < start_us(call) - CLOCKS_US:
                yield "an operation before its launch"
        for (_, before), (_, call) in pairwise(known):
            if before is not call and end_us(call) < start_us(before):
                yield "operations of a stream not in the order of their launches"
    yield from _waits(waits, work, call_of)


def _waits(waits: Events, work: Events, call_of: dict[int, Event]) -> Iterator[str]:
    """Where there is one device, all that was launched before ends before the call returns."""
    if len({arg(event, "device") for event in work}) != 1:
        return
    known = [
        (end_us(call_of[correlation(event)]), end_us(event))
        for event in work
        if correlation(event) in call_of
    ]
    for wait in waits:
        if any(called < start_us(wait) and end > end_us(wait) + CLOCKS_US for called, end in known):
            yield "a call that waits for the device returns before its work ends"


def _numbers(events: Events, recorded: Events) -> Iterator[str]:
    """The profiler numbers what it records on the host: without a gap, once, in order of start."""
    for key in ("Ev Idx", "External id"):
        holders = [e for e in complete(recorded, HOST) if isinstance(arg(e, key), int)]
        if key == "External id":
            holders = [e for e in holders if e["cat"] in OPS]
        values = Counter(int(str(arg(e, key))) for e in holders)
        yield from [f"{key} twice"] * (sum(values.values()) - len(values))
        for group in _by([e for e in holders if e["cat"] in OPS], "tid").values():
            for before, event in pairwise(group):
                later = start_us(event) > start_us(before) + 1
                if later and int(str(arg(event, key))) < int(str(arg(before, key))):
                    yield f"{key} out of order"
    numbered = {int(str(arg(e, "Ev Idx"))) for e in events if isinstance(arg(e, "Ev Idx"), int)}
    if numbered and len(numbered) > max(numbered) / 10:  # others were filtered on purpose
        yield from ["Ev Idx missing"] * (max(numbered) + 1 - len(numbered))


def _steps(events: Events) -> Iterator[str]:
    """One begins where the one before ended."""
    steps = sorted((e for e in complete(events) if is_step(e)), key=start_us)
    for before, event in pairwise(steps):
        numbers = [int(e["name"].split("#")[1].split()[0]) for e in (before, event)]
        if numbers[1] != numbers[0] + 1:
            yield "steps that are not numbered one after another"
        if not -3 <= start_us(event) - end_us(before) <= 1000:
            yield "a gap between two steps, or an overlap"


def _span(recorded: Events) -> Iterator[str]:
    """Nothing takes no time, or ages."""
    if not recorded:
        yield "no events"
        return
    for categories, least_us, most_us in ((CALLS, 0.2, 1e3), (DEVICE, 0.1, 1e6), (HOST, 0.1, 1e4)):
        lengths_us = sorted(float(e["dur"]) for e in complete(recorded, categories))
        middle_us = lengths_us[len(lengths_us) // 2] if lengths_us else 1.0
        if not least_us <= middle_us <= most_us:
            yield f"half of {categories[0]} take below {least_us} or above {most_us} us"
