"""Values that change: durations, times, numbers that tie events together, names, arguments."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mutants.parts import (
    CALLS,
    DEVICE,
    HOST,
    OPS,
    Event,
    Events,
    Mutation,
    arg,
    complete,
    correlation,
    kind,
    share,
    some,
    start_us,
    with_arrows,
)

FACTORS = (0.0, 0.1, 0.5, 2.0, 10.0, 1e3, 1e6)
MOVES_US = (10.0, 100.0, 1e3, 1e4, 1e6)


def _scaled(categories: Sequence[str]) -> Mutation:
    def mutation(events: Events, at: random.Random) -> Events | None:
        chosen, factor = some(complete(events, categories), at, share(at)), at.choice(FACTORS)
        for event in chosen:
            event["dur"] = round(float(event["dur"]) * factor, 3)
        return events if chosen else None

    return mutation


def _moved(categories: Sequence[str]) -> Mutation:
    def mutation(events: Events, at: random.Random) -> Events | None:
        chosen = some(complete(events, categories), at, share(at))
        by_us = at.choice(MOVES_US)
        for event in chosen:
            shift_us = at.uniform(-by_us, by_us)
            for one in with_arrows([event], events) if len(chosen) < 10 else [event]:
                one["ts"] = round(float(one["ts"]) + shift_us, 3)
        return events if chosen else None

    return mutation


kind("durations of the host")(_scaled(HOST))
kind("durations of the device")(_scaled(DEVICE))
kind("times of the host")(_moved(HOST))
kind("times of the device")(_moved(DEVICE))


def _set(event: Event, key: str, value: object) -> None:
    event["args"] = {**(event.get("args") or {}), key: value}


def _new_values(key: str, categories: Sequence[str]) -> Mutation:
    """A field of the arguments: random, shuffled among the events, or gone."""

    def mutation(events: Events, at: random.Random) -> Events | None:
        holders = [e for e in complete(events, categories) if arg(e, key) is not None]
        chosen = some(holders, at, at.choice((0.0, 0.01, 0.1, 0.5, 1.0)))
        how = at.choice(("random", "shuffled", "gone"))
        if not chosen or (how == "shuffled" and len({str(arg(e, key)) for e in chosen}) < 2):
            return None
        values = [arg(event, key) for event in chosen]
        at.shuffle(values)
        for event, value in zip(chosen, values, strict=True):
            if how == "gone":
                event["args"] = {k: v for k, v in event["args"].items() if k != key}
            else:
                _set(event, key, value if how == "shuffled" else at.randrange(1, 10**6))
        return events

    return mutation


kind("correlations of the device")(_new_values("correlation", DEVICE))
kind("correlations of calls")(_new_values("correlation", CALLS))
kind("streams")(_new_values("stream", DEVICE))
kind("devices")(_new_values("device", DEVICE))
kind("numbers of operators")(_new_values("External id", OPS))
kind("numbers of host events")(_new_values("Ev Idx", HOST))


@kind("correlations off by one")
def _off_by_one(events: Events, at: random.Random) -> Events | None:
    """Each operation of the device gets the launch call of the one before it."""
    work = sorted(complete(events, DEVICE), key=start_us)
    if len({correlation(event) for event in work}) < 3:
        return None
    before = [correlation(event) for event in work]
    for event, value in zip(work[1:], before, strict=False):
        _set(event, "correlation", value)
    return events[:]


@kind("all on one stream")
def _one_stream(events: Events, at: random.Random) -> Events | None:
    work = complete(events, DEVICE)
    if len({arg(event, "stream") for event in work}) < 2:
        return None
    for event in work:
        _set(event, "stream", 7)
    return events


@kind("threads of some events")
def _threads(events: Events, at: random.Random) -> Events | None:
    host = complete(events, HOST)
    threads = sorted({str(event["tid"]): event["tid"] for event in host}.items())
    chosen = some(host, at, share(at))
    for event in chosen:
        event["tid"] = at.choice([at.randrange(10**6), at.choice(threads)[1]])
    return events if chosen else None


@kind("all on one thread")
def _one_thread(events: Events, at: random.Random) -> Events | None:
    host = complete(events, HOST)
    if len({event["tid"] for event in host}) < 2:
        return None
    for event in host:
        event["tid"] = host[0]["tid"]
    return events


@kind("names")
def _names(events: Events, at: random.Random) -> Events | None:
    """Emptied, or those of other events."""
    every = complete(events)
    chosen = some(every, at, share(at))
    names = [at.choice(every)["name"] for _ in chosen]
    is_emptied = at.random() < 0.3
    for event, name in zip(chosen, names, strict=True):
        event["name"] = "" if is_emptied else name
    return events


@kind("categories")
def _categories(events: Events, at: random.Random) -> Events | None:
    """Those of other events, or unknown ones."""
    every = complete(events)
    chosen = some(every, at, share(at))
    is_unknown = at.random() < 0.3
    new = ["something" if is_unknown else at.choice(every)["cat"] for _ in chosen]
    for event, category in zip(chosen, new, strict=True):
        event["cat"] = category
    return events


@kind("arguments gone")
def _no_arguments(events: Events, at: random.Random) -> Events | None:
    chosen = [
        e for e in some(complete(events), at, at.choice((0.01, 0.1, 0.5, 1.0))) if "args" in e
    ]
    for event in chosen:
        del event["args"]
    return events if chosen else None
