"""The vocabulary of work: ops and their dims, dtypes, and what a kernel is by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.ops.families import CLASS_OF_FAMILY as CLASS_OF_FAMILY
    from perfmodel.ops.families import FAMILIES as FAMILIES
    from perfmodel.ops.families import classes_of_kernels as classes_of_kernels
    from perfmodel.ops.families import families_of_kernels as families_of_kernels
    from perfmodel.ops.families import family_of_kernel as family_of_kernel
    from perfmodel.ops.spec import DTYPES as DTYPES
    from perfmodel.ops.spec import OPS as OPS
    from perfmodel.ops.spec import dtype_of_kernel as dtype_of_kernel
    from perfmodel.ops.spec import dtypes_of_kernels as dtypes_of_kernels

__getattr__, __dir__, __all__ = exports(__name__)
