"""What an op graph says of its own making."""

from __future__ import annotations

from collections import Counter


def dtype_notes(unknown: Counter[str]) -> list[str]:
    """One note per type word that is not known."""
    return [
        f"{count} tensors have the unknown type {word!r}" for word, count in sorted(unknown.items())
    ]
