"""XGBoost's UBJSON, decoded to trees."""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.learned.forest import Forest, joined

_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_SINGLE = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_READS = {kind: (Struct(form).unpack_from, Struct(form).size) for kind, form in _SINGLE.items()}


def decode_trees(raw: bytes, columns: int) -> Forest:
    """The trees in an XGBoost model of so many columns; raises `ValueError` or `KeyError` for
    anything else."""
    learner = _Reader(raw).value()["learner"]
    parameters = learner["learner_model_param"]
    if int(parameters["num_feature"]) != columns:
        raise ValueError(f"it is of {parameters['num_feature']} columns, not of {columns}")
    trees = [
        {
            "feature": tree["split_indices"],
            "threshold": tree["split_conditions"],
            "below": tree["left_children"],
            "above": tree["right_children"],
            "value": tree["split_conditions"],
        }
        for tree in learner["gradient_booster"]["model"]["trees"]
    ]
    return joined(trees, float(str(parameters["base_score"]).strip("[]"))).of_width(columns)


_UNUSED = ("base_weights", "loss_changes", "sum_hessian", "parents", "default_left")
"""What XGBoost keeps of every node beside what a walk reads: half of a file."""


def without_unused(raw: bytes) -> bytes:
    """An XGBoost model with zeros for what no walk reads, which are packed to nothing."""
    content = bytearray(raw)
    _Reader(content, _UNUSED).value()
    return bytes(content)


class _Reader:
    """A decoder of UBJSON (ubjson.org, draft 12), with arrays of numbers as NumPy's.

    Arrays under the names `blank` are overwritten by zeros.
    """

    def __init__(self, raw: bytes | bytearray, blank: tuple[str, ...] = ()) -> None:
        self.raw = raw
        self.at = 0
        self.blank = blank

    def value(self, kind: str | None = None) -> Any:
        kind = kind or self._letter()
        if kind == "{":
            return self._object()
        if kind == "[":
            return self._array()
        if kind == "S":
            return self._text()
        if kind in "TF":
            return kind == "T"
        if kind == "Z":
            return None
        return self._number(kind)

    def _letter(self) -> str:
        if self.at >= len(self.raw):
            raise ValueError("ends early")
        self.at += 1
        return chr(self.raw[self.at - 1])

    def _numbers(self, kind: str, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"unknown type {kind!r}")
        numbers = np.frombuffer(self.raw, _NUMBERS[kind], count, self.at)
        self.at += numbers.nbytes
        return numbers

    def _number(self, kind: str) -> Any:
        if kind not in _READS:
            raise ValueError(f"unknown type {kind!r}")
        read, size = _READS[kind]
        self.at += size
        if self.at > len(self.raw):
            raise ValueError("ends early")
        return read(self.raw, self.at - size)[0]

    def _count(self) -> int:
        count = int(self._number(self._letter()))
        if count < 0:
            raise ValueError("a negative length")
        return count

    def _text(self) -> str:
        size = self._count()
        self.at += size
        if self.at > len(self.raw):
            raise ValueError("ends early")
        return self.raw[self.at - size : self.at].decode()

    def _peek(self) -> str:
        letter = self._letter()
        self.at -= 1
        return letter

    def _header(self) -> tuple[str | None, int | None]:
        kind = count = None
        if self._peek() == "$":
            self.at += 1
            kind = self._letter()
        if self._peek() == "#":
            self.at += 1
            count = self._count()
        return kind, count

    def _object(self) -> dict[str, Any]:
        _, count = self._header()
        fields: dict[str, Any] = {}
        while (self._peek() != "}") if count is None else len(fields) < count:
            name = self._text()
            fields[name] = value = self.value()
            if name in self.blank and isinstance(value, np.ndarray):
                self.raw[self.at - value.nbytes : self.at] = bytes(value.nbytes)  # type: ignore[index]
        if count is None:
            self.at += 1
        return fields

    def _array(self) -> Any:
        kind, count = self._header()
        if kind is not None and count is not None:
            return self._numbers(kind, count)
        items: list[Any] = []
        while (self._peek() != "]") if count is None else len(items) < count:
            items.append(self.value())
        if count is None:
            self.at += 1
        return items
