"""Ours: `read` plus `breakdown`, the calls that stand beside the peers' calls, and its JSON.

They break every step down, give every idle microsecond its cause and find the critical path of
every step. As for the peers, what the calls import lazily counts as their work.
"""

from __future__ import annotations

import sys

from benchmarks.drivers.stages import Stages, run


def work(trace: str, stages: Stages, steps: str) -> None:
    """Read, break down, and write the answer to standard output."""
    del steps  # every step, always
    with stages.stage("import"):
        import msgspec

        import perfmodel

        read, breakdown = perfmodel.read, perfmodel.breakdown
    if stages.errors:
        return
    with stages.stage("read"):
        content = read(trace)
    if stages.errors:
        return
    with stages.stage("breakdown"):
        found = breakdown(content)
    if stages.errors:
        return
    with stages.stage("json"):
        sys.stdout.buffer.write(msgspec.json.encode(found.to_dict()))
        sys.stdout.flush()


if __name__ == "__main__":
    run(work, ("perfmodel", "msgspec", "numpy"))
