"""Clocks that are off, drift or jump, and times in another unit or with too few digits."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from mutants.parts import (
    DEVICE,
    HOST,
    ON_DEVICE,
    Event,
    Events,
    Mutation,
    complete,
    kind,
    span_us,
    start_us,
    timed,
    with_arrows,
)

Retimed = Callable[[float], float]


def _device(events: Events) -> Events:
    work = complete(events, ON_DEVICE)
    return with_arrows(work, events) if work else []


def _retime(events: Events, moved: Events, of: Retimed) -> Events | None:
    for event in moved:
        event["ts"] = round(of(start_us(event)), 3)
    return events if moved else None


@kind("device clock off")
def _off(events: Events, at: random.Random) -> Events | None:
    by_us = at.choice((-1, 1)) * at.choice((200.0, 1e3, 1e4, 1e6, 1e9))
    return _retime(events, _device(events), lambda us: us + by_us)


@kind("device clock drifts")
def _drift(events: Events, at: random.Random) -> Events | None:
    rate = 1 + at.choice((-1, 1)) * at.choice((1e-4, 1e-3, 1e-2, 0.1))
    first_us, _ = span_us(events)
    moved = _device(events)
    for event in moved:
        if "dur" in event:
            event["dur"] = round(float(event["dur"]) * rate, 3)
    return _retime(events, moved, lambda us: first_us + (us - first_us) * rate)


@kind("device clock jumps")
def _jump(events: Events, at: random.Random) -> Events | None:
    first_us, last_us = span_us(events)
    when_us = at.uniform(first_us, last_us)
    by_us = at.choice((-1, 1)) * at.choice((500.0, 5e3, 1e6))
    return _retime(events, _device(events), lambda us: us + by_us * (us > when_us))


@kind("clock of one thread off")
def _thread(events: Events, at: random.Random) -> Events | None:
    host = complete(events, HOST)
    thread = at.choice(sorted({str(event["tid"]) for event in host} or {""}))
    moved = [event for event in host if str(event["tid"]) == thread]
    if not moved or len(moved) == len(complete(events)):
        return None
    by_us = at.choice((-1, 1)) * at.choice((200.0, 1e3, 1e5))
    return _retime(events, moved, lambda us: us + by_us)


@kind("everything later")
def _later(events: Events, at: random.Random) -> Events | None:
    """All times by the same amount: no answer may move."""
    by_us = at.choice((1.0, 1e6, 86400e6))
    return _retime(events, timed(events), lambda us: us + by_us)


def _in_unit(pick: Callable[[Events], Events], keys: tuple[str, ...]) -> Mutation:
    def mutation(events: Events, at: random.Random) -> Events | None:
        factor = at.choice((1e3, 1e-3, 1e-6))
        chosen = pick(events)
        for event in chosen:
            for key in keys:
                if key in event:
                    event[key] = float(event[key]) * factor
        return events if chosen else None

    return mutation


def _of_device(events: Events) -> Events:
    return complete(events, DEVICE)


def _of_host(events: Events) -> Events:
    return complete(events, HOST)


kind("all in another unit")(_in_unit(timed, ("ts", "dur")))
kind("durations in another unit")(_in_unit(complete, ("dur",)))
kind("device in another unit")(_in_unit(_of_device, ("ts", "dur")))
kind("device durations in another unit")(_in_unit(_of_device, ("dur",)))
kind("host durations in another unit")(_in_unit(_of_host, ("dur",)))


def _whole_ms(value: float) -> float:
    return value // 1000 * 1000


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _six_digits(value: float) -> float:
    return float(f"{value:g}")


@kind("times with too few digits")
def _digits(events: Events, at: random.Random) -> Events | None:
    """Whole milliseconds, 32-bit numbers, six digits: of times, or of durations too."""
    short: Retimed = at.choice((_whole_ms, _float32, _six_digits))
    keys = at.choice((("ts",), ("ts", "dur")))
    for event in timed(events):
        _shorten(event, keys, short)
    return events


def _shorten(event: Event, keys: tuple[str, ...], short: Retimed) -> None:
    for key in keys:
        if key in event:
            event[key] = short(float(event[key]))
