"""The batch as TensorFlow's step gets it: from host tensors, copied within the step.

The example's dataset goes on after `prefetch_to_device`, so its iterator lies on the CPU. A copy to
the device waits for all kernels that were launched before it, and what reads it is launched only
when it is there: the host gets no further ahead of the device than the end of a step.

Source: datasets.py of NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM; where
TensorFlow 2.12 places such an iterator (tried with two CPU devices); tensorflow/tensorflow, pull
requests 37277 and 61632; tensorflow/core/common_runtime/gpu/gpu_util.cc, `CopyCPUTensorToGPU`.
"""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.run import Run

STAGED = {"copy": "memcpy_h2d", "pinned": "1"}
"""Attributes of a copy that goes through pinned memory, and that the host waits for."""


def batch_arrived(r: Recorder, run: Run) -> tuple[Tensor, Tensor]:
    """Dense features `[batch, features]`, fp16, and labels `[batch, 1]`, int8, of the own samples.

    Behind them come the keys of the rank's tables for all samples, `[global batch, tables]`, int32.
    """
    dense = sent(r, (run.batch, run.workload.model.dense_features), "fp16", pinned=True)
    labels = sent(r, (run.batch, 1), "int8", pinned=True)
    shape = (run.global_batch, len(run.tables))
    on_host, keys = r.tensor(shape, "int32", place="cpu"), r.tensor(shape, "int32")
    r.leaf("aten::copy_", (keys, on_host, False), keys, about=STAGED)
    return dense, labels
