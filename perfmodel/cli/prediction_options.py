"""The options of a trace's prediction, which several verbs share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.options import DEFAULT_MAX_GB, KernelOptions, max_bytes, option_name
from perfmodel.cli.output import working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.ops.graph import OpGraph
    from perfmodel.ops.read.module import Call, Program
    from perfmodel.prediction import Prediction, Request
    from perfmodel.prediction.request import Source, Traced
    from perfmodel.trace import Trace
    from perfmodel.workload import Workload


class Mode(StrEnum):
    """How durations are found; `MODES` of the library."""

    REPLAY = "replay"
    TRANSFER = "transfer"
    MODEL = "model"
    EAGER = "eager"
    COMPILED = "compiled"
    GRAPHS = "graphs"
    REDUCED = "reduce-overhead"


@dataclass(frozen=True)
class PredictionOptions(KernelOptions):
    """What is predicted of a trace, and how it is read."""

    batch: int | None = None
    hardware: list[str] | None = None
    nodes: int | None = None
    settings: list[str] | None = None
    mode: Mode | None = None
    replay: bool = False
    scale: list[str] | None = None
    remove: list[str] | None = None
    edit: list[str] | None = None
    codec: list[str] | None = None
    keep_contention: bool = False
    et: Path | None = None
    overheads: str | None = None
    leave_one_step_out: bool = False
    steps: str | None = None
    steps_by: str | None = None
    source_device: str | None = None
    strict: bool = False
    max_memory: float = DEFAULT_MAX_GB

    def reading_words(self) -> list[str]:
        """The options of this line that say how a trace is read and what times it, as words."""
        words: list[str] = []
        for name in ("steps", "steps_by", "et", "max_memory", "mode", "source_device"):
            value = getattr(self, name)
            if value != getattr(DEFAULTS, name):
                words += [option_name(name), str(value)]
        for text in self.settings or ():
            words += ["--set", text]
        return words

    def check(self) -> None:
        """Raise `PerfmodelError` for what is wrong by itself, before a large trace is read."""
        from perfmodel.hardware import node, with_settings
        from perfmodel.lowering.host import load_profile
        from perfmodel.prediction.request import machines

        if self.replay and self.mode not in (None, Mode.REPLAY):
            raise UsageError(f"--replay is --mode replay, but --mode {self.mode} was given as well")
        self._reading()
        self.request("")
        for name in machines(self.hardware or ()) or self.hardware or ():
            with_settings(node(name), self.settings or ())
        if self.overheads:
            load_profile(self.overheads)

    def _reading(self) -> dict[str, Any]:
        """What `read` is given. Raises `UsageError`."""
        limits = {"strict": self.strict, "max_bytes": max_bytes(self.max_memory)}
        chosen = None
        if self.steps:
            ends = re.fullmatch(r"(-?\d+)?:(-?\d+)?", self.steps)
            if not ends:
                expected = "expected FROM:TO, such as 3:8, 2: or -1:"
                raise UsageError(f"--steps {self.steps!r}: {expected}")
            chosen = slice(*(int(each) if each else None for each in ends.groups()))
        return limits | {"steps": chosen, "steps_by": self.steps_by or ""}

    def content(self, named: str | None) -> Trace | Traced:
        """The trace, the bundled demo, or what gives the ops of the module `FILE.py:CLASS`."""
        from perfmodel.ops.read.module import Call, program_of

        program = program_of(named or "")
        if program is None:
            return self.read(named)
        return self.traced(program, Call())

    def traced(self, program: Program, call: Call) -> Traced:
        """What gives the ops of one call of a class in a Python file, which is executed."""
        from perfmodel.ops.read.module import HOW, as_run, graph_of_program
        from perfmodel.prediction.request import Traced

        is_ours = ("mode",) if self.mode in HOW else ()
        self.refuse_beside("FILE.py:CLASS", (*_OF_SHAPES, *is_ours))
        if not self.hardware:
            raise UsageError(f"{program.name}: name the machine: --hardware h100-sxm")

        @cache
        def graph(batch: int | None) -> OpGraph:
            with working(f"tracing {program.name}"):
                traced = graph_of_program(program, replace(call, batch=batch))
                return as_run(traced, self.mode or Mode.EAGER)

        return Traced(graph)

    def configuration(self, name: str) -> Workload:
        """The workload of that name. Raises `UsageError` for what it cannot be asked."""
        from perfmodel.workload import load_workload

        is_model = ("mode",) if self.mode == Mode.MODEL else ()
        self.refuse_beside("--workload", ("nodes", *_OF_SHAPES, *is_model))
        if not self.hardware:
            raise UsageError(f"--workload {name}: name the machine: --hardware dgx-h100")
        return load_workload(name)

    def read(self, trace: str | None, context: int = 0) -> Trace:
        """The trace, or the bundled demo; `context` as of `read`."""
        from perfmodel.base.files import DEMO
        from perfmodel.trace import read

        given = self._reading() | {"context": context}
        with working(f"reading {trace or DEMO}"):
            content = read(trace or DEMO, **given)
        if self.et:
            limits = {key: given[key] for key in ("strict", "max_bytes")}
            content = content.with_execution_trace(self.et, **limits)
        return content

    def request(self, source: Source, **changes: Any) -> Request:
        """What is asked of `source`: the options that have a value, under `changes`."""
        from perfmodel.prediction import Request

        given = {each.name: getattr(self, each.name, None) for each in fields(Request)} | changes
        if self.replay:
            given["mode"] = Mode.REPLAY
        kept = {name: value for name, value in given.items() if value is not None}
        return Request(source, **kept)

    def predict(
        self, content: Source, *, largest_batch: bool = False, **changes: Any
    ) -> Prediction:
        """The prediction of what was read, under `changes` of the options; or that of the largest
        batch."""
        from perfmodel.prediction.request import Traced
        from perfmodel.prediction.run import largest_batch_of, predicted

        if isinstance(content, Traced):  # which knows how it runs
            changes["mode"] = None
        request = self.request(content, **changes)
        with working("predicting"):
            prediction = largest_batch_of(request) if largest_batch else predicted(request)
        if self.models and all(each.mode == Mode.REPLAY for each in prediction.results):
            raise UsageError(
                "--models cannot be combined with a replay, whose kernels were measured"
            )
        return prediction

    def refuse_beside(self, what: str, but: Sequence[str]) -> None:
        """Raise `UsageError` where one is given that means nothing beside `what`: all `but` some,
        named as the fields are."""
        given = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in but and getattr(self, each.name) != each.default
        }
        refuse_conflicting(what, given)


DEFAULTS = PredictionOptions()
OF_READING = ("et", "steps", "steps_by", "strict", "max_memory")
"""Options, as fields, that say what is read, not what is predicted of it."""
_OF_SHAPES = (
    *("batch", "hardware", "settings", "edit", "overheads", "max_memory"),
    *("models", "trust_models", "kernels"),
)


def refuse_conflicting(what: str, others: Mapping[str, object]) -> None:
    """Raise `UsageError` for the first of `others`, by name, that was given beside `what`."""
    for name, given in others.items():
        if given:
            value = f" {given}" if name == "mode" else ""
            option = "a trace" if name == "trace" else option_name(name)
            raise UsageError(f"{option}{value} cannot be combined with {what}")
