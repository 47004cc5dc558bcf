"""Events that are missing, there twice, in another order, or cut off."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

from mutants.parts import (
    CALLS,
    DEVICE,
    HOST,
    ON_DEVICE,
    OPS,
    Event,
    Events,
    Mutation,
    complete,
    correlation,
    end_us,
    is_step,
    kind,
    share,
    some,
    span_us,
    start_us,
    timed,
    without,
)


def _missing(categories: Sequence[str]) -> Mutation:
    def mutation(events: Events, at: random.Random) -> Events | None:
        gone = some(complete(events, categories), at, at.choice((0.0, 0.01, 0.1, 0.5, 1.0)))
        return without(events, gone) if gone else None

    return mutation


kind("any events missing")(_missing(()))
kind("operators missing")(_missing(OPS))
kind("calls missing")(_missing(CALLS))
kind("device operations missing")(_missing(DEVICE))


@kind("launches and their kernels missing")
def _pairs(events: Events, at: random.Random) -> Events | None:
    chosen = {correlation(e) for e in some(complete(events, DEVICE), at, share(at))} - {0}
    gone = [e for e in complete(events, (*CALLS, *DEVICE)) if correlation(e) in chosen]
    return without(events, gone) if gone else None


@kind("a hole in time")
def _hole(events: Events, at: random.Random) -> Events | None:
    """Nothing that begins within a tenth to a half of the time was recorded, of host or device."""
    first_us, last_us = span_us(events)
    length_us = (last_us - first_us) * at.choice((0.05, 0.1, 0.5))
    from_us = at.uniform(first_us, last_us - length_us)
    among = complete(events, at.choice((HOST, ON_DEVICE, (*HOST, *ON_DEVICE))))
    gone = [e for e in among if from_us <= start_us(e) < from_us + length_us and not is_step(e)]
    return without(events, gone) if gone else None


@kind("steps missing")
def _steps(events: Events, at: random.Random) -> Events | None:
    steps = [event for event in complete(events) if is_step(event)]
    return without(events, some(steps, at, at.choice((0.0, 0.5, 1.0)))) if steps else None


@kind("recorded twice")
def _twice(events: Events, at: random.Random) -> Events | None:
    chosen = some(complete(events), at, at.choice((0.0, 0.01, 0.1, 1.0)))
    return [*events, *copy.deepcopy(chosen)]


@kind("a second recording behind")
def _appended(events: Events, at: random.Random) -> Events | None:
    """All events once more, later: two files written into one."""
    first_us, last_us = span_us(events)
    later = copy.deepcopy(complete(events))
    for event in later:
        event["ts"] = start_us(event) + last_us - first_us + 1000
    return [*events, *later]


@kind("order in the file")
def _order(events: Events, at: random.Random) -> Events | None:
    """Shuffled or reversed: no reader may depend on it."""
    moved = events[::-1]
    if at.random() < 0.5:
        at.shuffle(moved)
    return moved


@kind("times of two events exchanged")
def _exchanged(events: Events, at: random.Random) -> Events | None:
    """Neighbours of one category and track."""
    by_track: dict[tuple[object, ...], Events] = {}
    for event in complete(events):
        by_track.setdefault((event["cat"], event["pid"], event["tid"]), []).append(event)
    tracks = [track for _, track in sorted(by_track.items(), key=str) if len(track) > 1]
    if not tracks:
        return None
    track = sorted(at.choice(tracks), key=start_us)
    number = at.randrange(len(track) - 1)
    one, other = track[number : number + 2]
    one["ts"], other["ts"] = other["ts"], one["ts"]
    return events


@kind("the end cut off")
def _end(events: Events, at: random.Random) -> Events | None:
    """By time of start, by time of end, or as the events stand in the file."""
    keep, how = at.choice((0.5, 0.8, 0.95)), at.choice(("start", "end", "file"))
    if how == "file":
        return events[: round(keep * len(events))]
    first_us, last_us = span_us(events)
    until_us = first_us + keep * (last_us - first_us)
    gone = [e for e in timed(complete(events)) if _time(e, how) > until_us]
    return without(events, gone) if gone else None


@kind("the beginning cut off")
def _beginning(events: Events, at: random.Random) -> Events | None:
    cut = at.choice((0.05, 0.2, 0.5))
    first_us, last_us = span_us(events)
    from_us = first_us + cut * (last_us - first_us)
    gone = [event for event in complete(events) if start_us(event) < from_us]
    return without(events, gone) if gone else None


def _time(event: Event, how: str) -> float:
    return end_us(event) if how == "end" else start_us(event)
