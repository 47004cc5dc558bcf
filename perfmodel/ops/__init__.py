"""The vocabulary of work: ops and their dims, dtypes, and what a kernel is by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports
from perfmodel.ops.dtypes import DTYPES, dtype_of_kernel, dtypes_of_kernels
from perfmodel.ops.families import (
    CLASS_OF_FAMILY,
    FAMILIES,
    classes_of_kernels,
    families_of_kernels,
    family_of_kernel,
)

if TYPE_CHECKING:
    from perfmodel.ops.spec import OPS

__all__ = [
    "CLASS_OF_FAMILY",
    "DTYPES",
    "FAMILIES",
    "OPS",
    "classes_of_kernels",
    "dtype_of_kernel",
    "dtypes_of_kernels",
    "families_of_kernels",
    "family_of_kernel",
]


__getattr__ = exports(__name__, {"OPS": "perfmodel.ops.spec"})
