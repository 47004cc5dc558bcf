"""What a mutation picks from a trace: complete events by category, and their fields as numbers.

Categories are those that PyTorch's profiler writes; nothing here is taken from perfmodel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from mutants.seeds import Event

OPS = ("cpu_op", "Operator")
ANNOTATIONS = ("user_annotation",)
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
ON_DEVICE = (*DEVICE, "gpu_user_annotation")
HOST = (*OPS, *ANNOTATIONS, *CALLS, "python_function")

Events = list[Event]
Mutation = Callable[[Events, random.Random], Events | None]
"""Changes events, in place or as a new list; None where the trace has nothing to change."""
KINDS: dict[str, Mutation] = {}


def kind(name: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation."""

    def register(mutation: Mutation) -> Mutation:
        KINDS[name] = mutation
        return mutation

    return register


def complete(events: Events, categories: Sequence[str] = ()) -> Events:
    """Events with a start and a duration that the profiler recorded, of these categories."""
    return [
        event
        for event in events
        if event.get("ph") == "X"
        and event.get("cat") != "Trace"
        and (not categories or event.get("cat") in categories)
    ]


def some(among: Events, at: random.Random, frac: float) -> Events:
    """This share of them, one at least."""
    return at.sample(among, max(1, round(frac * len(among)))) if among else []


def share(at: random.Random) -> float:
    """How much of a trace a mutation takes: one event (0), 1 %, 10 % or half."""
    return at.choice((0.0, 0.01, 0.1, 0.5))


def without(events: Events, gone: Iterable[Event]) -> Events:
    """All other events, in their order."""
    ids = {id(event) for event in gone}
    return [event for event in events if id(event) not in ids]


def start_us(event: Event) -> float:
    return float(event["ts"])


def end_us(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def arg(event: Event, key: str) -> object:
    """A value of its arguments, or None."""
    return (event.get("args") or {}).get(key)


def correlation(event: Event) -> int:
    """The number that ties an operation to its launch call; 0 where there is none."""
    found = arg(event, "correlation")
    return found if isinstance(found, int) else 0


def is_step(event: Event) -> bool:
    return str(event.get("name")).startswith("ProfilerStep#") and event.get("cat") in HOST


def with_arrows(moved: Events, events: Events) -> Events:
    """`moved` and the ends of the arrows that the profiler drew to them."""
    starts = {(correlation(event), start_us(event)) for event in moved}
    arrows = [
        event
        for event in events
        if event.get("ph") == "f" and (event.get("id"), float(event["ts"])) in starts
    ]
    return [*moved, *arrows]


def timed(events: Events) -> Events:
    """Everything with a time: arrows and instants too."""
    return [event for event in events if "ts" in event]


def span_us(events: Events) -> tuple[float, float]:
    """When the first complete event begins and the last one ends."""
    found = complete(events)
    return min(map(start_us, found)), max(map(end_us, found))
