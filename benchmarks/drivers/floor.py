"""The floor: gunzip the trace and decode its events into typed records, and nothing else.

No reader that keeps the events can be faster in Python by much; what a tool takes beyond this is
its own work. The records hold what linking needs: `ts`, `dur`, `name`, `cat` and three of `args`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.drivers.stages import Stages, run


def file_type() -> Any:
    """The type of a Kineto file of which only the events are kept."""
    import msgspec

    args_type: Any = msgspec.defstruct(
        "Args",
        [
            ("correlation", int | None, None),
            ("external_id", int | str | None, None),
            ("stream", int | str | None, None),
        ],
        rename={"external_id": "External id"},
        gc=False,
    )
    event_type: Any = msgspec.defstruct(
        "Event",
        [
            ("ts", float, 0.0),
            ("dur", float, 0.0),
            ("name", str, ""),
            ("cat", str, ""),
            ("args", args_type | None, None),
        ],
        gc=False,
    )
    return msgspec.defstruct("File", [("traceEvents", list[event_type])])


def work(trace: str, stages: Stages, steps: str) -> None:
    """Gunzip, then decode."""
    del steps
    with stages.stage("import"):
        import gzip

        import msgspec
    if stages.errors:
        return

    file = file_type()
    with stages.stage("gunzip"):
        with open(trace, "rb") as opened:
            raw = opened.read()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    with stages.stage("decode"):
        decoded: Any = msgspec.json.decode(raw, type=file)
        stages.result = {"events": len(decoded.traceEvents), "json_bytes": len(raw)}


if __name__ == "__main__":
    run(work, ("msgspec",))
