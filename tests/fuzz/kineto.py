"""Damage to Kineto traces that a reader of JSON alone would not see."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from fuzz.damage import Damaged, json_bytes
from fuzz.outcome import VALUE

Events = list[dict[str, Any]]
Document = dict[str, Any]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
BAD_TIMES: tuple[Any, ...] = (None, [], {}, True, "x", [1.0])
BAD_IDS: tuple[Any, ...] = (None, [], {"a": 1}, 1.5, True)
BAD_TEXTS: tuple[Any, ...] = (None, 5, ["a"], {})


def _complete(document: Document, *categories: str) -> Events:
    events = document["traceEvents"]
    return [
        e for e in events if e.get("ph") == "X" and (not categories or e.get("cat") in categories)
    ]


def _wrong_field(document: Document, at: random.Random) -> str | None:
    event = at.choice(_complete(document))
    key, new = at.choice(
        (
            ("ts", at.choice(BAD_TIMES)),
            ("dur", at.choice(BAD_TIMES)),
            ("name", at.choice(BAD_TEXTS)),
            ("cat", at.choice(BAD_TEXTS)),
            ("ph", at.choice((5, [], None, "?"))),
            ("args", at.choice((5, [], "x"))),
            ("pid", at.choice(BAD_IDS)),
            ("tid", at.choice(BAD_IDS)),
        )
    )
    event[key] = new
    return f"{key}: {new!r}"


def _wrong_args(document: Document, at: random.Random) -> str | None:
    read = {
        "correlation": ("kernel", "gpu_memcpy", "cuda_runtime"),
        "stream": DEVICE,
        "device": DEVICE,
        "External id": ("cpu_op",),
        "Ev Idx": ("cpu_op",),
        "Sequence number": ("cpu_op",),
        "Record function id": ("cpu_op",),
        "Collective name": ("cpu_op", "kernel"),
        "Group size": ("cpu_op", "kernel"),
    }
    key = at.choice(sorted(read))
    events = [e for e in _complete(document, *read[key]) if key in (e.get("args") or {})]
    if not events:
        return None
    bad = BAD_TEXTS[1:] if key == "Collective name" else BAD_IDS
    new = at.choice(bad)
    at.choice(events)["args"][key] = new
    return f"args.{key}: {new!r}"


def _wrong_shapes(document: Document, at: random.Random) -> str | None:
    key = at.choice(("Input Dims", "Input type", "grid"))
    events = [e for e in _complete(document) if (e.get("args") or {}).get(key)]
    if not events:
        return None
    new = at.choice((5, {"a": 1}, True, "x y"))
    at.choice(events)["args"][key] = new
    return f"args.{key}: {new!r}"


def _no_field(document: Document, at: random.Random) -> str:
    key = at.choice(("ts", "dur", "ph"))
    del at.choice(_complete(document))[key]
    return f"no {key}"


def _head(document: Document, at: random.Random) -> str:
    choices: list[tuple[str, Any]] = [
        ("deviceProperties", at.choice((5, {}, [5], [{"name": 7}], [{"numSms": "x"}]))),
        ("distributedInfo", at.choice((5, [], {"rank": "x"}, {"world_size": []}))),
        ("baseTimeNanoseconds", at.choice(("x", 2**70, 1.5, []))),
        ("traceEvents", at.choice((5, {}, None, "x"))),
    ]
    key, new = at.choice(choices)
    document[key] = new
    return f"{key}: {new!r}"


def _launched(document: Document) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(launch call of one kernel, its kernel), where both are there."""
    calls = {
        e["args"].get("correlation"): e
        for e in _complete(document, "cuda_runtime", "cuda_driver")
        if "LaunchKernel" in e.get("name", "")
    }
    kernels = _complete(document, "kernel")
    pairs = [(calls.get(e["args"].get("correlation")), e) for e in kernels]
    return [(call, kernel) for call, kernel in pairs if call is not None]


def _two_calls(document: Document, at: random.Random) -> str | None:
    pairs = _launched(document)
    if len(pairs) < 2:
        return None
    (one, _), (other, _) = at.sample(pairs, 2)
    other["args"]["correlation"] = one["args"]["correlation"]
    return "two launch calls of one correlation"


def _two_kernels(document: Document, at: random.Random) -> str | None:
    pairs = _launched(document)
    if len(pairs) < 2:
        return None
    (_, one), (_, other) = at.sample(pairs, 2)
    other["args"]["correlation"] = one["args"]["correlation"]
    return "two kernels of one launch call"


def _dangling(document: Document, at: random.Random) -> str | None:
    pairs = _launched(document)
    if len(pairs) < 4:
        return None
    last = sorted(pairs, key=lambda pair: float(pair[1]["ts"]))
    streams: set[Any] = set()
    later = []
    for pair in last:
        stream = pair[1]["args"].get("stream")
        if stream in streams:
            later.append(pair)
        streams.add(stream)
    if not later:
        return None
    at.choice(later)[1]["args"]["correlation"] = 2**40 + at.randrange(10**6)
    return "a kernel whose launch call is not there"


