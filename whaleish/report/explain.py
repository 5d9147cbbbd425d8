"""`explain`: every layout change of a plan with its bytes and its line, and every op that nothing could divide."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.planner.moves import Move, find_moves, merged_moves
from whaleish.planner.plan import Plan
from whaleish.report.zero import whole_in_spite
from whaleish.rules import registry
from whaleish.rules.whole import REASONS
from whaleish.sbp import format_layout
from whaleish.tables import bytes_text

_ALWAYS_WHOLE = frozenset({"Placeholder", "Const", *REASONS})


def moved(graph: LogicalGraph, plan: Plan) -> list[Move]:
    """The boxings that send bytes, the largest first. `graph` and `plan` are the expanded ones."""
    moves = [*find_moves(graph, plan).values(), *merged_moves(graph, plan)]
    return sorted((m for m in moves if m.nbytes), key=lambda m: (-m.nbytes, m.tensor))


def without_rule(graph: LogicalGraph) -> list[int]:
    """Ops that run whole on every device because their type has no rule."""
    return [
        index
        for index, op in enumerate(graph.ops)
        if registry.get(op.type) is None and op.type not in _ALWAYS_WHOLE and not graph.is_constant(index)
    ]


def explain(graph: LogicalGraph, plan: Plan) -> str:
    """A text for people. `graph` and `plan` are the expanded ones."""
    moves = moved(graph, plan)
    total, devices = sum(m.nbytes for m in moves), len(plan.mesh.devices)
    lines = [
        f"mesh {plan.mesh.text()}, {len(graph.ops)} ops, {len(graph.variables)} variables "
        f"({sum(any(s.is_split for s in layout) for _, layout in plan.variables)} sharded)",
        f"{len(moves)} boxings send {bytes_text(total)} a step, {bytes_text(total / devices)} per device",
    ]
    lines += [f"  {move_text(graph, move, move.nbytes)}" for move in moves]
    lines += whole_lines(graph, "every device")
    lines += whole_in_spite(graph, plan)
    return "\n".join(lines) + "\n"


def move_text(graph: LogicalGraph, move: Move, nbytes: float) -> str:
    """A boxing that sends so many bytes."""
    tensor = graph.tensors[move.tensor]
    where = _place(graph, tensor.producer) or (_place(graph, move.reader) if move.reader >= 0 else "")
    most = ", at most: repeated rows are sent once" if move.at_most else ""
    return (
        f"{format_layout(move.source)} -> {format_layout(move.target)}  {bytes_text(nbytes):>10}  "
        f"{tensor_text(graph, move.tensor)}{where}{most}"
    )


def tensor_text(graph: LogicalGraph, tensor: int) -> str:
    """`float32[8, 4]  MatMul dense/MatMul`."""
    spec = graph.tensors[tensor]
    producer = graph.ops[spec.producer]
    return f"{spec.dtype}{list(spec.shape or ())}  {producer.type} {producer.name}"


def whole_lines(graph: LogicalGraph, where: str) -> list[str]:
    """The ops without a rule, and where they run whole."""
    whole = without_rule(graph)
    lines = [f"{len(whole)} ops run whole on {where} for want of a rule" + (":" if whole else "")]
    return lines + [f"  {graph.ops[index].type} {graph.ops[index].name}{_place(graph, index)}" for index in whole]


def _place(graph: LogicalGraph, op: int) -> str:
    source = graph.source(op)
    return f"  {source}" if source else ""
