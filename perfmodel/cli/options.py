"""Arguments and options that several verbs share, and verbs of several nouns (`fit device`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.units import BYTES_PER_GB

_PLAIN = (str, Path)
"""Types whose values are made of any text."""


class _WithoutPydantic:
    """A command that leaves to Typer only what needs a check: numbers, lists, unknown words.

    Typer builds a Pydantic converter for every option, given or not; to load Pydantic takes longer
    than all else that a command does before its work.
    """

    def get_params(self, context: Any) -> list[Any]:
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if "process_value" not in vars(each):
                each.process_value = partial(_converted, each, each.process_value)
        return params


class Command(_WithoutPydantic, TyperCommand):
    """One verb."""


class Group(_WithoutPydantic, TyperGroup):
    """Several verbs."""


def _converted(option: Any, by_typer: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option: checked, of its type, and seen by the option's callback."""
    source = context.get_parameter_source(option.name)
    kind: Any = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    converted: Any
    if source is not None and source.name == "DEFAULT" and not option.required:
        converted = () if value is None and (option.multiple or option.nargs == -1) else value
    elif isinstance(value, str) and (kind in _PLAIN or value in _words(kind)):
        converted = kind(value)
    elif kind == list[str] and isinstance(value, tuple | list):
        converted = list(value)
    else:
        return by_typer(context, value)
    return option.callback(context, option, converted) if option.callback else converted


def _words(kind: Any) -> Collection[str]:
    """The words that an enumeration has; none of another type."""
    return [each.value for each in kind] if isinstance(kind, type(Enum)) else ()


