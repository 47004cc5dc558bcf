"""The batch as TensorFlow's step gets it: from host tensors, copied within the step.

The example's dataset goes on after `prefetch_to_device`, so its iterator lies on the CPU. A copy to
the device waits for all kernels that were launched before it, and what reads it is launched only
when it is there: the host gets no further ahead of the device than the end of a step.

Source: datasets.py of NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM; where
TensorFlow 2.12 places such an iterator (tried with two CPU devices); tensorflow/tensorflow, pull
requests 37277 and 61632; tensorflow/core/common_runtime/gpu/gpu_util.cc, `CopyCPUTensorToGPU`.
"""

from __future__ import annotations

import numpy as np

from perfmodel.graph.ops import Tensor
from perfmodel.ops.storage import item_bytes
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.one_thread import unbatched
from perfmodel.workload.run import Run

DTYPES = ("fp16", "int8", "int32")
"""Of dense features, labels and keys."""
STAGED = {"copy": "memcpy_h2d", "pinned": "1"}
"""Attributes of a copy that goes through pinned memory, and that the host waits for."""


def batch_asked(r: Recorder, run: Run) -> Tensor:
    """Keys of the rank's tables for all samples, `[global batch, tables]`, int32, on the host.

    The dataset hands them out with the own samples' features and labels.
    """
    keys = r.tensor((run.global_batch, len(run.tables)), DTYPES[2], place="cpu")
    elements = run.batch * run.workload.model.dense_features, run.batch, keys.elements
    unbatched(r, keys, float(np.dot(elements, item_bytes(DTYPES))))
    return keys


def batch_arrived(r: Recorder, run: Run, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Dense features `[batch, features]`, fp16, and labels `[batch, 1]`, int8, of the own samples.

    The keys `asked` come behind them.
    """
    dense = sent(r, (run.batch, run.workload.model.dense_features), DTYPES[0], pinned=True)
    labels = sent(r, (run.batch, 1), DTYPES[1], pinned=True)
    keys = r.tensor(asked.shape, asked.dtype)
    r.leaf("aten::copy_", (keys, asked, False), keys, about=STAGED)
    return dense, labels
