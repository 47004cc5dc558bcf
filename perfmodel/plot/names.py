"""Names for readers: of causes, kinds, kernels and operators; small escaped HTML tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite, nan
from numbers import Integral, Real
from os.path import commonprefix

Row = Sequence[object] | Mapping[str, object]
HOST_WORDS = {
    "t1": "Python, between ops (T1)",
    "t2": "op before first launch (T2)",
    "t3": "op after last launch (T3)",
    "t4": "launch call (T4)",
    "t5": "op between launches (T5)",
    "op_without_launch": "CPU ops (no kernel)",
}
"""Host time by kind, in figures, tables and pages."""
KIND_WORDS = {
    "kernel": "compute kernel",
    "host": "host (ops and gaps)",
    "launch": "launch call",
    "wait": "return from a wait",
    "collective_wait": "waiting for other ranks",
    "offload": "rows beside the device",
}
"""Kinds of boxes of a timeline whose name alone says little."""


def named(name: str) -> str:
    """A cause, kind or family in words: `op before first launch (T2)` of `T2` and `host_t2`."""
    return HOST_WORDS.get(name.removeprefix("host_").lower(), name.replace("_", " "))


def readable(name: str) -> str:
    """A cause, kind or family in the words of a legend."""
    return KIND_WORDS.get(name) or named(name)


def table_html(rows: Iterable[Row], columns: Sequence[str], caption: str = "") -> str:
    """An HTML table of `rows` (sequences in the order of `columns`, or mappings by column).

    Thousands are separated: whole numbers as they are, others with one decimal, small ones that are
    no percentages with three figures. None and NaN show as a dash.
    """
    from html import escape  # with all names of characters: only notebooks need it

    def row_of(tag: str, texts: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"

    listed = ([row.get(k) for k in columns] if isinstance(row, Mapping) else row for row in rows)
    body = "".join(row_of("td", map(_text, row, columns)) for row in listed)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = row_of("th", columns)
    start = f'<table class="dataframe perfmodel">{title}'
    return f"{start}<thead>{head}</thead><tbody>{body}</tbody></table>"


def list_html(lines: Iterable[str], title: str) -> str:
    """`lines` below a title; nothing where there are none."""
    from html import escape

    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    heading = f"<summary>{escape(title)}</summary>"
    return f"<details open>{heading}<ul>{items}</ul></details>" if items else ""


def _text(value: object, column: str) -> str:
    """A value as a table shows it in a column of that name."""
    if isinstance(value, bool) or not (value is None or isinstance(value, Real)):
        return str(value)
    if isinstance(value, Integral):
        return f"{int(value):,}"
    number = nan if value is None else float(value)
    if not isfinite(number):
        return "–"
    if column == "count":
        return f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}"
    is_plain = number == 0 or abs(number) >= 1 or column.endswith("_pct")
    return f"{number:,.1f}" if is_plain else f"{number:.3g}"


WAIT_BEFORE = "wait before "
"""Begins the label of a wait that no edge explains, ahead of what came late."""
_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: ")
_RESULT = re.compile(r"^(void|int|float|bool|static|std::enable_if<.*?>::type|std::enable_if\S*) ")
_INNERMOST, _CALL = re.compile(r"<[^<>]*>"), re.compile(r"\((?!anonymous namespace\))")
_LAST_PART = re.compile(r"[\w$~]+$")
_LAST_TWO_PARTS = re.compile(r"(?:[\w$~]+::)?[\w$~]+$")
_SAYS_NOTHING = ("kernel", "Kernel", "Kernel2", "device_kernel", "kentry", "run", "operator")
_INNER_GEMM = re.compile(r"<(cutlass_\w+)")
_FIRST_CLASS = re.compile(r"<(?:\d+u?l*, )?(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*([A-Z]\w+)")
"""The class that a kernel which runs any is given first."""
_WORD = re.compile(r"[A-Za-z]*\d+|[A-Za-z]+")
_MAX_APART = 40
_WORKS = (
    re.compile(r"\b(CUDAFunctor_\w+)"),
    re.compile(r"\b((?!gpu_kernel)\w+_(?:kernel_cuda|kernel_impl|cuda_kernel))\b"),
    re.compile(r"\b((?!(?:Binary|AUnary|BUnary|Unary|Compare)Functor)\w+Functor\w*)"),
    re.compile(r"\b((?!ReduceOp\b)[A-Z]\w+Ops?)\b"),
    re.compile(r"\bstd::(plus|minus|multiplies|divides)\b"),
    re.compile(r"\b(\w+_functor)\b"),
    re.compile(r"\b(\w+)\(at::Tensor"),
)
"""What a general kernel is called with, the most telling first."""
_MANGLED = re.compile(r"_ZN?K?(?=\d)")
_LENGTH = re.compile(r"\d+")
_ARGUMENT = re.compile(r"I(?:L\w\d+E)*N(?:S\d*_)?(?=\d)")


@lru_cache(maxsize=65_536)
def short_name(name: str) -> str:
    """A kernel's name without result type, namespaces, template and call arguments.

    `void at::native::reduce_kernel<512, 1, X>(X)` becomes `reduce_kernel`; operators such as
    `aten::linear` and copies such as `Memcpy HtoD (Pinned -> Device)` stay as they are.
    """
    if name.startswith(WAIT_BEFORE):
        return WAIT_BEFORE + short_name(name.removeprefix(WAIT_BEFORE))
    name = _AUTOGRAD.sub("", name).strip()
    if not _RESULT.match(name) and "<" not in name and "(" not in name:
        return name
    if name.startswith(("Memcpy", "Memset")):
        return name
    part = _LAST_PART.search(_outside_brackets(name))
    return part.group() if part else name


def _outside_brackets(text: str) -> str:
    """The text up to its call arguments, without its result's type and what brackets hold."""
    text = _RESULT.sub("", text)
    while (shorter := _INNERMOST.sub("", text)) != text:
        text = shorter
    return _CALL.split(text.partition("<")[0], maxsplit=1)[0].strip()


