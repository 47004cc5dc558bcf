"""TorchRec's training pipelines: input, and rows of cached tables, ahead of the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError


@dataclass(frozen=True)
class PrefetchPipeline(settings.Checked, of="prefetch_pipeline"):
    """TorchRec's pipelines: the next batch distributed, and rows that caches lack fetched, ahead.

    With neither it is `TrainPipelineBase`, with `input_ahead` `TrainPipelineSparseDist`, with
    `rows_ahead` as well `PrefetchTrainPipelineSparseDist`. Rows are those of tables behind caches:
    `software_cache+prefetch_pipeline`.

    Source: torchrec/distributed/train_pipeline. Of peers TorchRec's planner alone knows it: rows
    fetched ahead cost it nothing.
    """

    input_ahead: bool = settings.step(True, plain=False, start={"prefetch": False})
    rows_ahead: bool = settings.step(True, plain=False, acts_on="tables behind a cache of kernels")

    def apply(self, deployment: Deployment) -> Deployment:
        """What runs beside the step."""
        if self.rows_ahead and any(
            cache.kept_by == "operators" for cache in deployment.placement.caches
        ):
            raise WorkloadError("prefetch_pipeline: a cache of operators waits for every count")
        pipeline = replace(
            deployment.pipeline, input_ahead=self.input_ahead, rows_ahead=self.rows_ahead
        )
        if pipeline == deployment.pipeline:
            why = (*deployment.without_gain, "the step has that pipeline already")
            return deployment.with_(without_gain=why)
        return deployment.with_(pipeline=pipeline)
