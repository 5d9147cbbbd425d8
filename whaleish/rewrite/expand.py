"""Expansion: ops whose chosen signature communicates inside are written out in primitive ops."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from whaleish.boxing.volume import volume
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph, Op, Tensor, layout_bytes
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.view import AxisView, Candidate, op_view
from whaleish.rules import registry
from whaleish.rules.rule import Fragment, Signature
from whaleish.sbp import B, Sbp


def expand(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The same step with every expanding op replaced by its fragment; graph and plan are returned as they are if none.

    Each primitive takes the signature that its inputs' layouts make cheapest.
    """
    if not any(choice.expands for choice in plan.choices):
        return graph, plan
    (axis,) = plan.mesh.axes
    result = LogicalGraph(
        ops=[],
        tensors=[replace(tensor) for tensor in graph.tensors],
        inputs=graph.inputs,
        outputs=graph.outputs,
        variables=graph.variables,
        constants=dict(graph.constants),
        scopes=graph.scopes,
        regions=graph.regions,
    )
    view = AxisView(result, axis, Cluster(axis.size))
    choices: list[Choice] = []
    renamed: dict[int, int] = {}
    origin: list[int] = []
    places: list[int] = []
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        controls = tuple(places[c] for c in op.controls)
        if choice.expands:
            held = dict(zip(op.inputs, choice.inputs, strict=True))
            fragment = _fragment(graph, index)
            renamed |= _write(result, view, op, controls, fragment, held, choices)
        else:
            result.ops.append(replace(op, controls=controls))
            for tensor in op.outputs:
                result.tensors[tensor].producer = len(result.ops) - 1
            choices.append(choice)
        origin += [index] * (len(result.ops) - len(origin))
        places.append(len(result.ops) - 1)
    for op in result.ops:
        op.inputs = tuple(renamed.get(t, t) for t in op.inputs)
    result.outputs = tuple(renamed.get(t, t) for t in graph.outputs)
    result.effects = tuple(places[index] for index in graph.effects)
    result.source = lambda index: graph.source(origin[index])
    return result, replace(plan, choices=tuple(choices))


def _fragment(graph: LogicalGraph, index: int) -> Fragment:
    view = op_view(graph, index)
    rule = registry.get(view.type)
    if rule is None or rule.expand is None:
        raise ValueError(f"the plan expands {view.type} {graph.ops[index].name!r}, whose rule has no fragment")
    return rule.expand(view)


def _write(
    result: LogicalGraph,
    view: AxisView,
    op: Op,
    controls: tuple[int, ...],
    fragment: Fragment,
    held: dict[int, tuple[Sbp, ...]],
    choices: list[Choice],
) -> dict[int, int]:
    """Appends a fragment's ops and their choices; returns old output tensor -> new one."""
    values = list(op.inputs)
    layouts: dict[int, list[Sbp]] = {tensor: [layout[0]] for tensor, layout in held.items()}
    for type, inputs, outputs, attrs in fragment.steps:
        made = len(result.tensors)
        for slot, value in enumerate(outputs):
            spec = fragment.specs[value]
            result.tensors.append(Tensor(len(result.ops), slot, spec.shape, spec.dtype))
            if value in fragment.constants:
                result.constants[made + slot] = fragment.constants[value]
        values += range(made, len(result.tensors))
        tensors = tuple(values[i] for i in inputs)
        result.ops.append(
            Op(
                f"{op.name}/{type}",
                type,
                tensors,
                tuple(range(made, len(result.tensors))),
                controls,
                attrs,
                op.phase,
                op.scope,
                region=op.region,
            )
        )
        taken = _cheapest(result, view, layouts, fragment, outputs)
        for tensor, need in zip(tensors, taken.inputs, strict=True):
            if need not in layouts[tensor]:
                layouts[tensor].append(need)
        for tensor, sbp in zip(result.ops[-1].outputs, taken.outputs, strict=True):
            layouts[tensor] = [sbp]
        choices.append(Choice(tuple((s,) for s in taken.inputs), tuple((s,) for s in taken.outputs)))
    return {old: values[new] for old, new in zip(op.outputs, fragment.outputs, strict=True)}


def _cheapest(
    graph: LogicalGraph, view: AxisView, layouts: dict[int, list[Sbp]], fragment: Fragment, made: tuple[int, ...]
) -> Candidate:
    """The allowed signature of the last op that moves the fewest bytes, then computes the least."""
    index = len(graph.ops) - 1
    op, parts = graph.ops[index], view.axis.size
    best: tuple[float, float] = (inf, inf)
    taken = view.candidates(index)[0]
    for candidate in view.candidates(index):
        if candidate.expands or not fragment.allows(made, Signature(candidate.inputs, candidate.outputs)):
            continue
        moved = 0.0
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            spec = graph.tensors[tensor]
            held = [B] if tensor in graph.constants else layouts[tensor]
            moved += min(volume(have, need, layout_bytes(spec.shape or (), spec.dtype), parts) for have in held)
        if (moved, candidate.seconds) < best:
            best, taken = (moved, candidate.seconds), candidate
    return taken
