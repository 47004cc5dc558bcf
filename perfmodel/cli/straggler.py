"""The rank that the others wait for, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from perfmodel.cli.tables import say
from perfmodel.units import human_us


def say_straggler(console: Console, found: Mapping[str, Any] | None) -> None:
    """Who it is, for how long, and why (`Waiting.to_dict()`); nothing where none waits."""
    if not found or not found["held_up_us"]:
        return
    cause = found["cause"]
    say(
        console,
        f"The others wait for rank {found['rank']} most, {human_us(found['held_up_us'])} per step "
        f"together: {cause.replace('_', ' ')}, {human_us(found['late_us'].get(cause, 0.0))} more "
        "than theirs.",
    )
