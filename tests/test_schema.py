"""Values of the right type and range, or one line that says what is wrong and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.schema import Limits, convert, describe, parse_value, read_toml, section
from perfmodel.errors import UsageError

TEN = Limits(1, 10, "GB")


@dataclass(frozen=True)
class Part:
    gb: float
    mode: Literal["fast", "slow"] = "fast"
    widths: tuple[int, ...] = ()
    room_gb: float | None = None

    def __post_init__(self) -> None:
        if self.gb < 0:
            raise ValueError("gb: expected 0 or more")


@pytest.mark.parametrize(
    ("kind", "value", "limits", "expected"),
    [
        (int, 3, None, 3),
        (int, 1e9, None, 10**9),
        (float, 3, TEN, 3.0),
        (float, np.float64(0.5), None, 0.5),
        (int, np.int32(4), TEN, 4),
        (bool, True, None, True),
        (str, " two  words\n", None, "two words"),
        (tuple[int, ...], [1, 2.0], TEN, (1, 2)),
        (tuple[tuple[float, float], ...], [[1, 2], (3, 4)], None, ((1.0, 2.0), (3.0, 4.0))),
        (float | None, None, None, None),
        (float | None, "none", None, None),
        (Literal["a", "b"], "b", None, "b"),
        (Mapping[str, Mapping[str, float]], {"a": {"b": 1}}, None, {"a": {"b": 1.0}}),
        (tuple[str, ...], [" two  words", "b"], None, ("two words", "b")),
        (tuple[int, ...] | None, [1, 2], None, (1, 2)),
        (float | tuple[float, float], [1, 2], None, (1.0, 2.0)),
        (dict[str, Any], {"a": 2.0}, None, {"a": 2.0}),
        (Annotated[list[int], TEN], [1, 2], None, [1, 2]),
        (tuple[Part, ...], [{"gb": 1}], None, (Part(1.0),)),
        (Mapping[str, Part], {"a": {"gb": 1}}, None, {"a": Part(1.0)}),
    ],
)
def test_values(kind: Any, value: Any, limits: Limits | None, expected: object) -> None:
    found = convert(kind, value, "here", UsageError, limits)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "limits", "message"),
    [
        (int, 2.5, None, "here: expected a whole number, got 2.5"),
        (int, True, TEN, "here: expected a whole number from 1 to 10, GB, got True"),
        (float, 11, TEN, "here: expected a number from 1 to 10, GB, got 11"),
        (float, float("nan"), None, "here: expected a number, got nan"),
        (float, float("inf"), TEN, "here: expected a number from 1 to 10, GB, got inf"),
        (float, 10**400, TEN, f"here: expected a number from 1 to 10, GB, got {'1' + '0' * 56}..."),
        (bool, 1, None, "here: expected true or false, got 1"),
        (str, "  ", None, "here: expected a text in quotes, got '  '"),
        (str, "a\x00b", None, r"here: expected a text in quotes, got 'a\x00b'"),
        (Literal["a", "b"], "c", None, """here: expected one of "a", "b", got 'c'"""),
        (tuple[int, ...], 3, None, "here: expected a list of whole numbers, got 3"),
        (tuple[int, ...], [], TEN, "here: expected a list of one or more whole numbers, got []"),
        (tuple[int, ...], [1, "x"], None, "here[2]: expected a whole number, got 'x'"),
        (tuple[tuple[float, float], ...], [[1, 2], [3]], None, "here[2]: expected a pair, got [3]"),
        (float | None, "x", None, "here: expected a number, got 'x'"),
        (
            tuple[str, ...],
            ["a", "\x1b[2J"],
            None,
            r"here[2]: expected a text in quotes, got '\x1b[2J'",
        ),
        (tuple[str, ...] | None, ["\x07"], None, r"here[1]: expected a text in quotes, got '\x07'"),
        (Mapping[str, str], {"a": "\x07"}, None, r"here.a: expected a text in quotes, got '\x07'"),
        (Mapping[str, str], {"\x07": "a"}, None, r"here: expected a text in quotes, got '\x07'"),
        (float | tuple[float, float], "x", None, "here: expected a number or a pair, got 'x'"),
        (Annotated[int, TEN], 0, None, "here: expected a whole number from 1 to 10, GB, got 0"),
        (
            tuple[Part, ...],
            [{"gb": 1}, {"mod": 1}],
            None,
            "here[2]: unknown key mod; expected: mode",
        ),
        (Mapping[str, Part], {"a": {}}, None, "here.a: gb is missing"),
        (Mapping[str, Part], {"a": {"gb": -1}}, None, "here.a: gb: expected 0 or more"),
        (Mapping[str, Any], [1], None, "here: expected a table, got [1]"),
    ],
)
def test_one_line_says_what_is_wrong(
    kind: Any, value: Any, limits: Limits | None, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        convert(kind, value, "here", UsageError, limits)
    assert str(error.value) == message


def test_a_section_is_checked_key_by_key() -> None:
    found = section(Part, {"gb": 2, "widths": [3]}, "f.toml", UsageError)
    assert found == Part(2.0, widths=(3,))
    bad = {
        "f.toml: gb is missing": {},
        "f.toml: unknown key mod; expected: mode": {"gb": 1, "mod": "fast"},
        "f.toml: unknown key zzz; expected: gb, mode, widths, room_gb": {"zzz": 1},
        "f.toml: gb: expected a number from 1 to 10, GB, got 0": {"gb": 0},
        "f.toml: expected a section, got 3": 3,
    }
    for message, table in bad.items():
        with pytest.raises(UsageError) as error:
            section(Part, table, "f.toml", UsageError, {"gb": TEN}.get)
        assert str(error.value) == message


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_whatever_comes_is_a_value_or_our_error(value: Any) -> None:
    for kind in (int, float, str, bool, tuple[int, ...], float | None, Literal["a"]):
        said = ""
        try:
            convert(kind, value, "here", UsageError, TEN)
        except UsageError as error:
            said = str(error)
        assert not said or said.startswith("here")
        assert "\n" not in said


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for content, message in (
        (b"a = ", "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"\xff", r"not a text file in UTF-8 \(byte 0\)"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read_toml(path, 100_000, UsageError)
    assert parse_value("[1, 2]") == [1, 2]
    assert parse_value("dgx-h100 ") == "dgx-h100"
    assert parse_value("9" * 5000) == "9" * 5000
    assert describe(float | None, TEN) == "a number from 1 to 10, GB"


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 200_000 + "=1",
        "[x]\n[" + "a." * 200_000 + "a]",
        "[[" + '"a" . ' * 200_000 + "a]]",
        "x = {y = 1, " + "'a'." * 200_000 + "a = 1}",
    ],
)
def test_keys_of_very_many_parts_are_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dots.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="nested too deeply"):
        read_toml(path, 4_000_000, UsageError)


def test_values_may_have_as_many_dots_as_they_like(tmp_path: Path) -> None:
    path = tmp_path / "dots.toml"
    path.write_text(f'a.b.c = "{"x." * 100}"\nd = [{", ".join(["0.1"] * 100)}]\n')
    assert read_toml(path, 10_000, UsageError)["a"]["b"]["c"] == "x." * 100
