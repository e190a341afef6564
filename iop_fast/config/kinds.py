"""Which of the two files a text is, by its keys."""

from __future__ import annotations

from typing import Literal

from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.tree import MapNode
from iop_fast.config.view import Spot

Kind = Literal["edge", "node"]


def guess_kind(root: MapNode) -> Kind:
    """Return the kind of file that has more of these keys; an Edge's where that does not decide.

    `edge` stands in both files and is told apart by `address`, which the Node's has alone.
    """
    of_edge = set(EdgeConfig.model_fields) - set(NodeConfig.model_fields)
    of_node = set(NodeConfig.model_fields) - set(EdgeConfig.model_fields)
    edge = Spot(root, ()).section("edge")
    for_node = len(of_node & root.entries.keys()) + (edge is not None and edge.has("address"))
    return "node" if for_node > len(of_edge & root.entries.keys()) else "edge"
