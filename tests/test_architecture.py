"""What the layout promises: light imports, whole packages, and public names that resolve."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from inspect import ismodule
from pathlib import Path
from rlcompleter import Completer

import pytest

import perfmodel

PACKAGE = Path(perfmodel.__file__).parent
HEAVY = {
    "google.protobuf",
    "matplotlib",
    "networkx",
    "numba",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "torch",
    "xgboost",
}
FRAMES = {"pandas", "pyarrow"}
FITS = {"sklearn", "xgboost", "joblib"}
DEMO = PACKAGE / "demo" / "dlrm_cpu_kineto.json.gz"


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after running `code`."""
    code += "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_imports_help_and_the_catalogue_load_nothing_heavy() -> None:
    code = (
        "import perfmodel, perfmodel.collect\n"
        "from perfmodel.cli import main\n"
        "assert main(['--help']) == main(['predict', '--help']) == 0\n"
        "import sys; assert 'msgspec' not in sys.modules, 'files of the catalogue alone need it'\n"
        "from perfmodel import hardware, ops; hardware.load('dgx-h100')"
    )
    assert not HEAVY & loaded_by(code)


def test_answers_of_a_trace_load_no_data_frames_and_no_figures() -> None:
    code = (
        "import perfmodel, perfmodel.lowering.host.measure, perfmodel.plot, perfmodel.reporting\n"
        f"trace = perfmodel.read({str(DEMO)!r})\n"
        "perfmodel.breakdown(trace).to_dict(); perfmodel.predict(trace).to_json()\n"
        "from perfmodel.cli import main\n"
        "assert main(['predict', '--format', 'json']) == main(['breakdown', '--steps', '1:3']) == 0"
        " == main(['breakdown', '--format', 'table'])"
    )
    found = loaded_by(code)
    assert "typer" in found
    assert not {*FRAMES, *FITS, "matplotlib", "networkx", "pydantic", "rich"} & found


def test_predictions_load_nothing_that_only_fits_need() -> None:
    code = (
        "import perfmodel\n"
        f"perfmodel.predict({str(DEMO)!r}, mode='model', hardware='h100-sxm')\n"
        "perfmodel.predict('dlrm-dcnv2', hardware='dgx-h100')"
    )
    assert not FITS & loaded_by(code)


def test_trees_answer_for_many_rows_without_what_grew_them() -> None:
    code = (
        "import numpy as np; from perfmodel.cost.durations import default_models\n"
        "from perfmodel.cost.learned.features import COLUMNS\n"
        "part = default_models()['attention'].parts[0]\n"
        "rows = np.zeros((30_000, len(part.fitted.features) + len(COLUMNS)), np.float32)\n"
        "assert part.trees[''].predict(rows).shape == (30_000,)"
    )
    assert not FITS & loaded_by(code)


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    without = [str(f.relative_to(PACKAGE)) for f in folders if not (f / "__init__.py").is_file()]
    assert not without, "import-linter and mypy do not see folders without an __init__.py"


def test_public_names_resolve() -> None:
    assert None not in [getattr(perfmodel, name) for name in perfmodel.__all__]


@pytest.mark.parametrize(
    "room", ["", *(name for name in perfmodel.__all__ if ismodule(getattr(perfmodel, name)))]
)
def test_tab_completion_finds_every_name(room: str) -> None:
    place = f"perfmodel.{room}." if room else "perfmodel."
    completer = Completer({"perfmodel": perfmodel})
    found = {each.removeprefix(place).rstrip("()") for each in completer.attr_matches(place)}
    namespace = getattr(perfmodel, room) if room else perfmodel
    assert {name for name in namespace.__all__ if name != "__version__"} <= found


def test_tab_completion_loads_nothing_heavy() -> None:
    listed = "import perfmodel; print(dir(perfmodel), dir(perfmodel.plot), dir(perfmodel.explore))"
    assert not {"pandas", "matplotlib", "scipy", "numba"} & loaded_by(listed)


def test_names_of_a_registry_complete_between_brackets() -> None:
    keys = perfmodel.designs.DESIGNS._ipython_key_completions_()
    assert {"hotline", "neo"} <= {*keys}


def test_a_verb_is_a_function_whatever_was_imported_before() -> None:
    loaded_by(
        "import perfmodel, perfmodel.prediction.run, perfmodel.prediction.breakdown.job\n"
        "assert callable(perfmodel.predict) and callable(perfmodel.breakdown)"
    )


def test_no_name_that_loads_late_is_that_of_a_module() -> None:
    """Importing such a module would replace the name by the module."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        if "= exports(" in path.read_text(encoding="utf-8"):
            package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
            modules = {each.stem for each in path.parent.glob("*.py")}
            assert not modules & set(importlib.import_module(package).__all__), path
