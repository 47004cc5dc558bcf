"""A workload: its model, data and software; its size, checks, and settings changed by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from perfmodel.base.schema import Limits, convert, unknown_key
from perfmodel.errors import WorkloadError
from perfmodel.workload.settings import (
    IMPLEMENTATIONS,
    SECTIONS,
    Evaluation,
    Implementation,
    Interaction,
    Loader,
    Model,
    Training,
    implementation_names,
)
from perfmodel.workload.settings import Sequence as SequenceSettings
from perfmodel.workload.tables import Table, lookups, mean_length

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.workload/1"


@dataclass(frozen=True)
class Workload:
    """A model configuration; `batch` is the global batch that it is usually trained with."""

    name: str
    model: Model
    tables: tuple[Table, ...]
    batch: Annotated[int, Limits(1, 1e9)] = 2048
    interaction: Interaction = field(default_factory=Interaction)
    training: Training = field(default_factory=Training)
    implementation: Implementation = field(default_factory=Implementation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    loader: Loader = field(default_factory=Loader)
    title: str = ""
    sequence: SequenceSettings = field(default_factory=SequenceSettings)

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
        if self.sequence.layers:
            return self.dim
        width = self.joined_width
        if self.interaction.kind == "dot":
            vectors = len(self.tables) + 1
            width = self.dim + vectors * (vectors - 1) // 2
        return -(-width // self.interaction.pad_to) * self.interaction.pad_to

    @property
    def candidate_width(self) -> int:
        """Of a position's rows side by side, in a model of sequences."""
        return sum(table.dim for table in self.tables if table.pooling > 1)

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        """Widths of the bottom MLP, its input first: the candidate's rows where there are
        sequences."""
        if self.sequence.layers:
            return (self.candidate_width, *self.model.bottom_mlp)
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
        return with_settings(
            self, {key.replace("__", "."): value for key, value in changes.items()}
        )

    def to_frame(self) -> pd.DataFrame:
        """A row per table; `unique_rows` are those expected in one global batch."""
        import pandas as pd

        about = lookups(self.tables, self.batch)
        return pd.DataFrame(
            {
                "rows": about.hash_size,
                "dim": about.dim,
                "pooling": about.pooling,
                "alpha": about.alpha,
                "parameters": [table.rows * table.dim for table in self.tables],
                "unique_rows": about.unique_rows,
            }
        )


MAX_INT32 = 2**31
_FUSED_ONLY = ("rowwise_adagrad", "adam", "adagrad")


def check_workload(workload: Workload, where: str) -> None:
    """Raise `WorkloadError`, naming the key, where the parts of `workload` do not fit together."""
    problem = next(_problems(workload), None)
    if problem is not None:
        raise WorkloadError(f"{where}: {problem}")


def _problems(workload: Workload) -> Iterator[str]:
    """Each with the section and key that it is of."""
    software, training, tables = workload.implementation, workload.training, workload.tables
    bottom, top = workload.model.bottom_mlp, workload.model.top_mlp
    is_dot = workload.interaction.kind == "dot"
    if software.name not in implementation_names():
        choices = ", ".join(f'"{each}"' for each in implementation_names())
        yield f"implementation: name: expected one of {choices}, got {software.name[:80]!r}"
    limits = IMPLEMENTATIONS[software.name]
    if is_dot and bottom[-1] != workload.dim:
        yield (
            f"model: bottom_mlp ends in {bottom[-1]}, and the tables have dim {workload.dim}: a "
            "dot interaction needs them equal"
        )
    if top[-1] != 1 and not workload.sequence.layers:
        yield f"model: top_mlp ends in {top[-1]}: expected 1"
    dims = sorted({table.dim for table in tables})
    if len(dims) > 1 and (is_dot or not limits.mixed_dims):
        who = "a dot interaction" if is_dot else f'implementation.name "{software.name}"'
        yield f"tables: dims {dims[0]} to {dims[-1]}: {who} needs them equal"
    precisions = len(software.layer_precisions)
    if precisions and precisions != len(bottom) + len(top):
        yield (
            f"implementation: layer_precisions has {precisions} entries for "
            f"{len(bottom) + len(top)} layers, those of the bottom MLP and then of the top MLP"
        )
    if precisions and not limits.layer_precisions:
        yield (
            f"implementation: layer_precisions: {software.name!r} has one precision for all layers"
        )
    if software.precision == "fp8" and not limits.fp8:
        yield (
            f'implementation: precision: "fp8" needs "hstu", got "{software.name}": use '
            "layer_precisions (inference)"
        )
    if software.sharding == "hybrid" and any(table.histogram for table in tables):
        yield (
            'tables: histogram: implementation.sharding "hybrid" supports zipf and uniform '
            "distributions only"
        )
    if software.sharding != "hybrid" and not software.indices_ahead:
        yield (
            f'implementation: indices_ahead: only of sharding "hybrid", not "{software.sharding}"'
        )
    if not limits.fused_optimizers and training.table_optimizer in _FUSED_ONLY:
        yield (
            f"training: table_optimizer {training.table_optimizer!r} is fused into the backward "
            f'pass: implementation.name "{software.name}" has only "sgd"'
        )
    if software.key_dtype != "int64":
        key, most = f"implementation: key_dtype {software.key_dtype!r}", max(t.rows for t in tables)
        if not limits.int32_keys:
            yield f'{key}: implementation.name "{software.name}" sends int64 keys'
        if most > MAX_INT32:
            yield f"{key}: a table of {most:,} rows needs int64"
    if workload.evaluation.included and not workload.evaluation.every_samples:
        yield "evaluation: every_samples is missing where included is true"
    if workload.sequence.layers:
        if software.name != "hstu":
            yield f'implementation: name: sequence.layers needs "hstu", got "{software.name}"'
        yield from _sequence_problems(workload.sequence, tables)


