"""Short names of kernels and operators, for labels with little room."""

from __future__ import annotations

import re
from functools import lru_cache

_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: ")
_RESULT = re.compile(r"^(void|int|float|bool|static|std::enable_if\S*) ")
_LAST_PART = re.compile(r"[\w$~]+$")


@lru_cache(maxsize=65_536)
def short_name(name: str) -> str:
    """A kernel's name without result type, namespaces, template and call arguments.

    `void at::native::reduce_kernel<512, 1, X>(X)` becomes `reduce_kernel`; operators such as
    `aten::linear` and copies such as `Memcpy HtoD (Pinned -> Device)` stay as they are.
    """
    name = _AUTOGRAD.sub("", name).strip()
    if not _RESULT.match(name) and "<" not in name and "(" not in name:
        return name
    if name.startswith(("Memcpy", "Memset")):
        return name
    bare = _outside_brackets(_RESULT.sub("", name)).strip()
    part = _LAST_PART.search(bare)
    return part.group() if part else name


def _outside_brackets(text: str) -> str:
    """The text up to its call arguments, without what stands in angle brackets."""
    kept: list[str] = []
    depth = 0
    for at, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif depth == 0:
            if char == "(" and not text.startswith("(anonymous namespace)", at):
                break
            kept.append(char)
    return "".join(kept)
