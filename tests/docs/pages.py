"""What the documentation promises: its fenced blocks, and how each is run and compared.

A page runs in an empty folder that holds links to `traces/` and `benchmarks/`; its blocks run in
order and share that folder and one Python namespace. By the word after the fence:

- `console`: lines that begin with `$ ` run, in bash or, where they are perfmodel alone, in this
  process; the lines below each are what it prints. A command must succeed, or exit 2 where the
  output shown begins with `perfmodel:` (what was written, and warnings, are none).
- `python` and `pycon`: run; of `pycon`, what is printed is compared. `python` below a comment
  `<!-- not run: REASON -->` is not.
- `toml`: written to the file that the text just before names, where it names one; `python` too,
  where that text ends with the name of a `.py` file and a colon, and run.
- `sh` and `bash`: not run: only on the pages of `NOT_RUN`, for the reason given there, or below a
  comment `<!-- not run: REASON -->`.
- `text`, `json`, `yaml` and others: only shown.

Output is compared word by word; a number may differ by 5 %, and a line `...` stands for any lines.
`python tests/docs/pages.py` writes what is printed now into the pages.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
LINKED = ("traces", "benchmarks")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {
    "README.md": "the two commands of the quick start: .ci/run runs them in a fresh environment",
    "docs/gpu-queue.md": "needs a CUDA machine; tests/collect checks its command lines",
    "docs/ci.md": "the job installs perfmodel first; its perfmodel commands stand in other pages",
}
IN_THIS_PROCESS = {
    "perfmodel": "perfmodel.cli",
    "python -m perfmodel.collect": "perfmodel.collect.__main__",
}
"""Where `main` of a command is: others would each import everything anew."""
NEEDS_TORCH = re.compile(r"perfmodel\.collect|^import torch|^from torch|\w\.py:\w", re.M)
TOLERANCE_FRAC = 0.05
TIMEOUT_S = 300
_SHELL = re.compile(r"[|&;<>$`*?~]")
"""What only a shell understands."""
_FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.M | re.S)
_REASON = re.compile(r"<!-- not run: .{20,} -->$")
_FILE_NAMED = {
    "toml": re.compile(r".*`([\w.-]+\.toml)`", re.S),
    "python": re.compile(r".*`([\w.-]+\.py)`:$", re.S),
}
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_RULE = re.compile(r"[─━═│┃|+=-]+$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    before: str
    """The paragraph above it."""
    line: int

    @property
    def is_excused(self) -> bool:
        return bool(_REASON.search(self.before))

    @property
    def file_named(self) -> str:
        """The file that it is to be; empty where it is none."""
        pattern = _FILE_NAMED.get(self.language)
        found = pattern and pattern.match(self.before)
        return found[1] if found else ""

    @property
    def needs_torch(self) -> bool:
        return self.language in ("console", "python", "pycon") and bool(
            NEEDS_TORCH.search(self.text)
        )


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found.group(1),
            found.group(2),
            text[: found.start()].rstrip().rpartition("\n\n")[2],
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """(command, lines shown below it) of a `console` block."""
    command, shown = "", []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif command.endswith("\\"):
            command = command[:-1] + line.strip()
        elif not command:
            raise AssertionError(f"line {block.line}: output before the first command: {line!r}")
        else:
            shown.append(line)
    if command:
        yield command, shown


class Session:
    """One page being run: its folder, and the names its Python blocks share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}
        tools = folder / ".tools"
        tools.mkdir()
        for name, start in (("perfmodel", "from perfmodel.__main__ import run"),):
            script = tools / name
            script.write_text(f"#!{sys.executable}\nimport sys\n{start}\nsys.exit(run())\n")
            script.chmod(0o755)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        import perfmodel

        package = str(Path(perfmodel.__file__).parents[1])
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._printing = {"COLUMNS": "100", "NO_COLOR": "1", "MPLBACKEND": "Agg"}
        self._environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"},
            "PATH": path,
            "PYTHONPATH": package,
            **self._printing,
        }

    def run(self, block: Block) -> None:
        """Run one block. Raises `AssertionError` saying what is not as the page says."""
        if named := block.file_named:
            (self.folder / named).write_text(block.text, encoding="utf-8")
        if block.language == "console":
            for command, shown in commands(block):
                printed = self.output(command, fails=_is_error(shown))
                difference = compare(shown, printed.splitlines()) if shown else None
                assert not difference, f"$ {command}\n{difference}"
        elif block.language == "pycon":
            self._within(lambda: self._doctest(block))
        elif block.language == "python" and not block.is_excused:
            self._within(lambda: exec(compile(block.text, "block", "exec"), self.names))

    def output(self, command: str, *, fails: bool = False) -> str:
        """What a command prints, errors included; its exit status must be 0, or 2 if it `fails`."""
        names = () if _SHELL.search(command) else IN_THIS_PROCESS
        own = next((name for name in names if command.startswith(f"{name} ")), None)
        status, printed = self._here(own, command) if own else self._in_bash(command)
        expected = 2 if fails else 0
        assert status == expected, (
            f"$ {command}\nexited {status}, expected {expected}:\n{printed[-3000:]}"
        )
        return printed

    def _here(self, own: str, command: str) -> tuple[int, str]:
        main = importlib.import_module(IN_THIS_PROCESS[own]).main
        printed = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, self._printing),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            return main(shlex.split(command.removeprefix(own))), printed.getvalue()

    def _in_bash(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _within(self, call: Callable[[], None]) -> None:
        with contextlib.chdir(self.folder):
            call()

    def _doctest(self, block: Block) -> None:
        runner = doctest.DocTestRunner(checker=_Tolerant(), verbose=False)
        test = doctest.DocTestParser().get_doctest(
            block.text, self.names, "block", None, block.line
        )
        report: list[str] = []
        failed = runner.run(test, out=report.append, clear_globs=False).failed
        self.names.update(test.globs)
        assert not failed, "".join(report)


class _Tolerant(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return compare(want.splitlines(), got.splitlines()) is None


def _is_error(shown: list[str]) -> bool:
    return bool(shown) and bool(re.match(r"perfmodel: (?!warning|wrote)", shown[0]))


def compare(shown: list[str], printed: list[str]) -> str | None:
    """What differs between a page and what is printed, or None."""
    shown, printed = ([line for line in lines if _words(line)] for lines in (shown, printed))
    at = 0
    for i, line in enumerate(shown):
        if line.strip() in ("...", "…"):
            if i + 1 == len(shown):
                return None
            while at < len(printed) and not _same(shown[i + 1], printed[at]):
                at += 1
        elif at == len(printed) or not _same(line, printed[at]):
            found = printed[at] if at < len(printed) else "nothing more"
            return f"the page shows   {line}\nprinted was      {found}"
        else:
            at += 1
    return None if at == len(printed) else f"printed was more: {printed[at]}"


def _words(line: str) -> list[str]:
    return [word for word in line.split() if not _RULE.match(word)]


def _same(shown: str, printed: str) -> bool:
    a, b = _words(shown), _words(printed)
    if a and a[-1] in ("...", "…"):
        a, b = a[:-1], b[: len(a) - 1]
    return len(a) == len(b) and all(map(_same_word, a, b))


def _same_word(shown: str, printed: str) -> bool:
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(_near(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE_FRAC * max(abs(a), abs(b)) + 0.2


def updated(page: Path, folder: Path) -> str:
    """The text of a page with what its commands print now.

    Where a command's output is cut by one line `...`, as many lines stay before and after it.
    """
    session, text = Session(folder), page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.needs_torch and importlib.util.find_spec("torch") is None:
            continue
        if block.language != "console":
            session.run(block)
            continue
        lines = []
        for command, shown in commands(block):
            lines.append(f"$ {command}")
            fails = _is_error(shown)
            printed = [line.rstrip() for line in session.output(command, fails=fails).splitlines()]
            if "..." in shown:
                printed = _parts(shown, printed)
            lines += printed if shown else []
        text = text.replace(
            f"```console\n{block.text}```", "```console\n" + "\n".join(lines) + "\n```"
        )
    return text


def _alike(line: str) -> str:
    return " ".join(_NUMBER.sub("#", _RULE.sub("-", line)).split())


def _parts(shown: list[str], printed: list[str]) -> list[str]:
    """Of what is printed the parts that were shown around each `...`: from a line like the first of
    a part to one like its last; as many lines where none is."""
    marks = [-1, *(at for at, line in enumerate(shown) if line == "..."), len(shown)]
    alike, result, place = list(map(_alike, printed)), list[str](), 0
    for before, after in itertools.pairwise(marks):
        part = [line for line in shown[before + 1 : after] if line]
        if part:
            first, last = _alike(part[0]), _alike(part[-1])
            begin = alike.index(first, place) if before >= 0 and first in alike[place:] else place
            found = last in alike[begin:]
            end = alike.index(last, begin) + 1 if found else begin + after - before - 1
            end = len(printed) if after == len(shown) else end
            result, place = [*result, *printed[begin:end]], end
        result += ["..."] * (after < len(shown))
    return result


def main() -> None:
    """Write what is printed now into the pages named on the command line, or all."""
    import tempfile

    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        name = str(page.relative_to(ROOT))
        if name in NOT_RUN and name != "README.md":
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = updated(page, Path(folder))
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"updated {shlex.quote(name)}: look at git diff before you commit it")


if __name__ == "__main__":
    main()
