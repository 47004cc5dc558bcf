"""A workload: its model, data and software; its size, checks, settings changed by key, its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from perfmodel.base.schema import Limits, convert, unknown_key
from perfmodel.errors import WorkloadError
from perfmodel.workload.recorded_layers import RecordedLayers
from perfmodel.workload.settings import (
    IMPLEMENTATIONS,
    NO_MLPS,
    SECTIONS,
    Evaluation,
    Implementation,
    Interaction,
    Model,
    Software,
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
    model: Model = NO_MLPS
    tables: tuple[Table, ...] = ()
    batch: Annotated[int, Limits(1, 1e9)] = 2048
    interaction: Interaction = field(default_factory=Interaction)
    training: Training = field(default_factory=Training)
    implementation: Implementation = field(default_factory=Implementation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    title: str = ""
    sequence: SequenceSettings = field(default_factory=SequenceSettings)
    recorded: RecordedLayers | None = None
    """Layers in place of those of `model` and `interaction`."""

    def __repr__(self) -> str:
        return f"Workload({self.name!r}: {len(self.tables)} tables, batch {self.batch:,})"

    @property
    def dim(self) -> int:
        """The dim of every table, which the interaction needs to be one."""
        return self.tables[0].dim

    @property
    def dense_features(self) -> float:
        """Values that the host brings of each sample, indices of tables apart."""
        return self.recorded.input_elements if self.recorded else self.model.dense_features

    @cached_property
    def joined_width(self) -> int:
        """Features side by side: the bottom MLP's and every table's."""
        return sum(self.model.bottom_mlp[-1:]) + sum(table.dim for table in self.tables)

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
        """Widths of the bottom MLP, its input first: of sequences the candidate's rows."""
        if self.sequence.layers:
            return (self.candidate_width, *self.model.bottom_mlp)
        return (self.model.dense_features, *self.model.bottom_mlp)

    @property
    def top_widths(self) -> tuple[int, ...]:
        """Widths of the top MLP, its input first."""
        return (self.top_width, *self.model.top_mlp)

    @cached_property
    def table_parameters(self) -> int:
        """Elements of all tables."""
        return sum(table.rows * table.dim for table in self.tables)

    @cached_property
    def dense_parameters(self) -> int:
        """Weights and biases of all layers."""
        if self.recorded is not None:
            return self.recorded.parameter_elements
        mlps, count, about = [self.bottom_widths, self.top_widths], 0, self.interaction
        if about.kind == "dcn_v2":
            count += about.layers * self.joined_width * (2 * about.rank + 1)
        if (sequence := self.sequence).layers:
            dim, heads = self.dim, sequence.heads
            gate, queries = heads * sequence.hidden_dim, heads * sequence.attention_dim
            mlps += [(dim, dim), *branch_widths(self)]
            count += sequence.layers * (2 * (gate + queries) * (dim + 1) + (3 * gate + 1) * dim)
        return count + sum((k + 1) * n for widths in mlps for k, n in pairwise(widths))

    def with_(self, **changes: Any) -> Workload:
        """A copy with settings changed, by their key in a file: `implementation__precision="bf16"`.

        Two underscores stand for the dot; `table__rows=…`, `…__dim`, `…__pooling` and `…__alpha`
        apply to every table. Raises `WorkloadError` as a file would.
        """
        edited = self
        for name, value in changes.items():
            key = name.replace("__", ".")
            if key not in _SETTINGS:
                raise WorkloadError(f"{self.name}: {unknown_key(key, list(_SETTINGS))}")
            section, _, field_name = key.rpartition(".")
            where = f"{self.name}: {key}"
            change = {field_name: convert(_SETTINGS[key], value, where, WorkloadError)}
            if section == "table":
                change = {"tables": tuple(replace(table, **change) for table in edited.tables)}
            elif section:
                change = {section: replace(getattr(edited, section), **change)}
            edited = replace(edited, **change)
        check_workload(edited, self.name)
        return edited

    def to_frame(self) -> pd.DataFrame:
        """A row per table; `unique_rows` are those expected in one global batch."""
        import pandas as pd

        about = lookups(self.tables, self.batch)
        columns = ("hash_size", "dim", "pooling", "alpha", "unique_rows")
        frame = pd.DataFrame({name: getattr(about, name) for name in columns})
        frame.insert(4, "parameters", frame["hash_size"] * frame["dim"])
        return frame.rename(columns={"hash_size": "rows"})


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
    by = f'implementation.name "{software.name}"'
    if software.name not in implementation_names():
        choices = ", ".join(f'"{each}"' for each in implementation_names())
        yield f"implementation: name: expected one of {choices}, got {software.name[:80]!r}"
    limits = IMPLEMENTATIONS[software.name]
    yield from _layer_problems(workload, by, limits)
    largest = max(table.rows for table in tables)
    if software.precision == "fp8" and not limits.fp8:
        yield f'implementation: precision: "fp8" needs "hstu", got "{software.name}"'
    if software.sharding == "hybrid" and any(table.histogram for table in tables):
        yield 'tables: histogram: sharding "hybrid" supports zipf and uniform distributions only'
    if not limits.fused_optimizers and training.table_optimizer in _FUSED_ONLY:
        yield (
            f"training: table_optimizer {training.table_optimizer!r} is fused into the backward "
            f'pass: {by} has only "sgd"'
        )
    if software.key_dtype != "int64" and not limits.int32_keys:
        yield f"implementation: key_dtype: {by} sends int64 keys"
    if software.key_dtype != "int64" and largest > MAX_INT32:
        yield f"implementation: key_dtype: a table of {largest:,} rows needs int64"
    if workload.evaluation.included and not workload.evaluation.every_samples:
        yield "evaluation: every_samples is missing where included is true"
    if workload.sequence.layers:
        if software.name != "hstu":
            yield f'implementation: name: sequence.layers needs "hstu", got "{software.name}"'
        yield from _sequence_problems(workload.sequence, tables)


