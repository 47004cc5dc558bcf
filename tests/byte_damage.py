"""Damage of bytes for hypothesis tests of readers, and what a reader may say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from perfmodel.errors import TraceError

MAX_DAMAGES = 4
MAX_REMOVED = 30


def damaged(data: st.DataObject, sound: bytes, inserts: Sequence[bytes] = ()) -> bytes:
    """`sound` with one to four damages; `inserts` are put in at some of them."""
    content = bytearray(sound)
    kinds = ["flip", "bit", "cut", "remove", *(["insert"] if inserts else [])]
    for _ in range(data.draw(st.integers(1, MAX_DAMAGES))):
        if not content:
            break
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(kinds))
        if kind == "flip":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "bit":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "insert":
            content[at:at] = data.draw(st.sampled_from(inserts))
        elif kind == "remove":
            del content[at : at + data.draw(st.integers(1, MAX_REMOVED))]
        else:
            del content[at:]
    return bytes(content)


def reads_or_says_in_one_line(read: Callable[[], object], where: str) -> None:
    """`read` works, or raises a `TraceError` of one line that begins with `where`."""
    try:
        read()
    except TraceError as error:
        message = str(error)
        assert message.startswith(f"{where}: ")
        assert "\n" not in message
