"""Arguments and options that several verbs share, and verbs of several nouns (`fit device`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli.command import Command, Group
from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.units import BYTES_PER_GB

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
    typer.Argument(
        metavar="TRACE",
        callback=no_configuration,
        help="A Kineto trace (.json, .json.gz), an archive or a folder of ranks, or - for "
        "standard input.",
    ),
]
TraceOrDemoArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE",
        callback=no_configuration,
        help="A Kineto trace (.json, .json.gz), an archive or a folder of ranks, or - for "
        "standard input; without it, the bundled demo.",
    ),
]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        metavar="NODE",
        help="Instead of the prediction, why one node takes what it takes: its number in the "
        "execution graph, or the name of an operator, a kernel or an overhead (T1 aten::linear), "
        "of which the longest is explained.",
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        help="For people, or for machines (JSON Schemas are in docs/schemas). "
        "[default: as the suffix of -o says, else table]",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write here, whole or not at all."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", help="Fail if anything in the input was dropped, repaired or guessed."
    ),
]
MaxMemoryOption = Annotated[
    float,
    typer.Option(
        "--max-memory", metavar="GB", help="Refuse documents that decompress to more than this."
    ),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FROM:TO",
        help="Read only these steps, counted from 0 as in a Python slice: 3:8, 2:, -1:.",
    ),
]
StepsByOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Annotations of this name, alone or with a number behind it (NAME 3, NAME#3), mark "
        "the steps. [default: the profiler's or the engine's]",
    ),
]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SCOPE[/THREAD][:REGEX][@RANK]=FACTOR",
        help="What if these took FACTOR times as long? SCOPE is gpu, compute, comm, memcpy, host, "
        "allocator, a cause (host_t4, data_loading) or a kernel family (matmul). May be repeated.",
    ),
]
RemoveOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SCOPE[/THREAD][:REGEX][@RANK]",
        help="What if these took no time? Of blocking_call and hidden_sync: and waited for "
        "nothing. May be repeated.",
    ),
]
EditOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND[=VALUE]",
        help="What if the program did otherwise? fuse=embeddings|elementwise, cast=DTYPE, "
        "optimizer=loop|foreach|fused, exchange=fp16|bf16, cuda-graphs, remove=PATTERN, "
        "move=OP,BEFORE or ranks=COUNT; from shapes alone. May be repeated.",
    ),
]
ModelsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Kernel models that `perfmodel fit kernels` wrote, before those of the package.",
    ),
]
TrustModelsOption = Annotated[
    bool,
    typer.Option(
        "--trust-models",
        help="Load a user's regressor from --models: this runs code from that folder.",
    ),
]
MeasuredKernelsOption = Annotated[
    list[Path],
    typer.Option(
        metavar="FILE", help="Measured kernels, Parquet or CSV; may be given several times."
    ),
]
ProfilerOverheadOption = Annotated[
    float,
    typer.Option(
        metavar="US",
        min=0.0,
        help="Take this much off T1 to T5 for every event that the profiler recorded in them.",
    ),
]
CodecOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX=DTYPE[,elements=N]",
        help="What if collectives whose operators fit REGEX sent fp16 or bf16 instead of fp32? "
        "Kernels before and behind take the time to encode and decode. May be repeated.",
    ),
]
HardwareOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Predict on this device or node (see `perfmodel hardware`). May be repeated.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KIND.KEY=VALUE",
        help="Change one figure of the hardware, as in device.hbm_gb_per_s=3000 or node.gpus=4. "
        "May be repeated.",
    ),
]


def set_option(changed: str) -> Any:
    """`--set` of a verb that changes more than hardware: `changed` names what, with examples."""
    more = f"Change a setting of {changed}. May be repeated."
    return typer.Option("--set", metavar="WHAT.KEY=VALUE", help=more)


NodesOption = Annotated[int | None, typer.Option(metavar="N", help="A cluster of N such nodes.")]


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
