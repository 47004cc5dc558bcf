"""A workload: a recommendation model, its data, how it is trained, and what implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.workload.tables import Table

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.workload/1"
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

    name: Literal[
        "pytorch",
        "reference",
        "fbgemm",
        "torchrec",
        "hugectr",
    ] = "pytorch"
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


@dataclass(frozen=True)
class Workload:
    """A model configuration; `batch` is the global batch that it is usually trained with.

    `sources` tells where the figures of each section come from.
    """

    name: str
    model: Model
    tables: tuple[Table, ...]
    batch: int = 2048
    interaction: Interaction = field(default_factory=Interaction)
    training: Training = field(default_factory=Training)
    implementation: Implementation = field(default_factory=Implementation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    loader: Loader = field(default_factory=Loader)
    title: str = ""
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, hash=False
    )

    @property
    def dim(self) -> int:
        """The dim of every table, which the interaction needs to be one."""
        return self.tables[0].dim

    @cached_property
    def joined_width(self) -> int:
        """Features side by side: the bottom MLP's and every table's."""
        return self.model.bottom_mlp[-1] + sum(table.dim for table in self.tables)

    @cached_property
    def top_width(self) -> int:
        """How many features the top MLP gets."""
        width = self.joined_width
        if self.interaction.kind == "dot":
            vectors = len(self.tables) + 1
            width = self.dim + vectors * (vectors - 1) // 2
        return -(-width // self.interaction.pad_to) * self.interaction.pad_to

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        """Widths of the bottom MLP, its input first."""
        return (self.model.dense_features, *self.model.bottom_mlp)

    @property
    def top_widths(self) -> tuple[int, ...]:
        """Widths of the top MLP, its input first."""
        return (self.top_width, *self.model.top_mlp)

    def with_(self, **changes: Any) -> Workload:
        """A copy with settings changed, by their key in a file: `implementation__precision="bf16"`.

        Two underscores stand for the dot; `table__rows=…`, `…__dim`, `…__pooling` and `…__alpha`
        apply to every table. Raises `WorkloadError` as a file would.
        """
        from perfmodel.workload.edits import changed

        return changed(self, {key.replace("__", "."): value for key, value in changes.items()})

    def to_frame(self) -> pd.DataFrame:
        """The tables: rows, dim, pooling, distribution, parameters and unique rows of a batch."""
        from perfmodel.workload.frames import tables_frame

        return tables_frame(self)

    def _repr_html_(self) -> str:
        from perfmodel.workload.frames import workload_html

        return workload_html(self)
