"""Spellings that real files hold although JSON forbids them, rewritten without evaluating them.

Older PyTorch writes bare `inf` and `nan` among values; every PyTorch up to 2.13 writes the names
of user annotations without escaping control characters; Chakra's converter writes the arguments of
a node as Python's `repr` of a list.
"""

from __future__ import annotations

import re

import msgspec

_TOKEN = re.compile(
    rb"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?"
    rb"|-?\b(?:inf|nan|Infinity|NaN)\b",
    re.DOTALL,
)
_PYTHON_TOKEN = re.compile(
    rb"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?"
    rb"|'[^'\\]*(?:\\.[^'\\]*)*'?"
    rb"|-?\b(?:inf|nan)\b|\b(?:True|False|None)\b",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)|(\")", re.DOTALL)
_WORDS = {b"True": b"true", b"False": b"false", b"None": b"null"}
_EMPTY = b"[]"
_LAST_CHARACTER = 0x10FFFF


def repair_json(content: bytes) -> bytes:
    """`content` with bare infinities and NaN quoted and control characters in strings escaped."""
    return _TOKEN.sub(_repaired, content)


def json_list(text: str) -> bytes:
    """A list written as JSON or as Python's `repr`, as JSON; `[]` for no text at all.

    Raises `msgspec.MsgspecError` or `RecursionError` when it is neither.
    """
    if not text:
        return _EMPTY
    content = text.encode()
    try:
        msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        content = _PYTHON_TOKEN.sub(_from_python, content)
        msgspec.json.decode(content, type=list[msgspec.Raw])
    return content


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % match[0][0]


def _repaired(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return _CONTROL.sub(_escaped, token) if token.startswith(b'"') else b'"%s"' % token


def _from_python(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[:1] in (b"'", b'"'):
        quote = token[:1]
        closed = len(token) > 1 and token.endswith(quote)
        body = token[1:-1] if closed else token[1:]
        body = _CONTROL.sub(_escaped, _ESCAPE.sub(_python_escape, body))
        return b'"%s"' % body if closed else b'"%s' % body
    return _WORDS.get(token) or b'"%s"' % token


def _python_escape(match: re.Match[bytes]) -> bytes:
    if match[2]:
        return b'\\"'
    code: bytes = match[1]
    if code == b"'":
        return b"'"
    if len(code) == 3:
        return b"\\u00" + code[1:]
    if len(code) == 9 and int(code[1:], 16) <= _LAST_CHARACTER:
        return chr(int(code[1:], 16)).encode(errors="replace")
    return b"\\" + code