def _rank(document: Document, at: random.Random) -> str:
    info: dict[str, Any] = {"rank": 0, "world_size": 2}
    info |= at.choice(({"rank": 2}, {"rank": -3}, {"rank": 7, "world_size": 4}, {"world_size": 0}))
    document["distributedInfo"] = info
    return f"distributedInfo: {info}"


def _negative(document: Document, at: random.Random) -> str:
    event = at.choice(_complete(document))
    event["dur"] = -float(event["dur"]) - at.choice((0.001, 1, 1e6))
    return "negative dur"


def _no_number(document: Document, at: random.Random) -> str:
    event, key = at.choice(_complete(document)), at.choice(("ts", "dur"))
    event[key] = at.choice((float("nan"), float("inf"), "1e400", 10**30, -(10**30)))
    return f"{key}: {event[key]!r}"


def _before_launch(document: Document, at: random.Random) -> str | None:
    pairs = _launched(document)
    if not pairs:
        return None
    call, kernel = at.choice(pairs)
    kernel["ts"] = float(call["ts"]) - at.choice((5e3, 1e5, 1e6))
    return "a kernel before its launch call"


def _same_stream(document: Document, at: random.Random) -> str | None:
    kernels = sorted(_complete(document, "kernel"), key=lambda e: float(e["ts"]))
    kernels = [e for e in kernels if float(e["dur"]) >= 1]
    if len(kernels) < 3:
        return None
    number = at.randrange(len(kernels) - 1)
    one = kernels[number]
    later = [e for e in kernels[number + 1 :] if _queue(e) == _queue(one)]
    if not later:
        return None
    one["dur"] = float(later[0]["ts"]) - float(one["ts"]) + float(later[0]["dur"]) + 1000
    return "two kernels at once on one stream"


def _queue(event: dict[str, Any]) -> tuple[Any, Any]:
    return event["args"].get("device"), event["args"].get("stream")


def _crossing(document: Document, at: random.Random) -> str | None:
    ops = [e for e in _complete(document, "cpu_op") if float(e["dur"]) >= 20]
    if len(ops) < 2:
        return None
    by_thread: dict[Any, Events] = {}
    for op in ops:
        by_thread.setdefault((op["pid"], op["tid"]), []).append(op)
    rows = sorted(at.choice(sorted(by_thread.values(), key=len)[-1:]), key=lambda e: float(e["ts"]))
    tops: Events = []
    for op in rows:
        if not tops or float(op["ts"]) >= float(tops[-1]["ts"]) + float(tops[-1]["dur"]):
            tops.append(op)
    if len(tops) < 2:
        return None
    number = at.randrange(len(tops) - 1)
    one, other = tops[number], tops[number + 1]
    one["dur"] = float(other["ts"]) + float(other["dur"]) / 2 - float(one["ts"])
    return "two operators that cross on one thread"


def _steps(document: Document, at: random.Random) -> str | None:
    steps = [e for e in _complete(document) if str(e.get("name")).startswith("ProfilerStep#")]
    steps = sorted((e for e in steps if e.get("cat") != "gpu_user_annotation"), key=_start)
    if len(steps) < 2:
        return None
    one, other = steps[:2]
    one["dur"] = _start(other) + float(other["dur"]) / 2 - _start(one)
    return "two steps at once"


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])


def _new_value(document: Document, at: random.Random) -> str:
    event = at.choice(_complete(document))
    choice = at.randrange(4)
    if choice == 0:
        event["dur"] = round(float(event["dur"]) * at.uniform(0.5, 0.99), 3)
    elif choice == 1:
        event["name"] = at.choice(("<script>alert(1)</script>", "a" * 3000, "\u202e\x1b[2J", ""))
    elif choice == 2:
        document["traceEvents"].remove(event)
    else:
        event["cat"] = "something_new"
    return f"value {choice}"


MUTATIONS: dict[str, tuple[Callable[[Document, random.Random], str | None], ...]] = {
    "type": (_wrong_field, _wrong_args, _wrong_shapes, _no_field, _head),
    "reference": (_two_calls, _two_kernels, _dangling, _rank),
    "invariant": (_negative, _no_number, _before_launch, _same_stream, _crossing, _steps),
    VALUE: (_new_value,),
}


def kineto_damage(content: bytes, at: random.Random) -> Damaged:
    """One mutation of a Kineto trace: of its bytes, or of what it says."""
    damage = at.choice(("syntax", "type", "reference", "invariant", VALUE))
    if damage == "syntax":
        return json_bytes(content, at)
    mutation = at.choice(MUTATIONS[damage])
    document = json.loads(content)
    how = mutation(document, at)
    if how is None:
        return json_bytes(content, at)
    return Damaged(damage, how, json.dumps(document).encode())
