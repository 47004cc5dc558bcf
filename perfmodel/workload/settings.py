"""The settings of a workload by section, and the software that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from perfmodel.base.registry import Registry
from perfmodel.base.schema import Limits
from perfmodel.lowering.host.profile import EAGER

RecordStep: TypeAlias = Callable[..., None]
"""Records one rank's ops: of a `perfmodel.workload.eager.recorder.Recorder`, what it is told to run
by a `perfmodel.workload.step.Run`."""


@dataclass(frozen=True)
class Software:
    """`record` records a step; the rest says which workloads it cannot run.

    `mixed_dims`: tables of several dims; `layer_precisions`: a precision per layer;
    `fused_optimizers`: rows are updated in the backward pass, by any optimizer, else by SGD alone;
    `int32_keys` on the wire; `fp8` products; `recorded_layers` in place of MLPs. Software of
    `placements` runs a placement of tables, and cannot be named by a workload. `groups_by_node`: a
    group of linked ranks is a node, also where links join several. `hashes_rows`: rows of row-wise
    parts go to ranks by hash, else in blocks. `overheads`: the package's profile that times its
    host, on any machine.
    """

    record: RecordStep
    mixed_dims: bool = True
    layer_precisions: bool = True
    fused_optimizers: bool = True
    int32_keys: bool = True
    fp8: bool = False
    recorded_layers: bool = False
    placements: bool = False
    groups_by_node: bool = False
    hashes_rows: bool = False
    overheads: str = EAGER


IMPLEMENTATIONS: Registry[Software] = Registry(
    "implementation", "perfmodel.implementations", "perfmodel.workload.implementations"
)
"""By `implementation.name` of a workload."""


def implementation(name: str, **limits: Any) -> Callable[[RecordStep], RecordStep]:
    """A decorator that files a function as the software `name`; `limits` as in `Software`."""

    def add(record: RecordStep) -> RecordStep:
        IMPLEMENTATIONS.register(name)(Software(record, **limits))
        return record

    return add


def implementation_names() -> list[str]:
    """Those that a workload may ask for."""
    return [name for name in IMPLEMENTATIONS if not IMPLEMENTATIONS[name].placements]


SIZES, LAYERS, WIDTHS = Limits(1, 1e6), Limits(1, 100), Limits(1, 1e5)
Size = Annotated[int, SIZES]
LayerPrecision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8"]


@dataclass(frozen=True)
class Model:
    """The dense part: widths of the layers of both MLPs, the number of dense features apart."""

    dense_features: Size
    bottom_mlp: Annotated[tuple[int, ...], SIZES]
    top_mlp: Annotated[tuple[int, ...], SIZES]


NO_MLPS = Model(0, (), ())
"""Of a workload whose layers are recorded."""


@dataclass(frozen=True)
class Interaction:
    """How dense and sparse features meet.

    `dot`: products of all pairs; `cat`: side by side; `dcn_v2`: side by side, then `layers` cross
    layers of low `rank`. `pad_to` rounds the width that the top MLP gets up to a multiple.
    """

    kind: Literal["dot", "cat", "dcn_v2"] = "dot"
    layers: Annotated[int, LAYERS] = 3
    rank: Annotated[int, WIDTHS] = 512
    pad_to: Annotated[int, Limits(1, 4096)] = 1


@dataclass(frozen=True)
class Sequence:
    """A stack of HSTU layers over each sample's sequence; none where `layers` is 0.

    Tables with more than one lookup per sample are read position by position (their `pooling` is
    the mean number of positions), tables with one are contextual, one position each. Lengths spread
    by `length_std` around that mean, up to `max_length`; `samples_per_user` samples of a rank's
    batch are of one user, and so equally long. `unique_frac`: per table the distinct rows among the
    lookups of one rank's batch; with `index_dedup` only these are asked for. Each of `heads` has
    queries and keys of `attention_dim`, values and gates of `hidden_dim`; a position's rows go
    through a layer of `content_hidden`. `recompute`: the backward pass computes norms, products and
    gates again instead of keeping them. `kernels` run the attention. `balanced`: ahead of a step,
    sequences are exchanged among ranks so that each has equal work.
    """

    layers: Annotated[int, LAYERS] = 0
    heads: Annotated[int, Limits(1, 1024)] = 4
    attention_dim: Annotated[int, Limits(1, 4096)] = 128
    hidden_dim: Annotated[int, Limits(1, 4096)] = 128
    content_hidden: Annotated[int, WIDTHS] = 256
    length_std: Annotated[float, Limits(0, 1e6)] = 0.0
    max_length: Size = 4096
    samples_per_user: Annotated[float, SIZES] = 1.0
    unique_frac: Annotated[tuple[float, ...], Limits(1e-6, 1)] = ()
    index_dedup: bool = False
    recompute: bool = True
    kernels: Literal["triton", "cutlass"] = "triton"
    balanced: bool = False


@dataclass(frozen=True)
class Training:
    """Loss and optimizers. `host_ops`: operators of a step that launch nothing and are not the
    model's, as of a data loader on the training thread; each takes the time of such a one.
    `waited_us`: ahead of the backward pass host and device wait, for what is not known."""

    loss: Literal["bce", "bce_with_logits", "mse"] = "bce"
    dense_optimizer: Literal["sgd", "adagrad", "adam"] = "sgd"
    table_optimizer: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "sgd"
    host_ops: Annotated[int, Limits(0, 1e5)] = 0
    waited_us: Annotated[float, Limits(0, 1e9)] = 0.0


@dataclass(frozen=True)
class Implementation:
    """Which software a prediction stands for, and its settings.

    `name` is one of `perfmodel.workload.settings.implementation_names()`.
    `optimizer_style` `default` is what PyTorch picks: `loop` on a CPU, `foreach` on a GPU.
    `precision` fp8: products of layers over sequences, rounded to it from bf16 operands.
    `layer_precisions`: one for each layer of the bottom and then of the top MLP, in place of
    `precision` (fp8 and int8: inference only). `table_precision` is that of stored rows (fp8 and
    below: inference only), `exchange_precision` that of pooled rows on the wire, `key_dtype` that
    of indices from the host and on the wire, which FBGEMM's lookup widens.
    `sharding` is explained at `sharding.own_placement`; tables of at most `data_parallel_max_bytes`
    are replicated, `remote_data_parallel_max_bytes` where there are several groups of linked ranks
    (0: as within one). `ddp_bucket_bytes`: dense gradients that DDP sums at once. `cuda_graphs`:
    what of a step neither brings the batch nor waits for the host is launched as CUDA graphs, as
    few as can be (all sizes are then taken to be fixed); `prefetch`: the next batch is brought and
    distributed beside the step.
    `unmodelled_sample_bytes` of device memory are read, and written, per sample of a training step
    beyond what is modelled: fitted, its source names the rows that it saw.
    """

    name: str = "pytorch"
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"] = "fp32"
    layer_precisions: tuple[LayerPrecision, ...] = ()
    table_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"] = "fp32"
    exchange_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8"] = "fp32"
    key_dtype: Literal["int64", "int32"] = "int64"
    optimizer_style: Literal["default", "loop", "foreach", "fused"] = "default"
    sharding: Literal["table_wise", "row_wise", "balanced", "planned", "hybrid"] = "table_wise"
    data_parallel_max_bytes: Annotated[int, Limits(0, 1e15)] = 0
    remote_data_parallel_max_bytes: Annotated[int, Limits(0, 1e15)] = 0
    ddp_bucket_bytes: Annotated[int, Limits(1, 1e12)] = 25 << 20
    cuda_graphs: bool = False
    prefetch: bool = False
    unmodelled_sample_bytes: Annotated[int, Limits(0, 1e9)] = 0
    stands_for: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Evaluations that the benchmark's clock includes: one each `every_samples` of training.

    `included` off leaves them out of the step time. One takes `samples` through the forward pass,
    `batch_factor` times as many at once as a training step takes.
    """

    included: bool = False
    every_samples: Annotated[int, Limits(0, 1e15)] = 0
    samples: Annotated[int, Limits(0, 1e15)] = 0
    batch_factor: Size = 1

    @property
    def forward_passes_per_step(self) -> float:
        """Forward passes over an evaluation's batch that fall on one training step."""
        passes = self.samples / self.batch_factor
        return passes / self.every_samples if self.included else 0.0


SECTIONS: dict[str, type] = {
    "model": Model,
    "interaction": Interaction,
    "sequence": Sequence,
    "training": Training,
    "implementation": Implementation,
    "evaluation": Evaluation,
}
