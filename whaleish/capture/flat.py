"""A traced step as one flat list of nodes, between TensorFlow's graph and the logical graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from whaleish.graph import Region, Scope


@dataclass(frozen=True)
class ScopeKey:
    """One entering of a scope: the call (0: none) in whose body it stands, and its number there."""

    scope: Scope
    call: int


@dataclass
class Flat:
    """Nodes in a topological order that keeps the order of creation, without function calls and bodies.

    Attributes:
      nodes: owned by this object; names are unique.
      operations: node name -> operation, from which shapes and dtypes are read.
      inputs: names of the placeholder nodes, in the order of the function's inputs.
      outputs: tensor names ("node:0"), in the order of the function's outputs.
      roots: nodes that the function runs whether or not something reads them.
      library: functions that remaining nodes refer to.
      regions: the step and the bodies of its loops and conditions; region_of: node name -> number of its body.
      scopes: node name -> scopes of the calls round it; calls: node name -> number of the innermost of them, from 1;
        both for nodes that came out of calls.
      backward: names of nodes that came out of the backward function of a call.
      origins: node name -> (library function, node name there), for nodes that came out of calls.
    """

    nodes: list[tf.compat.v1.NodeDef]
    operations: dict[str, tf.Operation]
    inputs: list[str]
    outputs: list[str]
    roots: list[str]
    library: tf.compat.v1.GraphDef
    regions: list[Region] = field(default_factory=lambda: [Region()])
    region_of: dict[str, int] = field(default_factory=dict)
    scopes: dict[str, tuple[ScopeKey, ...]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    backward: set[str] = field(default_factory=set)
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)


def flat_of(graph: tf.Graph) -> Flat:
    """The nodes of a traced function, calls and all."""
    definition = graph.as_graph_def()
    return Flat(
        nodes=in_order(definition.node),
        operations={op.name: op for op in graph.get_operations()},
        inputs=[tensor.op.name for tensor in graph.inputs],
        outputs=[tensor.name for tensor in graph.outputs],
        roots=[op.name for op in graph.control_outputs],
        library=definition,
    )


def in_order(nodes: Sequence[tf.compat.v1.NodeDef]) -> list[tf.compat.v1.NodeDef]:
    """The nodes so that each comes after those it waits for, and else in the given order.

    TensorFlow's own order is nearly that, but automatic control dependencies may point backwards. Inputs that are not
    among the nodes (arguments of a function's body) are there from the start.
    """
    place = {node.name: number for number, node in enumerate(nodes)}
    waits = [{place[node_of(text)] for text in node.input if node_of(text) in place} for node in nodes]
    done = [False] * len(nodes)
    order: list[int] = []
    for number in range(len(nodes)):
        todo = [number]
        while todo:
            last = todo[-1]
            missing = [] if done[last] else sorted(wait for wait in waits[last] if not done[wait])
            if missing:
                todo += missing[::-1]
                continue
            todo.pop()
            if not done[last]:
                done[last] = True
                order.append(last)
    return [nodes[number] for number in order]


def node_of(text: str) -> str:
    """The node that an input names: "node", "node:1" or "^node"."""
    return text.lstrip("^").partition(":")[0]
