"""What the papers of the field published about their designs, one file per source, recomputed.

A file registers functions in `CASES` under names like `V12`; each yields `Figure`s, whose ids begin
with that name (`V2-large-amp`). What is not exact goes through predictions on machines that a `Lab`
gives, so that a change of the hardware moves it.
"""

from perfmodel.validate.designs.figures import CASES, DesignFigures, Figure, evaluate_designs
from perfmodel.validate.designs.lab import Lab

__all__ = ["CASES", "DesignFigures", "Figure", "Lab", "evaluate_designs"]
