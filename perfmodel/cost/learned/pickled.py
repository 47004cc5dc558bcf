"""A user's own regressor in a model directory, in joblib's format: loading it runs code.

So `store.load_models` hands one out only where the user has said that the directory is trusted.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.errors import ModelError


class Pickled:
    """A regressor that is loaded when it is first asked; answers stay within the fit's targets."""

    suffix = ".joblib"
    ABOUT = ("class", "low", "high")

    def __init__(self, packed: bytes, where: str, about: Mapping[str, Any]) -> None:
        self.packed = packed
        self.about = {name: about[name] for name in self.ABOUT}
        self._where = where
        self._regressor: Any = None

    @classmethod
    def of(cls, regressor: Any, where: str, ends: tuple[float, float]) -> Pickled:
        """A fitted `regressor`; `ends` are the least and the largest of its targets."""
        import joblib

        stream = io.BytesIO()
        joblib.dump(regressor, stream, compress=3)
        name = f"{type(regressor).__module__}:{type(regressor).__qualname__}"
        return cls(stream.getvalue(), where, {"class": name, "low": ends[0], "high": ends[1]})

    def predict(self, matrix: np.ndarray) -> Floats:
        """The regressor's answers `[n]`; raises `ModelError` where it cannot be loaded or fails."""
        try:
            if self._regressor is None:
                self._regressor = self._loaded()
            predicted = np.asarray(self._regressor.predict(matrix), np.float64)
        except Exception as error:  # the user's code may raise anything
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise ModelError(f"{self._where}: {self.about['class']}: {what}") from error
        if predicted.shape != (len(matrix),) or not np.isfinite(predicted).all():
            raise ModelError(
                f"{self._where}: {self.about['class']} does not give one finite number per row"
            )
        return np.clip(predicted, self.about["low"], self.about["high"])

    def _loaded(self) -> Any:
        import joblib
        from sklearn.exceptions import InconsistentVersionWarning

        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        with warnings.catch_warnings():
            warnings.simplefilter("error", InconsistentVersionWarning)
            return joblib.load(io.BytesIO(self.packed))
