"""The verbs answer what they answered when `python tests/golden --update` was run last."""

from __future__ import annotations

import pytest
from golden.answers import ANSWERS, STORED, answer, differences, short, stored


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_stored(name: str) -> None:
    found = list(differences(stored(name), answer(name)))
    assert not found, "\n".join([*found[:20], "meant? python tests/golden --update answers"])


def test_every_stored_file_is_of_a_verb() -> None:
    assert {path.stem for path in STORED.glob("*.json")} == set(ANSWERS)


def test_long_lists_and_floats_are_cut_short() -> None:
    cut = {"length": 7, "items": [0, 6]}
    assert short({"a": 1.23456789, "b": list(range(7)), "c": [1]}) == {
        "a": 1.23457,
        "b": cut,
        "c": [1],
    }


def test_differences_name_the_place() -> None:
    was = {"a": [1.0, {"b": 2}], "c": True, "gone": 1}
    assert not list(differences(was, {"a": [1.000001, {"b": 2}], "c": True, "gone": 1}))
    assert list(differences(was, {"a": [1.1, {"b": "2"}], "c": 1})) == [
        "a[0]: 1.0 -> 1.1",
        'a[1].b: 2 -> "2"',
        "c: true -> 1",
        "gone: 1 -> null",
    ]
