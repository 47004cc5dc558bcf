"""TorchRec: sharded embedding collections, fused optimizers, DDP for the dense part.

What it stands for: `DistributedModelParallel` with the operators of TorchRec 1.x and FBGEMM 1.x;
compared op by op with the project's own traces of it. Partial sums of rows on all ranks are added
up by a reduce-scatter; those of parts on some ranks (balanced sharding) travel as whole tables do.
With `prefetch`, the pipeline of three stages: a step copies the batch after the next, distributes
the keys of the next (sizes before its forward pass, keys after it) and computes its own. Source:
torchrec/distributed/train_pipeline, and the recorded traces of it.

With a placement and a pipeline the same step has its tables in any memory, sharded in any way.
Micro-batch after micro-batch: keys to the ranks that look them up, lookups tier by tier, pooled
rows exchanged, the dense part forward and backward; dense gradients are added up, and summed over
ranks with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from perfmodel.embedding import Pipeline
from perfmodel.ops.graph import BACKWARD, OPTIMIZER, Tensor
from perfmodel.workload.eager.calls import Shape
from perfmodel.workload.eager.dense import COMPUTE, LOSSES, dense_layers, interact, mlp
from perfmodel.workload.eager.recorder import GROUP, Recorder
from perfmodel.workload.jagged import (
    DISTRIBUTED,
    INPUT_STREAM,
    PREFETCHED,
    Jagged,
    exchanged_rows,
    features_of,
    finish_key_exchange,
    joined_columns,
    keys_by_table,
    local_batch,
    received_keys,
    sent_keys,
    start_key_exchange,
    sum_parts,
    summed_rows,
)
from perfmodel.workload.replay import Replay, WithRows
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.device_kernels import average_copies, is_replica
from perfmodel.workload.tiered.source import (
    COLUMNS,
    REDUCED,
    WITHIN,
    Group,
    Source,
    groups_of,
    output_route,
    source_of,
)
from perfmodel.workload.training import LABEL, LAST, backward, backward_and_update


@implementation("torchrec", recorded_layers=True)
def torchrec(r: Recorder, run: Run) -> None:
    """One step of one rank, its tables in device memory as the run's plan has them."""
    pipeline = Pipeline(input_ahead=run.workload.implementation.prefetch)
    tiered(r, replace(run, pipeline=pipeline))


