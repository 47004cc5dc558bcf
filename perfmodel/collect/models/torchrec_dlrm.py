"""DLRM of TorchRec: table-wise sharded, fused row-wise Adagrad, SGD on the MLPs.

Needs torchrec and fbgemm_gpu beside PyTorch; nothing of them is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Ranks, Training
from perfmodel.collect.models.configuration import (
    DlrmConfig,
    dlrm_config,
    require_room,
    zipf_indices,
)
from perfmodel.collect.ranks import ensure_group
from perfmodel.errors import UsageError

DENSE_LEARNING_RATE = 0.01
TABLE_LEARNING_RATE = 0.02
DISTINCT_BATCHES = 8


@MODELS.register("dlrm-torchrec")
def build_torchrec_dlrm(backend: Backend, ranks: Ranks, options: Options) -> Training:
    """The TorchRec DLRM of `options.preset`, each table whole on one rank."""
    try:
        import_module("torchrec")
    except ImportError as error:
        raise UsageError(
            f"--model dlrm-torchrec: torchrec cannot be imported ({error}); install torchrec and "
            "fbgemm-gpu (fbgemm-gpu-cpu without a GPU), or use --model dlrm"
        ) from None
    config = dlrm_config(options)
    everything = list(range(len(config.rows)))
    require_room(config, everything[ranks.rank :: ranks.world], backend.free_bytes())
    ensure_group(backend, ranks)
    torch = backend.torch
    torch.manual_seed(options.seed)
    model = _shard(backend, ranks, config)
    sgd = torch.optim.SGD(
        [p for name, p in model.named_parameters() if "embedding_bags" not in name],
        lr=DENSE_LEARNING_RATE,
    )
    batches = _make_batches(backend, ranks, options, config)

    def step(number: int) -> None:
        batch = batches[number % len(batches)].to(backend.device, non_blocking=True)
        sgd.zero_grad(set_to_none=True)
        loss, _ = model(batch)
        loss.backward()
        sgd.step()

    description = {
        "model": "dlrm-torchrec",
        "preset": options.preset or "small",
        "batch_per_rank": options.batch,
        "zipf_alpha": options.zipf_alpha,
        "sharding": "table_wise, fused kernel",
        "optimizer": f"tables: fused row-wise Adagrad lr {TABLE_LEARNING_RATE}; "
        f"MLPs: SGD lr {DENSE_LEARNING_RATE}",
        **config.describe(),
    }
    return Training(step, description)


def _shard(backend: Backend, ranks: Ranks, config: DlrmConfig) -> Any:
    """The model in `DistributedModelParallel` under a table-wise plan."""
    modules = import_module("torchrec.modules.embedding_configs")
    collection = import_module("torchrec.modules.embedding_modules")
    dlrm = import_module("torchrec.models.dlrm")
    planner = import_module("torchrec.distributed.planner")
    kernels = import_module("torchrec.distributed.embedding_types").EmbeddingComputeKernel
    sharding = import_module("torchrec.distributed.types").ShardingType
    parallel = import_module("torchrec.distributed.model_parallel")
    optimizers = import_module("torchrec.optim")
    in_backward = import_module("torchrec.optim.apply_optimizer_in_backward")
    distributed = backend.torch.distributed

    bags = collection.EmbeddingBagCollection(
        device=backend.torch.device("meta"),
        tables=[
            modules.EmbeddingBagConfig(
                name=f"t{number}",
                embedding_dim=config.dim,
                num_embeddings=rows,
                feature_names=[f"f{number}"],
            )
            for number, rows in enumerate(config.rows)
        ],
    )
    in_backward.apply_optimizer_in_backward(
        optimizers.RowWiseAdagrad, bags.parameters(), {"lr": TABLE_LEARNING_RATE}
    )
    model = dlrm.DLRMTrain(
        dlrm.DLRM(
            embedding_bag_collection=bags,
            dense_in_features=config.bottom[0],
            dense_arch_layer_sizes=list(config.bottom[1:]),
            over_arch_layer_sizes=list(config.top),
            dense_device=backend.device,
        )
    )
    sharder = import_module("torchrec.distributed.embeddingbag").EmbeddingBagCollectionSharder()
    constraint = planner.ParameterConstraints(
        sharding_types=[sharding.TABLE_WISE.value], compute_kernels=[kernels.FUSED.value]
    )
    plan = planner.EmbeddingShardingPlanner(
        topology=planner.Topology(world_size=ranks.world, compute_device=backend.kind),
        constraints={f"t{number}": constraint for number in range(len(config.rows))},
    ).collective_plan(model, [sharder], distributed.group.WORLD)
    return parallel.DistributedModelParallel(
        model, device=backend.device, plan=plan, sharders=[sharder]
    )


def _make_batches(
    backend: Backend, ranks: Ranks, options: Options, config: DlrmConfig
) -> list[Any]:
    """Local batches: dense features, one jagged index list per table, labels."""
    torch = backend.torch
    jagged = import_module("torchrec.sparse.jagged_tensor").KeyedJaggedTensor
    batch_type = import_module("torchrec.datasets.utils").Batch
    generator = np.random.default_rng(options.seed + ranks.rank)
    lookups = options.batch * config.pooling
    tables = len(config.rows)
    batches = []
    for _ in range(DISTINCT_BATCHES):
        values = [
            zipf_indices(generator, rows, lookups, options.zipf_alpha) for rows in config.rows
        ]
        sparse = jagged.from_lengths_sync(
            keys=[f"f{number}" for number in range(tables)],
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.full((tables * options.batch,), config.pooling, dtype=torch.int32),
        )
        dense = generator.random((options.batch, config.bottom[0]), dtype=np.float32)
        labels = (generator.random(options.batch) < 0.3).astype(np.int32)
        batch = batch_type(torch.from_numpy(dense), sparse, torch.from_numpy(labels))
        batches.append(batch.pin_memory() if backend.is_gpu else batch)
    return batches
