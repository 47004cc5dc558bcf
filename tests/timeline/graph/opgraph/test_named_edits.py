"""Edits by their text, as `--edit` has them."""

from __future__ import annotations

import pytest
from opgraph_nodes import Et, tensor

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph


def _graph() -> OpGraph:
    """mm -> relu -> sigmoid."""
    et = Et()
    et.add("aten::mm", [tensor(1, 4, 4), tensor(2, 4, 4)], [tensor(3, 4, 4)])
    et.add("aten::relu", [tensor(3, 4, 4)], [tensor(4, 4, 4)])
    et.add("aten::sigmoid", [tensor(4, 4, 4)], [tensor(5, 4, 4)])
    return et.graph()


def _edited(*texts: str) -> tuple[list[str], list[str]]:
    (graph,), skipped = apply_edits([_graph()], map(NamedEdit.parse, texts))
    return [op.name for op in graph.ops], skipped


def test_edits_act_in_turn() -> None:
    names, skipped = _edited("remove=aten::mm", "remove=aten::relu")
    assert names == ["aten::sigmoid"]
    assert not skipped


def test_types_keep_the_optimizers_when_told_to() -> None:
    (whole,), _ = apply_edits([_graph()], [NamedEdit.parse("cast=bf16")])
    (kept,), skipped = apply_edits([_graph()], [NamedEdit.parse("cast=bf16,keep-optimizer")])
    assert {t.dtype for op in whole.ops for t in op.tensors} == {"bf16"}
    assert kept.ops == whole.ops
    assert skipped == [
        "cast=bf16,keep-optimizer: no op casts between the optimizer's types and the model's"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("melt=x", "unknown edit 'melt'; one of cast=DTYPE"),
        ("cast", "expected cast=DTYPE"),
        ("remove=", "expected remove=PATTERN"),
        ("cast=fp12", "fp64, fp32, fp16, bf16, fp8, int8"),
        ("cast=bf16,keep", "expected cast=DTYPE"),
        ("cuda-graphs=1", "expected cuda-graphs"),
    ],
)
def test_what_is_no_edit_says_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        NamedEdit.parse(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value)


def test_an_edit_that_changes_nothing_is_an_error_unless_it_may() -> None:
    edit = NamedEdit.parse("remove=aten::gelu")
    with pytest.raises(WorkloadError, match=r"changes nothing: no op is called aten::gelu"):
        apply_edits([_graph()], [edit])
    (same,), skipped = apply_edits([_graph()], [edit], must_change=False)
    assert len(same) == 3
    assert skipped == ["remove=aten::gelu: no op is called aten::gelu"]
