"""What Kineto's category strings and call names mean, across PyTorch 1.8 to 2.13.

A new spelling is one more entry here; nothing else in the package compares these strings.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Category(IntEnum):
    """What kind of event a row is."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    GPU_ANNOTATION = 8
    CUDA_SYNC = 9


CATEGORY_OF_TEXT: dict[str, Category] = {
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    **{
        f"{maker}_{layer}": Category.RUNTIME
        for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1")
        for layer in ("runtime", "driver")
    },
    "Runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "cuda_sync": Category.CUDA_SYNC,
}

UNUSED_CATEGORIES = {
    *("Trace", "overhead", "external_correlation", "cpu_instant_event", "collective_comm"),
    *("cuda_event", "cuda_profiler_range", "gpu_pm_counter", "mtia_insight", "mtia_counters"),
}
"""What else Kineto writes, of which nothing is used; events of any other category are missed."""

DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

STEP_NAME = re.compile(r"ProfilerStep#\d+")
"""Names of the host intervals that are steps."""

OLD_ANNOTATION_NAME = re.compile(r"(ProfilerStep|Optimizer\.\w+|enumerate\(DataLoader\)).*#")
"""Operators that are annotations in files without a `user_annotation` category."""

DATA_LOADING_NAME = re.compile(
    r"enumerate\(DataLoader\)|## ?copy_batch_to_gpu|next_batch|dataload", re.I
)

INPUT_WAIT_NAME = re.compile(
    r"\b(queue|multiprocessing/queues)\.py\(\d+\): get$"
    r"|multiprocessing/connection\.py\(\d+\): _?(recv\w*|poll|wait)$"
    r"|\b(selectors|select)\.py\(\d+\): select$|\bzmq/.*: (recv\w*|poll)$"
    r"|<built-in function (select|sleep)>"
    r"|<built-in method (recv\w*|poll|accept|sleep) of (?!Tensor)"
    r"|: (recv_requests|acquire_read|wait_for_requests)$"
)
"""Python functions in which a process waits for requests or other input from outside."""

HOST_COLLECTIVE_NAME = re.compile(r"gloo:")
"""Annotations on worker threads that are collectives of a process without a device."""

WAITING_NAME = re.compile(r"wait", re.I)

LAUNCH_CALL = re.compile(
    r"(cudaLaunch(Kernel|Cooperative)|cuLaunch|cudaGraphLaunch|cuGraphLaunch"
    r"|hip(Ext|Drv)?(Module)?Launch|hipGraphLaunch|hipHccModuleLaunch"
    r"|(cuda|hip|cu)Mem(cpy|set)\w*|(ur|pi)Enqueue|zeCommandListAppend|zeCommandQueueExecute"
    r"|mtia\w*Launch|aclrtLaunch)"
)
"""Runtime and driver calls that put work on a stream: launches, async copies, memsets."""

KERNEL_LAUNCH_CALL = re.compile(r"^(?!.*(Graph|MultiDevice))\w*(LaunchKernel|EnqueueKernelLaunch)")
"""Those of them that launch one kernel each."""
GRAPH_LAUNCH_CALL = re.compile(r"(cuda|hip|cu)GraphLaunch")
COPY_CALL = re.compile(r"(cuda|hip|cu)Memcpy|(ur|pi)Enqueue\w*Mem(cpy|Buffer(Read|Write|Copy))")
SYNC_CALL = re.compile(r"(cuda|hip|cu|ze)\w*Synchronize|(ur|pi)(QueueFinish|EventWait|EventsWait)")
DEVICE_WAIT_CALL = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
STREAM_WAIT_CALL = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
ELAPSED_TIME_CALL = re.compile(r"(cuda|hip|cu)EventElapsedTime")
ALLOCATOR_CALL = re.compile(
    r"(cuda|hip|cu)(Malloc|Free|HostAlloc|HostFree|MemAlloc|MemFree|MemCreate|MemMap)"
)
DEVICE_FREE_CALL = re.compile(r"(cuda|hip|cu)\w*Free(?!\w*Async)")
"""Allocator calls that wait for the device; freeing in stream order does not."""
DEVICE_TO_PAGEABLE_COPY = re.compile(r"DtoH.*Pageable|DeviceToHost.*Pageable", re.I)
"""Copies that a host call always waits for, whatever it is called."""

AUTOGRAD_WRAPPER = re.compile("autograd::engine::evaluate_function")
BACKWARD_OP = re.compile(r"(torch::)?autograd::|(\w+::)*\w+Backward\d*$")
"""Operators of the backward pass; old PyTorch recorded them without a wrapper."""

COMMUNICATION_NAME = re.compile(
    # Inductor names a kernel after a collective whose result it reads: that one is no exchange.
    r"(?i)^gloo:|^(?!triton_(poi|red|per|tem|for)_)(?:\(anonymous namespace\)|[^<(])*?(?:"
    r"[nrhux]ccl|msccl|one_?ccl|\bccl::|nv_?shmem|roc_?shmem|\bc10d::|symm(etric)?_mem|multimem_"
    r"|userbuffers|\bmori::|4mori\d|(deep|hybrid)_ep(?!::layout|6layout)|(?<!po)(intra|inter)_?node"
    r"|notify_(dispatch|combine)|low_?latency_(dispatch|combine)|(?<![a-z\d])(moe_?)?a2a"
    r"|cross_device|quick_?reduce|lamport|(one|two)_?shot_?(all_?)?reduce|all_?gather|all_?to_?all"
    r"|(?<!warp|lock|roup)(?<!warp_|lock_|roup_)all_?reduce|reduce_?scatter)"
)
"""Kernels that move data between ranks: libraries, then exchanges by what they are called."""

TELLING_CHARACTERS = 300
"""A demangled name runs to thousands; what it is stands in front, its arguments follow."""
