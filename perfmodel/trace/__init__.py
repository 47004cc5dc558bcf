"""Kineto and execution-trace files to columnar events, and how the two tie together."""

from __future__ import annotations

from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links, link
from perfmodel.trace.read import Trace, read

__all__ = ["Links", "RankTrace", "Trace", "link", "read"]
