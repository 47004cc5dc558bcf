"""Every rule, given any arguments: pieces, or `MissingArguments`; never another exception."""

from __future__ import annotations

import random

import pytest

from perfmodel.lowering.arguments import by_record
from perfmodel.lowering.piece import LEAF, LOWERINGS, WHOLE, MissingArguments, Piece
from perfmodel.ops.graph import Argument, Op, Tensor
from perfmodel.ops.operators import OPERATORS

RULES = {key: LOWERINGS[key] for key in LOWERINGS} | {
    f"any/{name}": by_record(OPERATORS[name]) for name in OPERATORS if OPERATORS[name].rows
}
CALLS = 400
ABOUT = {"lookups": "24", "hash_size": "100", "copy": "copy_h2d", "collective": "all_reduce"}


def operand(draw: random.Random) -> Tensor:
    shape = tuple(
        draw.choice((0, 1, 2, 3, 8, 17)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4)))
    )
    return Tensor(
        shape,
        draw.choice(("fp32", "fp16", "int64", "int32", "bool", "odd")),
        device=draw.choice(("", "", "cpu", "cuda:0")),
        layout=draw.choice(("", "", "", "sparse")),
    )


def argument(draw: random.Random, nested: bool = False) -> Argument:
    kind = draw.random()
    if kind < 0.5:
        return operand(draw)
    if kind < 0.85 or nested:
        return draw.choice((None, -3, -1, 0, 1, 2, 5, 100, True, False, 1.5, "", "mean"))
    return tuple(argument(draw, True) for _ in range(draw.choice((0, 1, 2, 3))))


def call(name: str, draw: random.Random) -> Op:
    given = tuple(argument(draw) for _ in range(draw.choice((0, 1, 2, 3, 4, 6, 9, 14))))
    made = tuple(argument(draw) for _ in range(draw.choice((0, 1, 2))))
    about = {key: value for key, value in ABOUT.items() if draw.random() < 0.2}
    return Op(name, given, made, attributes=about)


def answer(key: str, op: Op) -> list[Piece]:
    try:
        return list(RULES[key](op))
    except MissingArguments:
        return []


def keys_by_rule() -> dict[str, list[str]]:
    """The names that each rule answers for, under the first of them."""
    found: dict[object, list[str]] = {}
    for key in RULES:
        found.setdefault(RULES[key], []).append(key)
    return {keys[0]: keys for keys in found.values()}


@pytest.mark.parametrize(
    "keys", [pytest.param(keys, id=id_) for id_, keys in keys_by_rule().items()]
)
def test_rules_answer_or_say_that_they_cannot(keys: list[str]) -> None:
    draw = random.Random(keys[0])
    for key in keys * (1 + CALLS // len(keys)):
        name = key.split("/", 1)[1].removeprefix(LEAF).removeprefix(WHOLE).replace("*", "x")
        op = call(name, draw)
        assert all(isinstance(piece, Piece) for piece in answer(key, op)), op
