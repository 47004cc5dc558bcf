"""The settings of a workload by section, and how a value is checked for type and range."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from perfmodel.errors import WorkloadError
from perfmodel.workload.tables import Histogram

LayerPrecision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8"]


@dataclass(frozen=True)
class Model:
    """The dense part: widths of the layers of both MLPs, the number of dense features apart."""

    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]


@dataclass(frozen=True)
class Interaction:
    """How dense and sparse features meet.

    `dot`: products of all pairs; `cat`: side by side; `dcn_v2`: side by side, then `layers` cross
    layers of low `rank`. `pad_to` rounds the width that the top MLP gets up to a multiple.
    """

    kind: Literal["dot", "cat", "dcn_v2"] = "dot"
    layers: int = 3
    rank: int = 512
    pad_to: int = 1


@dataclass(frozen=True)
class Training:
    """Loss and optimizers."""

    loss: Literal["bce", "bce_with_logits", "mse"] = "bce"
    dense_optimizer: Literal["sgd", "adagrad", "adam"] = "sgd"
    table_optimizer: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "sgd"


@dataclass(frozen=True)
class Implementation:
    """Which software a prediction stands for, and its settings.

    `name` is one of `perfmodel.workload.software.implementation_names()`.
    `optimizer_style` `default` is what PyTorch picks: `loop` on a CPU, `foreach` on a GPU.
    `layer_precisions`: one for each layer of the bottom and then of the top MLP, in place of
    `precision` (fp8 and int8: inference only). `table_precision` is that of stored rows (fp8 and
    below: inference only), `exchange_precision` that of pooled rows on the wire, `key_dtype` that
    of indices from the host and on the wire, which FBGEMM's lookup widens.
    `sharding` is explained at `shards.plan`; tables of at most `data_parallel_max_bytes` are
    replicated. `ddp_bucket_bytes`: dense gradients that DDP sums at once. `cuda_graphs`: the step
    is launched as one graph; `prefetch`: the next batch is brought and distributed beside the step.
    `indices_ahead` (of `hybrid` sharding): which rows are whose is computed ahead of the step, and
    its all-reduce runs beside the exchange of rows (HugeCTR since MLPerf v1.1); else one after the
    other.
    `unmodelled_sample_bytes` of device memory are read, and written, per sample of a training step
    beyond what is modelled: fitted, its source names the rows that it saw.
    """

    name: str = "pytorch"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    layer_precisions: tuple[LayerPrecision, ...] = ()
    table_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"] = "fp32"
    exchange_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8"] = "fp32"
    key_dtype: Literal["int64", "int32"] = "int64"
    optimizer_style: Literal["default", "loop", "foreach", "fused"] = "default"
    sharding: Literal[
        "table_wise",
        "row_wise",
        "balanced",
        "planned",
        "hybrid",
    ] = "table_wise"
    data_parallel_max_bytes: int = 0
    ddp_bucket_bytes: int = 25 << 20
    cuda_graphs: bool = False
    prefetch: bool = False
    indices_ahead: bool = True
    unmodelled_sample_bytes: int = 0
    stands_for: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Evaluations that the benchmark's clock includes: one each `every_samples` of training.

    `included` off leaves them out of the step time. One takes `samples` through the forward pass,
    `batch_factor` times as many at once as a training step takes, and `beyond_us` more, on any
    machine.
    """

    included: bool = False
    every_samples: int = 0
    samples: int = 0
    batch_factor: int = 1
    beyond_us: float = 0.0

    @property
    def forward_passes_per_step(self) -> float:
        """Forward passes over an evaluation's batch that fall on one training step."""
        if not self.included:
            return 0.0
        return self.samples / self.every_samples / self.batch_factor

    def beyond_us_per_step(self, batch: int) -> float:
        """What falls on a training step of `batch` samples beyond forward passes."""
        return self.beyond_us * batch / self.every_samples if self.included else 0.0


@dataclass(frozen=True)
class Loader:
    """What brings batches to each host, beside its steps: at most `samples_per_s`, and
    `gb_per_s` of `bytes_per_sample` each; 0 sets no limit, and takes the bytes that a batch has.
    """

    samples_per_s: float = 0.0
    gb_per_s: float = 0.0
    bytes_per_sample: float = 0.0


