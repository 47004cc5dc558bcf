"""Streams of length-delimited messages: a varint length, then that many bytes, repeated."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_VARINT_BYTES = 10
_VARINT, _DELIMITED = 0, 2


class StreamError(ValueError):
    """A length that is broken or reaches beyond the content."""


def varint(content: bytes | memoryview, start: int) -> tuple[int, int]:
    """The unsigned varint at `start`, and where it ends; raises `StreamError`."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if start + index >= len(content):
            raise StreamError(f"the content ends early, at byte {len(content)}")
        byte = content[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise StreamError(f"no length at byte {start}")


def encode_varint(value: int) -> bytes:
    """`value` (at least 0) as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(body: memoryview) -> Iterator[tuple[int, int, memoryview | None]]:
    """(number, wire type, bytes) of each field of a protobuf message; no bytes for a varint.

    Raises `StreamError` for other wire types than varint and length-delimited.
    """
    at = 0
    while at < len(body):
        key, at = varint(body, at)
        size, at = varint(body, at)
        if key & 7 == _VARINT:
            yield key >> 3, _VARINT, None
        elif key & 7 == _DELIMITED and size <= len(body) - at:
            yield key >> 3, _DELIMITED, body[at : at + size]
            at += size
        else:
            raise StreamError(f"no field at byte {at}")


def delimited(content: bytes) -> Iterator[tuple[int, memoryview]]:
    """(first byte, body) of each message; raises `StreamError` before reading beyond the end."""
    view = memoryview(content)
    at = 0
    while at < len(view):
        size, start = varint(view, at)
        if size > len(view) - start:
            raise StreamError(
                f"the message at byte {start} says {size} bytes, {len(view) - start} are left: "
                "the file was cut or is no Chakra trace"
            )
        yield start, view[start : start + size]
        at = start + size