def _sequence_problems(about: SequenceSettings, tables: tuple[Table, ...]) -> Iterator[str]:
    """Where `tables` do not make the sequences that are described."""
    if about.unique_frac and len(about.unique_frac) != len(tables):
        yield (
            f"sequence: unique_frac has {len(about.unique_frac)} entries for {len(tables)} tables"
        )
    for number, table in enumerate(tables):
        if table.pooling < 1:
            yield (
                f"tables[{number}]: pooling {table.pooling:g}: a table of sequences needs a "
                "feature: 1 row of each sample, or the mean number of its positions"
            )
    if about.relative_bias and about.kernels == "cutlass":
        yield (
            'sequence: relative_bias: kernels "cutlass" take a bias as a tensor of all pairs, '
            'which is not modelled: "triton"'
        )
    positions = {table.pooling for table in tables if table.pooling > 1}
    if len(positions) != 1:
        yield (
            "tables: pooling: those read position by position (more than 1) need one number of "
            f"positions, got {sorted(positions)}"
        )
    mean, most = mean_length(tables), about.max_length
    if mean > most:
        yield (
            f"sequence: max_length {most} is below the mean length {mean:g} that tables.pooling "
            "and the contextual features make"
        )
    widest = (mean * (most - mean)) ** 0.5
    if about.length_std and about.length_std >= widest:
        yield (
            f"sequence: length_std {about.length_std:g}: lengths from 0 to max_length {most} "
            f"around a mean of {mean:g} spread by less than {widest:.0f}"
        )


_SETTINGS = {
    f"{name}.{key}": hint
    for name, kind in {**SECTIONS, "table": Table}.items()
    for key, hint in get_type_hints(kind, include_extras=True).items()
} | {"batch": get_type_hints(Workload, include_extras=True)["batch"]}
"""Type and limits of every setting by its key."""


def with_settings(workload: Workload, changes: Mapping[str, Any]) -> Workload:
    """`workload` with `changes` by key: `batch`, `implementation.precision`, `table.pooling`, …

    `table.…` applies to every table. Raises `WorkloadError` that names the key.
    """
    edited = workload
    for key, value in changes.items():
        if key not in _SETTINGS:
            raise WorkloadError(f"{workload.name}: {unknown_key(key, list(_SETTINGS))}")
        where = f"{workload.name}: {key}"
        section, _, name = key.rpartition(".")
        change = {name: convert(_SETTINGS[key], value, where, WorkloadError)}
        if section == "table":
            change = {"tables": tuple(replace(table, **change) for table in edited.tables)}
        elif section:
            change = {section: replace(getattr(edited, section), **change)}
        edited = replace(edited, **change)
    check_workload(edited, workload.name)
    return edited


@dataclass(frozen=True)
class Counts:
    """Of one model: parameters, and per sample lookups."""

    tables: int
    table_rows: int
    table_parameters: int
    dense_parameters: int
    lookups: float


def counts(workload: Workload) -> Counts:
    """How large `workload` is."""
    mlps, dense = [workload.bottom_widths, workload.top_widths], 0
    if workload.interaction.kind == "dcn_v2":
        about = workload.interaction
        dense += about.layers * workload.joined_width * (2 * about.rank + 1)
    if workload.sequence.layers:
        sequence, dim = workload.sequence, workload.dim
        gate, queries = (sequence.heads * n for n in (sequence.hidden_dim, sequence.attention_dim))
        mlps += [(dim, dim), *branch_widths(workload)]
        dense += sequence.layers * (2 * (gate + queries) * (dim + 1) + (3 * gate + 1) * dim)
    dense += sum((before + 1) * after for widths in mlps for before, after in pairwise(widths))
    return Counts(
        tables=len(workload.tables),
        table_rows=sum(table.rows for table in workload.tables),
        table_parameters=sum(table.rows * table.dim for table in workload.tables),
        dense_parameters=dense,
        lookups=sum(table.pooling for table in workload.tables),
    )


ACTION_WIDTH = 24
"""Of what was done at a position: three bits of eight each. Source: mlcommons/training,
recommendation_v4, README."""


def branch_widths(workload: Workload) -> list[tuple[int, int, int]]:
    """Widths of the MLPs over positions: of their first table's rows, of the others', of actions.

    Source: mlcommons/training@f5517968, recommendation_v4, modules/preprocessors.py.
    """
    dim, hidden = workload.dim, workload.sequence.content_hidden
    others = workload.candidate_width - dim
    return [(width, hidden, dim) for width in (dim, others, ACTION_WIDTH) if width]
