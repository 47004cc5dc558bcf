"""Take what identifies a person or a machine out of a trace, and nothing else.

Works on the JSON text, string literal by string literal: numbers keep every digit they had.
"""

from __future__ import annotations

import getpass
import gzip
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from perfmodel.files import atomic_write, read_bytes

HOST, USER, ADDRESS = "host", "user", "0.0.0.0"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PATH = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?(?:/|\\/)(?:[\w.+@~-]+(?:/|\\/))+([\w.+@~-]*)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHARED_NAMES = {"root", "user", "host", "localhost", "runner", "ubuntu", "docker", "main", "test"}
_LOOPBACK = {"127.0.0.1", ADDRESS}


def scrub_text(text: str, *, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> str:
    """JSON `text` with absolute paths cut to their last part and names and addresses replaced.

    `hosts` and `users` are the names to replace; generic ones such as `root` are left alone,
    because they identify nobody and occur as ordinary words.
    """
    words = [(name, HOST) for name in hosts] + [(name, USER) for name in users]
    patterns = [
        (re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"), replacement)
        for name, replacement in words
        if len(name) > 1 and name.lower() not in _SHARED_NAMES
    ]

    def clean(match: re.Match[str]) -> str:
        value = _PATH.sub(lambda path: path.group(1) or "path", match.group())
        value = _IPV4.sub(lambda ip: ip.group() if ip.group() in _LOOPBACK else ADDRESS, value)
        for pattern, replacement in patterns:
            value = pattern.sub(replacement, value)
        return value

    return _STRING.sub(clean, text)


def names_of_this_machine() -> tuple[set[str], set[str]]:
    """Host names and user names that a trace taken here could hold."""
    host = socket.gethostname()
    try:
        users = {getpass.getuser()}
    except (OSError, KeyError):
        users = set()
    return {host, host.split(".")[0]}, users


def scrub_file(source: Path, target: Path) -> int:
    """Write `source` (JSON, gzipped or not), scrubbed and gzipped, to `target`; its size in bytes.

    The output depends on the content alone: no time stamp and no file name goes into the gzip.
    """
    hosts, users = names_of_this_machine()
    text = scrub_text(read_bytes(source).decode(), hosts=hosts, users=users)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    with atomic_write(target) as file:
        file.write(packed)
    return len(packed)
