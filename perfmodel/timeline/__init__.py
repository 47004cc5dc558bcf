"""The traversal of an execution graph, and where the time of its steps went."""

from __future__ import annotations

from perfmodel.timeline.schedule import Timeline, measured, schedule

__all__ = ["Timeline", "measured", "schedule"]
