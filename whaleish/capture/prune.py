"""Which ops must run, and the graph without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from whaleish.capture import tf_private
from whaleish.graph import LogicalGraph, Op
from whaleish.rules.control import CONDITION, CONTROL, LOOP, LOOP_VARIABLE, NEXT_VALUE

# Ops that TensorFlow calls stateful but that leave nothing behind: unread, they need not run.
_SEES_ONLY_TEXT = """
Placeholder ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp VarHandleOp
LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2 LookupTableExport LookupTableExportV2
RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomShuffle RandomGamma RandomPoissonV2
Multinomial ParameterizedTruncatedNormal StatelessRandomGetAlg
"""
_SEES_ONLY = frozenset(_SEES_ONLY_TEXT.split())


def find_effects(graph: LogicalGraph) -> None:
    """Narrows `graph.effects` from the ops that the function runs to those that leave something behind."""
    needed = _ancestors(graph, [*graph.effects, *(graph.tensors[tensor].producer for tensor in graph.outputs)])
    graph.effects = tuple(number for number in needed if has_effect(graph.ops[number].type))


def has_effect(op_type: str) -> bool:
    """Whether an op does more than making its outputs."""
    return op_type not in _SEES_ONLY and op_type not in CONTROL and tf_private.is_stateful(op_type)


def prune(graph: LogicalGraph) -> None:
    """Removes, in place, the ops that neither outputs nor effects need; inputs and variables stay, read or not."""
    handles = (variable.handle for variable in graph.variables)
    roots = [graph.tensors[tensor].producer for tensor in (*graph.outputs, *graph.inputs, *handles)]
    kept = _ancestors(graph, [*roots, *graph.effects])
    place = {number: position for position, number in enumerate(kept)}
    ops = [graph.ops[number] for number in kept]
    rename = {tensor: position for position, tensor in enumerate(t for op in ops for t in op.outputs)}

    def moved(tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple(rename[tensor] for tensor in tensors)

    graph.tensors = [
        replace(graph.tensors[tensor], producer=position) for position, op in enumerate(ops) for tensor in op.outputs
    ]
    for op in ops:
        _move(op, moved, place)
    graph.ops = ops
    graph.inputs, graph.outputs = moved(graph.inputs), moved(graph.outputs)
    graph.variables = tuple(replace(variable, handle=rename[variable.handle]) for variable in graph.variables)
    graph.constants = {rename[tensor]: value for tensor, value in graph.constants.items() if tensor in rename}
    graph.effects = tuple(place[number] for number in graph.effects)


def _move(op: Op, moved, place: dict[int, int]) -> None:
    op.inputs, op.outputs = moved(op.inputs), moved(op.outputs)
    op.controls = tuple(place[control] for control in op.controls)


def _behind(graph: LogicalGraph) -> Callable[[Op], Iterable[int]]:
    """For an op, the later ops that it needs."""
    anchors: dict[int, int] = {}
    nexts: dict[tuple[int, int], int] = {}
    for number, op in enumerate(graph.ops):
        if op.type in (CONDITION, LOOP):
            anchors.update(dict.fromkeys(op.attrs["regions"], number))
        elif op.type == NEXT_VALUE:
            nexts[op.region, op.attrs["variable"]] = number

    def behind(op: Op) -> Iterator[int]:
        if op.region:
            yield anchors[op.region]
        if op.type == LOOP_VARIABLE:
            yield nexts[op.region, op.attrs["variable"]]

    return behind


def _ancestors(graph: LogicalGraph, roots: Iterable[int]) -> list[int]:
    """The roots and all that they wait for, in the order of the graph.

    What is in a body needs what runs the body, and the variable of a loop needs the value that it takes next.
    """
    behind = _behind(graph)
    found = set(roots)
    todo = list(found)
    while todo:
        op = graph.ops[todo.pop()]
        producers = (graph.tensors[tensor].producer for tensor in op.inputs)
        for earlier in (*op.controls, *producers, *behind(op)):
            if earlier not in found:
                found.add(earlier)
                todo.append(earlier)
    return sorted(found)
