"""Expansion: ops whose chosen signature communicates inside are written out in primitive ops."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from whaleish.boxing.volume import volume
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph, Op, Tensor, layout_bytes
from whaleish.mesh import Mesh
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.view import AxisView, Candidate, OuterAxis, choice_of, op_view
from whaleish.rules import registry
from whaleish.rules.rule import Fragment, Signature
from whaleish.sbp import B, Sbp, is_whole


def expand(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The same step with every expanding op replaced by its fragment; graph and plan are returned as they are if none.

    Each primitive takes, on each axis, the signature that its inputs' layouts make cheapest.
    """
    if not any(choice.expands for choice in plan.choices):
        return graph, plan
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
    writer = _Writer(result, plan.mesh)
    renamed: dict[int, int] = {}
    origin: list[int] = []
    places: list[int] = []
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        controls = tuple(places[c] for c in op.controls)
        if choice.expands:
            renamed |= writer.write(op, controls, _fragment(graph, index), choice)
        else:
            writer.copy(op, controls, choice)
        origin += [index] * (len(result.ops) - len(origin))
        places.append(len(result.ops) - 1)
    for op in result.ops:
        op.inputs = tuple(renamed.get(t, t) for t in op.inputs)
    result.outputs = tuple(renamed.get(t, t) for t in graph.outputs)
    result.effects = tuple(places[index] for index in graph.effects)
    result.source = lambda index: graph.source(origin[index])
    return result, replace(plan, choices=tuple(writer.choices))


def _fragment(graph: LogicalGraph, index: int) -> Fragment:
    view = op_view(graph, index)
    rule = registry.get(view.type)
    if rule is None or rule.expand is None:
        raise ValueError(f"the plan expands {view.type} {graph.ops[index].name!r}, whose rule has no fragment")
    return rule.expand(view)


class _Writer:
    """Appends ops and their choices to a graph.

    Attributes:
      choices: of the graph's ops.
    """

    def __init__(self, graph: LogicalGraph, mesh: Mesh) -> None:
        self.graph = graph
        self.choices: list[Choice] = []
        self._taken: list[list[Candidate]] = [[] for _ in mesh.axes]
        outer = [OuterAxis(axis, taken) for axis, taken in zip(mesh.axes, self._taken, strict=True)]
        cluster = Cluster(mesh.size)
        self._views = [AxisView(graph, axis, cluster, outer[:number]) for number, axis in enumerate(mesh.axes)]

    def copy(self, op: Op, controls: tuple[int, ...], choice: Choice) -> None:
        self.graph.ops.append(replace(op, controls=controls))
        for tensor in op.outputs:
            self.graph.tensors[tensor].producer = len(self.graph.ops) - 1
        self.choices.append(choice)
        for number, taken in enumerate(self._taken):
            inputs, outputs = (tuple(layout[number] for layout in layouts) for layouts in choice[:2])
            taken.append(Candidate(inputs, outputs, False, 0, 0.0))

    def write(self, op: Op, controls: tuple[int, ...], fragment: Fragment, choice: Choice) -> dict[int, int]:
        """Writes an op's fragment; returns old output tensor -> new one."""
        graph, values = self.graph, list(op.inputs)
        held: list[dict[int, list[Sbp]]] = [
            {tensor: [layout[number]] for tensor, layout in zip(op.inputs, choice.inputs, strict=True)}
            for number in range(len(self._views))
        ]
        for type, inputs, outputs, attrs in fragment.steps:
            made = len(graph.tensors)
            for slot, value in enumerate(outputs):
                spec = fragment.specs[value]
                graph.tensors.append(Tensor(len(graph.ops), slot, spec.shape, spec.dtype))
                if value in fragment.constants:
                    graph.constants[made + slot] = fragment.constants[value]
            results = tuple(range(made, len(graph.tensors)))
            values += results
            name, tensors = f"{op.name}/{type}", tuple(values[i] for i in inputs)
            graph.ops.append(
                Op(name, type, tensors, results, controls, attrs, op.phase, op.scope, region=op.region, again=op.again)
            )
            for number, layouts in enumerate(held):
                own = fragment if number in choice.expands else None
                taken = self._cheapest(number, layouts, own, outputs, self._runs_once(number, choice))
                self._taken[number].append(taken)
                for tensor, need in zip(tensors, taken.inputs, strict=True):
                    if need not in layouts[tensor]:
                        layouts[tensor].append(need)
                layouts |= {tensor: [sbp] for tensor, sbp in zip(results, taken.outputs, strict=True)}
            self.choices.append(choice_of([taken[-1] for taken in self._taken]))
        return {old: values[new] for old, new in zip(op.outputs, fragment.outputs, strict=True)}

    def _runs_once(self, axis: int, choice: Choice) -> bool:
        """Whether an op runs once, and not for each part, of an axis of time: so then does all that it is made of."""
        layouts = (*choice.inputs, *choice.outputs)
        return self._views[axis].axis.time and all(layout[axis].is_broadcast for layout in layouts)

    def _cheapest(
        self,
        axis: int,
        layouts: dict[int, list[Sbp]],
        fragment: Fragment | None,
        made: tuple[int, ...],
        once: bool,
    ) -> Candidate:
        """The signature of the last op that moves the fewest bytes on an axis, then computes the least.

        Args:
          fragment: what the op is a part of, where it expands on this axis: it may fix the layouts of what is made.
          once: whether only the whole op will do.
        """
        graph, view, index = self.graph, self._views[axis], len(self.graph.ops) - 1
        op, parts = graph.ops[index], view.axis.size
        best: tuple[float, float] = (inf, inf)
        taken = view.candidates(index)[0]
        for candidate in view.candidates(index):
            fixed = fragment is None or fragment.allows(made, Signature(candidate.inputs, candidate.outputs))
            if candidate.expands or not fixed:
                continue
            if once and not is_whole(candidate.inputs, candidate.outputs):
                continue
            moved = 0.0
            for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
                spec = graph.tensors[tensor]
                held = [B] if tensor in graph.constants else layouts[tensor]
                moved += min(volume(have, need, layout_bytes(spec.shape or (), spec.dtype), parts) for have in held)
            if (moved, candidate.seconds) < best:
                best, taken = (moved, candidate.seconds), candidate
        return taken
