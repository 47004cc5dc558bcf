"""The vocabulary of work: ops and their dims, dtypes, and what a kernel is by its name."""

from __future__ import annotations

from perfmodel.ops.dtypes import DTYPES, dtype_of_kernel, dtypes_of_kernels
from perfmodel.ops.families import (
    CLASS_OF_FAMILY,
    FAMILIES,
    classes_of_kernels,
    families_of_kernels,
    family_of_kernel,
)

__all__ = [
    "CLASS_OF_FAMILY",
    "DTYPES",
    "FAMILIES",
    "classes_of_kernels",
    "dtype_of_kernel",
    "dtypes_of_kernels",
    "families_of_kernels",
    "family_of_kernel",
]