Section = dict[str, Any]
T = TypeVar("T")

SECTIONS: dict[str, type] = {
    "model": Model,
    "interaction": Interaction,
    "training": Training,
    "implementation": Implementation,
    "evaluation": Evaluation,
    "loader": Loader,
}

MAX_TABLES = 100_000
LIMITS: dict[str, tuple[float, float]] = {
    "rows": (1, 1e13),
    "dim": (1, 1e5),
    "pooling": (1e-3, 1e6),
    "alpha": (0, 10),
    "key_rows": (0, 1e13),
    "share": (1e-15, 1e9),
    "count": (1, MAX_TABLES),
    "batch": (1, 1e9),
    "layers": (1, 100),
    "rank": (1, 1e5),
    "pad_to": (1, 4096),
    "dense_features": (1, 1e6),
    "bottom_mlp": (1, 1e6),
    "top_mlp": (1, 1e6),
    "data_parallel_max_bytes": (0, 1e15),
    "unmodelled_sample_bytes": (0, 1e9),
    "every_samples": (0, 1e15),
    "samples": (0, 1e15),
    "batch_factor": (1, 1e6),
    "beyond_us": (0, 1e12),
    "ddp_bucket_bytes": (1, 1e12),
    "samples_per_s": (0, 1e12),
    "gb_per_s": (0, 1e6),
    "bytes_per_sample": (0, 1e12),
}
"""Key to the smallest and the largest value that can exist."""


def section(kind: type[T], table: Section, where: str) -> T:
    """One section as its dataclass."""
    hints = get_type_hints(kind)
    _known(table, list(hints), where)
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.default is MISSING and entry.name not in table:
            raise WorkloadError(f"{where}: {entry.name} is missing")
    return kind(
        **{key: value_of(key, hints[key], value, f"{where}: {key}") for key, value in table.items()}
    )


def value_of(key: str, kind: Any, value: Any, where: str) -> Any:
    """`value` as a field of type `kind`; raises `WorkloadError` for another type or range."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(f'"{choice}"' for choice in get_args(kind))
            raise WorkloadError(f"{where}: expected one of {choices}, got {_short(value)}")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise WorkloadError(f"{where}: expected true or false, got {_short(value)}")
        return value
    if kind is str:
        return _text(value, where)
    if kind == Histogram:
        return _histogram(value, where)
    if get_origin(kind) is tuple and get_origin(get_args(kind)[0]) is Literal:
        if not isinstance(value, (list, tuple)):
            raise WorkloadError(f"{where}: expected a list of precisions, got {_short(value)}")
        return tuple(value_of(key, get_args(kind)[0], item, where) for item in value)
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)) or not value:
            raise WorkloadError(f"{where}: expected a list of widths, got {_short(value)}")
        return tuple(_number(key, item, where, whole=True) for item in value)
    return _number(key, value, where, whole=kind is int)


def _histogram(pairs: Any, where: str) -> Histogram:
    """Pairs of shares, each above 0."""
    if pairs is None:
        return ()
    if not isinstance(pairs, (list, tuple)) or not pairs:
        raise WorkloadError(f"{where}: expected a list of pairs, got {_short(pairs)}")
    for number, pair in enumerate(pairs, 1):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise WorkloadError(f"{where}[{number}]: expected a pair, got {_short(pair)}")
    return tuple(
        (_number("share", lookups, where, whole=False), _number("share", rows, where, whole=False))
        for lookups, rows in pairs
    )


def _number(key: str, value: Any, where: str, *, whole: bool) -> Any:
    low, high = LIMITS[key]
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (whole and int(value) != value):
        kind = "a whole number" if whole else "a number"
        raise WorkloadError(
            f"{where}: expected {kind} from {low:g} to {high:g}, got {_short(value)}"
        )
    return int(value) if whole else float(value)


def _known(table: Section, known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=2, cutoff=0.6) or list(known)
            raise WorkloadError(f"{where}: unknown key {key}; expected: {', '.join(near)}")


def _table(value: Any, where: str) -> Section:
    if not isinstance(value, dict):
        raise WorkloadError(f"{where}: expected a section, got {_short(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WorkloadError(f"{where}: expected a text in quotes, got {_short(value)}")
    return " ".join(value.split())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