@lru_cache(maxsize=65_536)
def readable_name(name: str) -> str:
    """A kernel's short name, and in square brackets what a general kernel does.

    `void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>`
    becomes `vectorized_elementwise_kernel[CUDAFunctor_add]`; names of libraries (`ampere_sgemm_
    128x64_tn`, `ncclDevKernel_AllReduce_Sum_f32`) and of operators stay as they are.
    """
    mangled = _MANGLED.match(name)
    if mangled:
        return _demangled(name, mangled.end()) or name
    short = short_name(name)
    if short == name or "<" not in name:
        return short
    if short in _SAYS_NOTHING:
        inner = _INNER_GEMM.search(name)
        if inner:
            return inner[1]
        outer = _LAST_TWO_PARTS.search(_outside_brackets(name))
        short = outer.group() if outer else short
        given = _FIRST_CLASS.search(name)
        if given:
            return f"{short}[{given[1]}]"
    work = next((match[1] for pattern in _WORKS if (match := pattern.search(name))), "")
    return f"{short}[{work}]" if work and work not in short else short


def readable_names(names: Sequence[str]) -> list[str]:
    """Readable names of different kernels; where they are the same, words that not all of them have
    behind it in angle brackets: `cat<float>` and `cat<long>`."""
    result = [readable_name(name) for name in names]
    same: dict[str, list[int]] = {}
    for at, short in enumerate(result):
        same.setdefault(short, []).append(at)
    for short, rows in same.items():
        words = [_WORD.findall(names[at]) for at in rows]
        common = set(words[0]).intersection(*words)
        for at, own in zip(rows, words, strict=True):
            apart = ", ".join(word for word in own if word not in common)
            result[at] = f"{short}<{shortened(apart, _MAX_APART)}>" if apart else short
    return result


def shortened(text: str, width: int) -> str:
    """A text of at most `width` characters, cut in its middle where it is longer."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + "…" + (text[-tail:] if tail else "")


def shortened_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each text of at most `width`; those that `shortened` would make the same go on, behind their
    beginning, where they differ."""
    short = [shortened(text, width) for text in texts]
    same: dict[str, set[str]] = {}
    for cut, text in zip(short, texts, strict=True):
        same.setdefault(cut, set()).add(text)
    head = width // 3
    for at, text in enumerate(texts):
        if len(same[short[at]]) > 1:
            alike = list(same[short[at]])
            apart = max(len(commonprefix(alike)), head)  # noqa: RUF071 (no paths)
            short[at] = f"{text[:head]}…{text[apart:]}"[:width]
    return short


def _demangled(name: str, at: int) -> str:
    """The last part of a nested name in the Itanium ABI, from position `at` on.

    Where that says nothing, the last of its first template argument.
    """
    part = ""
    while length := _LENGTH.match(name, at):
        begin = length.end()
        at = begin + int(length[0])
        if name[begin:at] != "_GLOBAL__N_1":
            part = name[begin:at]
    argument = _ARGUMENT.match(name, at) if part in _SAYS_NOTHING else None
    return _demangled(name, argument.end()) or part if argument else part