class Mlps:
    """Two MLPs and the interaction between them; `Replay` does the same with recorded layers."""

    def __init__(self, r: Recorder, run: Run) -> None:
        self._layers = dense_layers(r, run.workload)
        self.parameters = self._layers.parameters

    def inputs(self, run: Run) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of what the host brings of a batch, indices of tables apart."""
        dense = (run.batch, run.workload.model.dense_features), "fp32"
        return [dense, ((run.batch,), "int32")] if run.train else [dense]

    def until_rows(self, r: Recorder, run: Run, inputs: Sequence[Tensor]) -> WithRows:
        """What is done before pooled rows are there, and what is to be done with them."""
        dtype, loss = COMPUTE[run.workload.implementation.precision], run.workload.training.loss
        dense, *labels = inputs
        features = mlp(r, dense, self._layers.bottom, dtype=dtype)

        def with_rows(rows: Tensor) -> Tensor | None:
            sparse = r.cast(rows, features.dtype)
            joined = interact(r, run.workload, features, sparse, self._layers.crosses, dtype)
            output = mlp(r, joined, self._layers.top, last=LAST[loss], dtype=dtype)
            output = r.squeeze(r.cast(output, "fp32"), -1)
            if not run.train:
                return None
            target = r.to_dtype(labels[0], output.dtype)
            out = LOSSES[loss](r, output, target)
            for tensor in (out, output, target):  # for the caller
                r.detach(tensor)
            return out

        return with_rows


Layers = Mlps | Replay
Pairs = Sequence[tuple[Source, Group]]
"""What reads each group of tables, and what a micro-batch asks of it."""


@implementation("tiered", recorded_layers=True, placements=True)
def tiered(r: Recorder, run: Run) -> None:
    pipeline = run.pipeline
    recorded = run.workload.recorded
    layers = Mlps(r, run) if recorded is None else Replay(r, recorded)
    sources = [source_of(r, group) for group in groups_of(run)]
    parts = _micro_batches(run)
    pairs = [list(zip(sources, groups_of(part), strict=True)) for part in parts]
    before: list[Tensor] = []
    for number, (part, own) in enumerate(zip(parts, pairs, strict=True), 1):
        if run.train:
            r.tape = {}
            r.parameter(*layers.parameters, *(x for each in sources for x in each.parameters))
        loss = _micro_batch(r, part, layers, own, pipeline)
        if loss is not None and number < len(parts):  # dense gradients are added up
            by_tensor = backward(r, loss)
            gradients = [by_tensor[parameter.tensor_id] for parameter in layers.parameters]
            with r.during(BACKWARD):
                for total, more in zip(before, gradients, strict=True) if before else ():
                    r.leaf("aten::add_", (total, more, 1), total)
            before = before or gradients
        elif loss is not None:
            with r.during(BACKWARD):
                for gradient in before:
                    r.leaf("aten::add_", (gradient, r.tensor(gradient.shape), 1), gradient)
            replicas = [source.parameters for source, group in own if is_replica(group)]
            backward_and_update(r, part, loss, [*replicas, layers.parameters], by_torchrec=True)
    if run.train:
        with r.during(OPTIMIZER):
            for source in sources:
                source.finish(r, run)
            if pipeline.averages_copies and run.copies > 1:
                average_copies(r, run, zip(sources, groups_of(run), strict=True))


def _micro_batches(run: Run) -> list[Run]:
    """The step of each micro-batch of `run`, its samples shared out."""
    batches, left = [], run.batch
    for number, each in enumerate(run.pipeline.micro_batches, 1):
        is_last = number == len(run.pipeline.micro_batches)
        samples = left if is_last else min(round(run.batch * each.samples_frac), left)
        left -= samples
        if samples:
            batches.append(replace(run, batch=samples, micro_batch=each))
    return batches


def _micro_batch(
    r: Recorder, run: Run, layers: Layers, pairs: Pairs, pipeline: Pipeline
) -> Tensor | None:
    """The forward pass of a micro-batch; its loss, where it is trained."""
    is_ahead, ways = pipeline.input_ahead, _ways(run)
    sent = ways.values() if run.ranks > 1 else ()
    with r.with_attributes(PREFETCHED if is_ahead else {}):
        brought, local = local_batch(r, run, layers.inputs(run))
    if is_ahead:  # an earlier step brought this one's
        brought = [r.like(each) for each in brought]
        local = Jagged(r.like(local.values), r.like(local.lengths))
    with r.with_attributes(DISTRIBUTED if is_ahead else {}):
        ordered = sent_keys(r, [*sent], local) if sent else []
        started = [start_key_exchange(r, *each) for each in zip(sent, ordered, strict=True)]
    keys = [local for _ in ways]
    if is_ahead:
        keys = [received_keys(r, way) for way in sent] or keys
    elif started:
        both = zip(sent, started, strict=True)
        keys = [finish_key_exchange(r, way, *each) for way, each in both]
    with r.label(LABEL):
        with_rows = layers.until_rows(r, run, brought)
        rows = _rows(r, run, pairs, dict(zip(ways, keys, strict=True)), is_ahead=is_ahead)
        loss = with_rows(rows)
    if is_ahead:
        with r.with_attributes(DISTRIBUTED):
            for way, each in zip(sent, started, strict=True):
                finish_key_exchange(r, way, *each)
    return loss


def _rows(
    r: Recorder, run: Run, pairs: Pairs, keys: Mapping[str, Jagged], *, is_ahead: bool
) -> Tensor:
    """Pooled rows of all tables for the own samples, `[batch, tables, dim]`, or side by side where
    dims differ, and for recorded layers, which take them apart as they do.

    Those of each way are on their way while the next ones are looked up.
    """
    ways, own = _ways(run), dict(keys)
    if run.ranks > 1:
        with r.with_attributes(INPUT_STREAM if is_ahead else {}):
            own = {way: keys_by_table(r, ways[way], each) for way, each in keys.items()}
    widths, waits, there = [], [], list[Tensor]()
    for way, part in ways.items():
        taken = [
            (source, group)
            for source, group in pairs
            if not group.replicated and output_route(group.placed, group.tables[0], run) == way
        ]
        of_way, wait = _requested(r, part, _looked_up(r, part, taken, own[way]), way)
        widths += of_way
        waits.append(wait)
    for source, group in pairs:
        if group.replicated:
            place = "" if group.placed.pooled_on == "device" else "cpu"
            own_keys = Jagged(  # which the step has
                r.tensor((group.lookups,), run.workload.implementation.key_dtype, place=place),
                r.tensor((len(group.tables) * group.samples,), "int32", place=place),
            )
            source.fetch(r, group, own_keys)
            there.append(_by_sample(r, group, source.look_up(r, group, own_keys), run.batch))
            widths += [round(table.width * group.positions) for table in group.tables]
    parts = [*(wait() for wait in waits), *there]
    out = parts[0] if len(parts) == 1 else r.cat(parts, 1)
    tables, dim = run.workload.tables, run.workload.dim
    width = round(sum(table.width for table in tables))
    if not run.workload.recorded:  # whose layers see to the model's order themselves
        out = features_of(r, out, widths)
    if len({table.dim for table in tables}) > 1 or (
        run.workload.recorded and out.shape[1] <= width
    ):
        return out
    out = r.reshape(out, (-1, out.shape[1] // dim, dim))
    # partial sums of a table that is in parts are added up
    return out if out.shape[1] == width // dim else sum_parts(r, out, width // dim)


def _ways(run: Run) -> dict[str, Run]:
    """By how rows come to the samples, the step with those tables alone, in the model's order:
    TorchRec has a lookup and exchanges for each kind of sharding."""
    each = zip(run.placement.tables, run.workload.tables, strict=True)
    routes = [output_route(*pair, run) for pair in each]
    ways = {}
    for way in dict.fromkeys(routes):
        shards = tuple(tuple(s for s in own if routes[s.table] == way) for own in run.plan.shards)
        if any(shards):
            ways[way] = replace(run, plan=replace(run.plan, shards=shards))
    return ways


def _looked_up(r: Recorder, run: Run, pairs: Pairs, keys: Jagged) -> Tensor:
    """Pooled rows of the rank's own shards, side by side: `[samples, total dim]`."""
    if not pairs:
        return r.tensor((run.global_batch, 0))
    parts = []
    for source, group in pairs:
        own = keys
        if len(pairs) > 1:
            values = r.view(keys.values, (group.lookups,), (1,))
            own = Jagged(values, r.view(keys.lengths, (len(group.tables) * group.samples,), (1,)))
        source.fetch(r, group, own)
        parts.append(_by_sample(r, group, source.look_up(r, group, own), run.global_batch))
    return parts[0] if len(parts) == 1 else r.cat(parts, 1)


