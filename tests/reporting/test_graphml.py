"""GraphML that XML readers and networkx take."""

from io import BytesIO
from xml.etree import ElementTree

import networkx as nx
import pytest
from reporting.handmade import KERNEL, graph, relabelled

from perfmodel.reporting.perfetto import graphml


def test_networkx_reads_back_what_was_written() -> None:
    content = graphml(graph())
    assert content == graphml(graph())
    found = nx.read_graphml(BytesIO(content), node_type=int)
    assert found.number_of_nodes() == 7
    assert found.number_of_edges() == 7
    assert found.nodes[3]["label"] == KERNEL
    assert found.nodes[3]["duration_us"] == 10.0
    assert found.edges[1, 3]["kind"] == "launch"
    assert found.edges[1, 3]["lag_us"] == 2.0


def test_names_are_escaped() -> None:
    assert b"<script>" not in graphml(graph())


@pytest.mark.parametrize("label", ["a\x00b", "a\x1bb", "a\uffffb"])
def test_what_xml_cannot_hold_is_replaced(label: str) -> None:
    found = nx.read_graphml(BytesIO(graphml(relabelled(label))), node_type=int)
    assert found.nodes[3]["label"] == "a\ufffdb"
    ElementTree.fromstring(graphml(relabelled("tab\tand <&>\"'")))
