"""The traversal of an execution graph: start and end of every node, and what decided them."""

from perfmodel.timeline.schedule import Timeline, measured, schedule

__all__ = ["Timeline", "measured", "schedule"]
