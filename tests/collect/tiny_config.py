"""A recommendation model small enough to train in a test, as a configuration file has it."""

from typing import Any

TINY: dict[str, Any] = {
    "name": "tiny",
    "tables": 3,
    "rows": 50,
    "dim": 4,
    "pooling": 2,
    "batch": 8,
    "bottom": [4, 8, 4],
    "top": [8, 1],
}