def _layer_problems(workload: Workload, by: str, limits: Software) -> Iterator[str]:
    """Where layers fit neither one another, nor the tables, nor the software."""
    software, about = workload.implementation, workload.recorded
    bottom, top = workload.model.bottom_mlp, workload.model.top_mlp
    dims, count = sorted({table.dim for table in workload.tables}), len(software.layer_precisions)
    is_dot = about is None and workload.interaction.kind == "dot"
    if about is not None and not limits.recorded_layers:
        able = [each for each in implementation_names() if IMPLEMENTATIONS[each].recorded_layers]
        yield f"implementation: name: recorded layers need {', '.join(able)}, got {software.name!r}"
    if about is not None and (workload.model != NO_MLPS or workload.sequence.layers):
        yield "recorded: layers are recorded: leave model and sequence.layers out"
    if about is not None and (count or software.precision not in ("fp32", "tf32")):
        yield "implementation: precision: recorded layers keep the one that they were recorded in"
    if about is None and not all(table.pooled for table in workload.tables):
        yield "tables: pooled: rows are given one by one to recorded layers alone"
    if about is None and workload.model == NO_MLPS:
        yield "model is missing"
    elif is_dot and bottom[-1] != workload.dim:
        yield (
            f"model: bottom_mlp ends in {bottom[-1]}, and the tables have dim {workload.dim}: a "
            "dot interaction needs them equal"
        )
    elif about is None and top[-1] != 1 and not workload.sequence.layers:
        yield f"model: top_mlp ends in {top[-1]}: expected 1"
    if len(dims) > 1 and (is_dot or not limits.mixed_dims):
        who = "a dot interaction" if is_dot else by
        yield f"tables: dims {dims[0]} to {dims[-1]}: {who} needs them equal"
    layers = len(bottom) + len(top)
    if count and count != layers:
        yield f"implementation: layer_precisions: {count} entries for {layers} layers"
    if count and not limits.layer_precisions:
        yield f"implementation: layer_precisions: {by} has one precision for all layers"


def _sequence_problems(about: SequenceSettings, tables: tuple[Table, ...]) -> Iterator[str]:
    """Where `tables` do not make the sequences that are described."""
    if about.unique_frac and len(about.unique_frac) != len(tables):
        yield (
            f"sequence: unique_frac has {len(about.unique_frac)} entries for {len(tables)} tables"
        )
    for number, table in enumerate(tables):
        if table.pooling < 1:
            yield f"tables[{number}]: pooling {table.pooling:g}: a table of sequences needs 1"
    positions = {table.pooling for table in tables if table.pooling > 1}
    if len(positions) != 1:
        yield f"tables: pooling above 1: all need one number of positions, got {sorted(positions)}"
    mean, most = mean_length(tables), about.max_length
    if mean > most:
        yield f"sequence: max_length {most} is below the mean length {mean:g} that tables make"
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


def document_of(workload: Workload) -> dict[str, Any]:
    """What the file of `workload` holds: sections with the settings that are not as usual, equal
    tables that follow one another as one group. `workload_from_document` reads it."""
    usual = Workload(workload.name)
    document: dict[str, Any] = {"schema": SCHEMA}
    if workload.title:
        document["title"] = workload.title
    document["batch"] = workload.batch
    for name in SECTIONS:
        own, plain = asdict(getattr(workload, name)), asdict(getattr(usual, name))
        kept = own if name == "model" else {k: v for k, v in own.items() if v != plain[k]}
        if kept and (name != "model" or workload.recorded is None):
            document[name] = kept
    if workload.recorded is not None:
        path, batch = Path(workload.recorded.source).resolve(), workload.recorded.batch
        document["recorded"] = {"source": str(path), "batch": batch}
    document["tables"] = [
        {"count": len(list(each))} | _table(table) for table, each in groupby(workload.tables)
    ]
    return document


def _table(table: Table) -> dict[str, Any]:
    usual = {each.name: each.default for each in fields(Table)}
    keys = ("alpha", "histogram", "pooled")
    more = {key: getattr(table, key) for key in keys if getattr(table, key) != usual[key]}
    if table.key_rows:
        more["bags"] = "by_key"
    return {"rows": table.rows, "dim": table.dim, "pooling": table.pooling} | more


def toml_of(workload: Workload, comments: list[str]) -> str:
    """The file, `comments` at its head."""
    lines, sections = [f"# {line}" for line in comments], list[str]()
    for name, section in document_of(workload).items():
        if not isinstance(section, (dict, list)):
            lines.append(f"{name} = {_value(section)}")
            continue
        head = f"[[{name}]]" if isinstance(section, list) else f"[{name}]"
        for each in section if isinstance(section, list) else [section]:
            sections += ["", head, *(f"{key} = {_value(x)}" for key, x in each.items())]
    lines += sections
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """As TOML writes it; numbers from 1,000 on in groups of three digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