def option(text: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """An option: its help, what stands for its value, and its names where they are others than the
    argument's."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """An option that is there or not."""
    return typer.Option(name, help=text)


def argument(text: str, metavar: str | None = None, **more: Any) -> Any:
    """A positional argument, as `option`."""
    return typer.Argument(metavar=metavar, help=text, **more)


MAX_SAMPLES = 1_000_000_000
"""Of a batch, as in a workload's file."""


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "md"
    PARQUET = "parquet"
    WORKBOOK = "xlsx"


def no_configuration(named: Any) -> Any:
    """What a trace argument names, a text or several, as it is: all verbs' callback.

    Raises `UsageError` for a model's configuration.
    """
    for each in [named] if isinstance(named, str) else named or ():
        if _is_configuration(each):
            raise UsageError(
                f"{each}: a configuration, no trace; it goes to perfmodel predict --workload {each}"
            )
    return named


def _is_configuration(named: str) -> bool:
    path = Path(named)
    if path.suffix == ".toml":
        return path.is_file() or not path.exists()
    if path.exists():
        return False
    from perfmodel.workload import workloads

    return named in workloads()


TraceArgument = Annotated[
    str,
    argument(
        "A Kineto trace (.json, .json.gz), an archive or a folder of ranks, or - for "
        "standard input.",
        "TRACE",
        callback=no_configuration,
    ),
]
TraceOrDemoArgument = Annotated[
    str | None,
    argument(
        "A Kineto trace (.json, .json.gz), an archive or a folder of ranks, or - for "
        "standard input; without it, the bundled demo.",
        "TRACE",
        callback=no_configuration,
    ),
]
ExplainOption = Annotated[
    str | None,
    option(
        "Explain one node instead: its number in the graph, or (the longest of) an "
        "operator, kernel or overhead (T1 aten::linear).",
        "NODE",
    ),
]
FormatOption = Annotated[
    Format | None,
    option(
        "[default: by the suffix of -o, else table; schemas: docs/schemas]", None, "--format", "-f"
    ),
]
OutputOption = Annotated[Path | None, option("Output file.", "FILE", "-o", "--output")]
StrictOption = Annotated[
    bool, flag("--strict", "Fail if anything in the input was dropped, repaired or guessed.")
]
MaxMemoryOption = Annotated[
    float, option("Refuse documents that decompress to more than this.", "GB", "--max-memory")
]
StepsOption = Annotated[
    str | None,
    option("Read only these steps, counted from 0 as in a Python slice: 3:8, 2:, -1:.", "FROM:TO"),
]
StepsByOption = Annotated[
    str | None,
    option(
        "Annotations of this name mark the steps (NAME 3, NAME#3). [default: the profiler's"
        " or the engine's]",
        "NAME",
    ),
]
ScaleOption = Annotated[
    list[str] | None,
    option(
        "What if these took FACTOR times as long? SCOPE: gpu, compute, comm, memcpy, host, "
        "allocator, a cause (host_t4, data_loading) or a kernel family (matmul). "
        "Repeatable.",
        "SCOPE[/THREAD][:REGEX][@RANK]=FACTOR",
    ),
]
RemoveOption = Annotated[
    list[str] | None,
    option(
        "What if these took no time, and calls waited for nothing? Repeatable.",
        "SCOPE[/THREAD][:REGEX][@RANK]",
    ),
]
EditOption = Annotated[
    list[str] | None,
    option(
        "Change the program: fuse=embeddings|elementwise, cast=DTYPE, "
        "optimizer=loop|foreach|fused, exchange=fp16|bf16, cuda-graphs, remove=PATTERN, "
        "move=OP,BEFORE or ranks=COUNT. Repeatable.",
        "KIND[=VALUE]",
    ),
]
ModelsOption = Annotated[
    Path | None,
    option("Kernel models that `perfmodel fit kernels` wrote, before those of the package.", "DIR"),
]
TrustModelsOption = Annotated[
    bool, flag("--trust-models", "Run code of --models: a user's regressor.")
]
MeasuredKernelsOption = Annotated[
    list[Path], option("Measured kernels, Parquet or CSV; may be given several times.", "FILE")
]
ProfilerOverheadOption = Annotated[
    float, option("Subtract this from T1 to T5 for every event recorded in them.", "US", min=0.0)
]
CodecOption = Annotated[
    list[str] | None,
    option(
        "What if collectives of operators that fit REGEX sent fp16 or bf16 instead of fp32?"
        " Kernels that encode and decode are added. Repeatable.",
        "REGEX=DTYPE[,elements=N]",
    ),
]
HardwareOption = Annotated[
    list[str] | None,
    option("Predict on this device or node (`perfmodel hardware`). Repeatable.", "NAME|FILE"),
]
SetOption = Annotated[
    list[str] | None,
    option(
        "Change a hardware value: device.hbm_gb_per_s=3000, node.gpus=4. Repeatable.",
        "KIND.KEY=VALUE",
        "--set",
    ),
]


def set_option(changed: str) -> Any:
    """`--set` of a verb that changes more than hardware: `changed` names what, with examples."""
    return option(f"Change a setting of {changed}. May be repeated.", "WHAT.KEY=VALUE", "--set")


WorkloadOption = Annotated[
    str | None, option("A model configuration (`predict --workload list` lists them).", "NAME|FILE")
]
InferenceOption = Annotated[bool, flag("--inference", "The forward pass alone.")]
RateOption = Annotated[
    float | None,
    option("With --inference: latency where samples arrive at this rate, in batches.", "SAMPLES/S"),
]
OverheadsOption = Annotated[
    str | None, option("Host overheads: a saved profile, or a shipped one.", "NAME|FILE")
]
NodesOption = Annotated[int | None, option("A cluster of N such nodes.", "N")]


def kernel_models(folder: Path | None, *, trusted: bool) -> AbstractContextManager[None]:
    """Within it, kernels are timed by the models of `--models`. Raises `PerfmodelError`."""
    if folder is None:
        if trusted:
            raise UsageError("--trust-models needs --models DIR, whose code it allows to run")
        return nullcontext()

    from perfmodel.cost.learned.store import using_models

    return using_models(folder, trusted=trusted)


_STEPS = re.compile(r"(-?\d+)?:(-?\d+)?")
DEFAULT_MAX_GB = DEFAULT_MAX_BYTES / BYTES_PER_GB


def steps_slice(text: str) -> slice:
    """The steps that `--steps` names. Raises `UsageError` for anything else."""
    match = _STEPS.fullmatch(text)
    if not match:
        raise UsageError(f"--steps {text!r}: expected FROM:TO, such as 3:8, 2: or -1:")
    return slice(*(int(bound) if bound else None for bound in match.groups()))


def max_bytes(limit_gb: float) -> int:
    """The limit of `--max-memory` in bytes. Raises `UsageError` when it is none."""
    if not 0 < limit_gb < sys.maxsize / BYTES_PER_GB:
        raise UsageError(f"--max-memory {limit_gb}: expected a number of GB above 0")
    return int(limit_gb * BYTES_PER_GB)


def verb_of(text: str, *nouns: Callable[..., None]) -> typer.Typer:
    """The verb with help `text`, each noun one function; without a noun its help is shown."""
    verb = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, help=text)
    for noun in nouns:
        verb.command(cls=Command)(noun)
    return verb
