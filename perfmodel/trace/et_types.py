"""Where the tensors are in a node's arguments, by the types that PyTorch writes beside them.

A type is `NAME`, `Tensor(DTYPE)`, or `NAME[TYPE,TYPE,...]` for lists and tuples. Schema 1.0.0 has
tensors of five integers, which only the type tells from a list of five integers.
"""

from __future__ import annotations

from typing import TypeAlias

MAX_DEPTH = 16

Shape: TypeAlias = "str | tuple[Shape, ...] | None"
"""A tensor's dtype; the elements of a list or tuple that holds tensors; None without tensors."""

_TENSOR = "Tensor("


class TypeTextError(ValueError):
    """A type that does not follow the grammar."""


def parse_type(text: str) -> Shape:
    """The tensors inside one argument type; raises `TypeTextError`."""
    if _TENSOR not in text:
        return None
    shape, end = _parse(text, 0, 0)
    if end != len(text):
        raise TypeTextError(f"unexpected {text[end : end + 20]!r} in type {text[:60]!r}")
    return shape


def _parse(text: str, start: int, depth: int) -> tuple[Shape, int]:
    if depth > MAX_DEPTH:
        raise TypeTextError(f"type {text[:60]!r} is nested deeper than {MAX_DEPTH}")
    if text.startswith(_TENSOR, start):
        end = _closing(text, start + len(_TENSOR))
        return text[start + len(_TENSOR) : end], end + 1
    end = start
    while end < len(text) and text[end] not in "[],(":
        end += 1
    if end == len(text) or text[end] in "],":
        return None, end
    if text[end] == "(":
        return None, _closing(text, end + 1) + 1
    if text.startswith("]", end + 1):
        return None, end + 2
    elements: list[Shape] = []
    while True:
        element, end = _parse(text, end + 1, depth + 1)
        elements.append(element)
        if end == len(text) or text[end] not in "],":
            raise TypeTextError(f"a ']' is missing in type {text[:60]!r}")
        if text[end] == "]":
            return (tuple(elements) if any(e is not None for e in elements) else None), end + 1


def _closing(text: str, start: int) -> int:
    depth = 1
    for end in range(start, len(text)):
        if text[end] == "(":
            depth += 1
        elif text[end] == ")":
            depth -= 1
            if not depth:
                return end
    raise TypeTextError(f"a ')' is missing in type {text[:60]!r}")
