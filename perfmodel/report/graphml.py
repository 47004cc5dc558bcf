"""The execution graph as GraphML, for yEd, Gephi, Cytoscape and networkx."""

from __future__ import annotations

import re
from io import BytesIO

from perfmodel.graph.types import ExecutionGraph

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def graphml(graph: ExecutionGraph) -> bytes:
    """The graph as a GraphML document in UTF-8, node and edge attributes as in `to_networkx`.

    Characters that XML cannot hold become U+FFFD. The same graph gives the same bytes.
    """
    import networkx as nx

    network = graph.to_networkx()
    for _, attributes in network.nodes(data=True):
        attributes["label"] = _NOT_IN_XML.sub("\ufffd", str(attributes["label"]))
    content = BytesIO()
    nx.write_graphml_xml(network, content, encoding="utf-8")
    return content.getvalue()