def _by_sample(r: Recorder, group: Group, rows: Tensor, samples: int) -> Tensor:
    """Rows of `samples` side by side, those of all positions of each where they are not pooled."""
    return rows if group.tables[0].pooled else r.reshape(rows, (samples, -1))


def _requested(
    r: Recorder, run: Run, pooled: Tensor, way: str
) -> tuple[list[int], Callable[[], Tensor]]:
    """`[global batch, own dims]` of the shards that go this `way`, requested as `[batch, dims of
    all]`: what a sample gets of each shard, and what waits for the rows."""
    tables, group = run.workload.tables, GROUP
    widths = run.plan.of_each(lambda shard: round(shard.of(tables).width))
    if run.ranks == 1:
        return widths[0], lambda: pooled
    if way == REDUCED:
        return widths[run.rank], summed_rows(r, run, pooled, run.ranks)
    if not widths[run.rank]:
        pooled = _empty_pooled(r, pooled.shape[0])
    if way == WITHIN:
        place, number = run.rank % run.linked, run.rank // run.linked
        widths, group = widths[place :: run.linked], f"place {place}"
        if widths[number]:
            pooled = summed_rows(r, run, pooled, run.linked, f"linked {number}")()
        else:
            pooled = _empty_pooled(r, run.batch * run.groups)
    every, sizes = [width for own in widths for width in own], [sum(own) for own in widths]
    wait = exchanged_rows(r, run, pooled, sizes, group)
    if way != COLUMNS:
        return every, wait
    return every, lambda: joined_columns(r, wait(), len(every))


def _empty_pooled(r: Recorder, samples: int) -> Tensor:
    """What a rank without tables sends, as a parameter, so that it takes part in backward too."""
    empty = r.tensor((samples, 0))
    r.parameter(empty)
    return empty
