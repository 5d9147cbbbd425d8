"""The search: the cheapest layouts that do what the scopes ask.

The ops are visited in order with a beam of states. A state holds the layouts of the tensors that later ops still read;
two states with equal layouts merge into the cheaper one, so as long as the beam is wide enough this is a dynamic
program over the frontier of the graph (the idea of SoyBean's one-cut algorithm, Wang et al., 2018, with the frontier of
a topological order in place of breadth-first levels). States branch only where the user asked for `split`; elsewhere
the cheapest signature is taken.

Forward boxings are charged together with the ones that the backward pass will need for the gradient of the same
tensor, which has the dual layout. That is why two stacked products come out column-split, then row-split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from whaleish.boxing.volume import volume
from whaleish.cluster import Cluster
from whaleish.graph import BACKWARD, FORWARD, UPDATE, LogicalGraph, Tensor, layout_bytes
from whaleish.mesh import Axis
from whaleish.planner.mates import find_mates
from whaleish.planner.partial import settle_partials
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.roles import SPLIT, PlanError, Role, find_roles
from whaleish.planner.view import AxisView, Candidate
from whaleish.sbp import B, Layout, S, Sbp, dual

BEAM = 24
_LOOK_AHEAD = 8  # tensors to follow, to see what a broadcast or a random tensor is for
_INFINITE = float("inf")
_PRODUCTS = frozenset(
    [
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        "Conv2D",
        "Conv3D",
        "DepthwiseConv2dNative",
        "GatherV2",
        "ResourceGather",
    ]
)
_CARRIERS = frozenset(["ReadVariableOp", "Cast", "Identity", "Reshape", "Transpose"])


def make_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    *,
    fingerprint: str = "0",
    inputs: tuple[Layout, ...] | None = None,
    variables: Mapping[str, Layout] | None = None,
) -> Plan:
    """Plans a captured step for the devices of a cluster.

    Args:
      graph: the step.
      cluster: how many devices, and how fast.
      fingerprint: identifies the graph in the plan.
      inputs: layout in which each argument arrives; the default is B, every process is given the whole batch.
      variables: layouts that variables have already and keep.

    Raises:
      PlanError: the scopes cannot be satisfied; names the scope or op, and what to do.
    """
    mesh, roles = find_roles(graph, cluster.size)
    (axis,) = mesh.axes
    arrivals = [layout[0] for layout in inputs] if inputs else [B] * len(graph.inputs)
    view = AxisView(graph, axis, cluster)
    fixed = {v.handle: variables[v.name][0] for v in graph.variables if variables and v.name in variables}
    search = Search(graph, view, roles, dict(zip(graph.inputs, arrivals, strict=True)), fixed)
    candidates = settle_partials(view, search.run(), set(graph.outputs))
    layouts = search.layouts
    return Plan(
        mesh=mesh,
        graph=fingerprint,
        inputs=tuple((sbp,) for sbp in arrivals),
        outputs=tuple((B,) for _ in graph.outputs),
        variables=tuple((v.name, (layouts.get(v.handle, B),)) for v in graph.variables),
        choices=tuple(
            Choice(tuple((s,) for s in c.inputs), tuple((s,) for s in c.outputs), c.expands) for c in candidates
        ),
    )


@dataclass(slots=True)
class _State:
    """One way to have carried out the ops so far.

    Attributes:
      held: tensor -> layouts in which it exists, the one it was made in first.
      trail: the candidates taken, newest first, as a linked list.
    """

    cost: float = 0.0
    held: dict[int, tuple[Sbp, ...]] = field(default_factory=dict)
    trail: tuple[Candidate, object] | None = None


class Search:
    """One run of the search over one axis."""

    def __init__(
        self, graph: LogicalGraph, view: AxisView, roles: list[Role], arrivals: dict[int, Sbp], fixed: dict[int, Sbp]
    ) -> None:
        self.graph, self.view, self.roles = graph, view, roles
        self.axis: Axis = view.axis
        self.arrivals, self.fixed = arrivals, fixed
        self.layouts: dict[int, Sbp] = {}
        self.nbytes = [layout_bytes(t.shape or (), t.dtype) for t in graph.tensors]
        self.handles = {v.handle for v in graph.variables}
        self.nbytes_of = {v.handle: layout_bytes(v.shape, v.dtype) for v in graph.variables}
        self.weights, self.differentiable = self._dependents()
        self.has_backward = any(op.phase == BACKWARD for op in graph.ops)
        self.argument_like = self._argument_like()
        self.batches = {(graph.tensors[t].shape or (0,))[0] for t in graph.inputs} - {0}
        self.splittable = self._splittable()
        self.mates = {handle: group for group in find_mates(graph) for handle in group}
        self.last_use = self._last_uses()
        self.last_read = self._last_reads()
        self.readers = graph.consumers()

    def run(self) -> list[Candidate]:
        """The candidate taken for each op; fills `layouts` with those of the variables' handles."""
        beam = [_State(held={handle: (sbp,) for handle, sbp in self.fixed.items()})]
        for index in range(len(self.graph.ops)):
            beam = self._advance(index, beam)
        best = min(beam, key=lambda state: state.cost)
        self.layouts = {handle: best.held[handle][0] for handle in self.handles if handle in best.held}
        taken: list[Candidate] = []
        trail = best.trail
        while trail is not None:
            taken.append(trail[0])
            trail = trail[1]  # type: ignore[assignment]
        return taken[::-1]

    def _advance(self, index: int, beam: list[_State]) -> list[_State]:
        branches = self._branches(index)
        merged: dict[object, _State] = {}
        for state in beam:
            options = self._options(index, state)
            if options and not branches:  # what moves least, then what computes least
                options = [min(options, key=lambda option: option[:2])]
            for number, (moving, computing, candidate) in enumerate(options):
                held = state.held if number == len(options) - 1 else dict(state.held)
                self._take(index, candidate, held)
                successor = _State(state.cost + moving + computing, held, (candidate, state.trail))
                key = self._frontier(index, held) if branches or len(beam) > 1 else None
                if key not in merged or successor.cost < merged[key].cost:
                    merged[key] = successor
        if not merged:
            raise self._unsatisfied(index)
        return sorted(merged.values(), key=lambda state: state.cost)[:BEAM]

    def _frontier(self, index: int, held: dict[int, tuple[Sbp, ...]]) -> frozenset[object]:
        """What later forward ops can tell states apart by."""
        return frozenset(
            item for item in held.items() if item[0] not in self.handles or self.last_read[item[0]] > index
        )

    def _take(self, index: int, candidate: Candidate, held: dict[int, tuple[Sbp, ...]]) -> None:
        op = self.graph.ops[index]
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            layouts = held.get(tensor, ())
            if need not in layouts:
                held[tensor] = (*layouts, need)
        for tensor, made in zip(op.outputs, candidate.outputs, strict=True):
            if tensor not in self.handles:
                held[tensor] = (made,)
        for tensor in (*op.inputs, *op.outputs):
            if self.last_use[tensor] <= index and tensor not in self.handles:
                held.pop(tensor, None)

    def _options(self, index: int, state: _State) -> list[tuple[float, float, Candidate]]:
        """(seconds of moving, seconds of computing, candidate) of everything that op `index` may do in a state."""
        op = self.graph.ops[index]
        if op.type == "Placeholder":
            return [(0.0, 0.0, Candidate((), (self.arrivals.get(op.outputs[0], B),), False, 0, 0.0))]
        found = []
        wanted = self._wanted(index, state)
        for candidate in self._with_units(index, state):
            if wanted is not None and any(sbp.is_split and sbp != wanted for sbp in candidate.outputs):
                continue
            if not self._allowed(index, candidate, state) or not self._natural(index, candidate, state):
                continue
            moving = 0.0
            if candidate.inner_bytes and self.roles[op.scope].kind != SPLIT:
                moved = 2 * (self.axis.size - 1) * candidate.inner_bytes
                moving += self.view.cluster.boxing_seconds(moved, self.axis.size)
            for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
                moving += self._boxing(tensor, need, state, op.phase)
            if moving < _INFINITE:
                found.append((moving, candidate.seconds, candidate))
        return found

    def _wanted(self, index: int, state: _State) -> Sbp | None:
        """The split that an op which reads only whole or partial tensors may leave its result in; B: none; None: any.

        Cutting is free, but what is cut must mostly be gathered again: statistics, seeds, whole weights and their
        slots stay whole. The step's arguments may be cut at once. A sum that ends here, and what an op makes much of
        from little (random numbers, broadcasts), is cut as what it will be combined with.
        """
        op, tensors = self.graph.ops[index], self.graph.tensors
        if self._branches(index) or any(t in self.handles for t in op.inputs):
            return None
        inputs = [t for t in op.inputs if t not in self.graph.constants]
        replica = self.roles[op.scope].kind != SPLIT
        if any((replica and t in self.argument_like) or any(s.is_split for s in state.held[t]) for t in inputs):
            return None
        sums = any(B not in state.held[t] for t in inputs)
        largest = max((_size(tensors[t]) for t in op.inputs), default=0)
        if op.phase == UPDATE or len(op.outputs) != 1 or not (sums or _size(tensors[op.outputs[0]]) > largest):
            return B
        partner = self._partner(op.outputs[0], state)
        along_batch = sums and replica and (tensors[op.outputs[0]].shape or (0,))[0] in self.batches
        return S(0) if partner == B and along_batch else partner

    def _partner(self, tensor: int, state: _State) -> Sbp:
        """The split of what a tensor, or what follows from it in the same shape, is combined with; B for none."""
        shape, reached = self.graph.tensors[tensor].shape, [tensor]
        for current in reached:
            for reader in self.readers[current]:
                op = self.graph.ops[reader]
                for other in op.inputs:
                    held = state.held.get(other)
                    if held and held[0].is_split and self.graph.tensors[other].shape == shape:
                        return held[0]
                reached += [t for t in op.outputs if self.graph.tensors[t].shape == shape and t not in reached]
            if len(reached) > _LOOK_AHEAD:
                break
        return B

    def _with_units(self, index: int, state: _State) -> list[Candidate]:
        """The op's candidates, and those scaled to inputs that are split on multiples of larger units."""
        found = list(self.view.candidates(index))
        for candidate in found[:]:
            for position, tensor in enumerate(self.graph.ops[index].inputs):
                need = candidate.inputs[position]
                for have in state.held.get(tensor, ()):
                    if need.is_split and have.is_split and have.dim == need.dim and have.unit != need.unit:
                        scaled = self.view.scaled(index, candidate, position, have.unit)
                        if scaled is not None and scaled not in found:
                            found.append(scaled)
        return found

    def _boxing(self, tensor: int, need: Sbp, state: _State, phase: str) -> float:
        if tensor in self.handles:
            return self._handle_cost(tensor, need, state)
        held = state.held[tensor]
        if need in held:
            return 0.0
        parts, nbytes = self.axis.size, self.nbytes[tensor]
        moved = min(volume(have, need, nbytes, parts) for have in held)
        if phase == FORWARD and self.has_backward and tensor in self.differentiable:
            moved += volume(dual(need), dual(held[0]), nbytes, parts)
        return self.view.cluster.boxing_seconds(moved, parts) if moved < _INFINITE else _INFINITE

    def _handle_cost(self, handle: int, need: Sbp, state: _State) -> float:
        """A variable has one layout, free to choose at its first use."""
        if handle in state.held:
            return 0.0 if state.held[handle][0] == need else _INFINITE
        if handle in self.splittable:
            # The gradient of a whole weight that parts use is a partial sum, and must be reduced.
            reduced = 2 * (self.axis.size - 1) * self.nbytes_of[handle] if need == B and self.has_backward else 0.0
            return _INFINITE if need.is_partial else self.view.cluster.boxing_seconds(reduced, self.axis.size)
        mates = [state.held[mate][0] for mate in self.mates.get(handle, ()) if mate in state.held]
        return 0.0 if need == (mates[0] if mates else B) else _INFINITE

    def _allowed(self, index: int, candidate: Candidate, state: _State) -> bool:
        """Whether a candidate does with the op's weights what its scope asks."""
        op = self.graph.ops[index]
        if op.type not in _PRODUCTS or op.phase != FORWARD or self.axis.size == 1:
            return True
        role = self.roles[op.scope]
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            if tensor not in self.weights:
                continue
            if role.kind != SPLIT:
                if need != B and tensor not in self.splittable:
                    return False
                continue
            shape = self.graph.tensors[tensor].shape or ()
            if len(shape) < 2:
                continue
            if not need.is_split or shape[need.dim] < self.axis.size:
                return False
            if tensor not in self.handles and need not in state.held[tensor]:
                return False  # sharded where it is stored, not cut from a whole one
            if role.dim is not None and need.dim != role.dim % len(shape):
                return False
        return True

    def _natural(self, index: int, candidate: Candidate, state: _State) -> bool:
        """Whether a candidate does not cut in a way that is cheap at once and dear later.

        Sums stay partial while they do not grow; what is whole is made into summands only to meet some, what is cut
        never. Under `replica` the step's arguments are cut along the batch.
        """
        op, sizes = self.graph.ops[index], [_size(self.graph.tensors[t]) for t in self.graph.ops[index].inputs]
        replica, summands = self.roles[op.scope].kind != SPLIT, []
        for tensor, need, size in zip(op.inputs, candidate.inputs, sizes, strict=True):
            if need.is_partial and tensor not in self.handles:
                held = state.held[tensor][0]
                if held.is_split:
                    return False
                summands += [size] if held.is_partial else []
            if replica and need.is_split and need.dim and tensor in self.argument_like and state.held[tensor][0] == B:
                return False
        if not any(sbp.is_partial for sbp in candidate.inputs):
            return True
        made = max((_size(self.graph.tensors[t]) for t in op.outputs), default=0)
        return bool(summands) and max(summands) >= made

    def _branches(self, index: int) -> bool:
        """Whether an op is where the ways to satisfy a `split` scope part: the use of a weight that may be sharded."""
        op = self.graph.ops[index]
        if op.phase != FORWARD:
            return False
        asked = op.type in _PRODUCTS and self.roles[op.scope].kind == SPLIT
        return asked or any(t in self.splittable for t in op.inputs)

    def _dependents(self) -> tuple[set[int], set[int]]:
        """Tensors that are weights (a variable read, cast or reshaped), and those that have a gradient."""
        trainable = {v.handle for v in self.graph.variables if v.trainable}
        weights, differentiable = set(self.handles), set(trainable)
        for op in self.graph.ops:
            floats = [t for t in op.outputs if self.graph.tensors[t].dtype.startswith(("float", "bfloat", "complex"))]
            if any(t in differentiable for t in op.inputs):
                differentiable.update(floats)
            if op.type in _CARRIERS and op.inputs and op.inputs[0] in weights:
                weights.update(op.outputs)
        return weights, differentiable

    def _argument_like(self) -> set[int]:
        """Tensors made of the step's arguments and constants alone."""
        found = set(self.graph.inputs)
        for op in self.graph.ops:
            inputs = [t for t in op.inputs if t not in self.graph.constants]
            if inputs and all(t in found for t in inputs):
                found.update(op.outputs)
        return found

    def _splittable(self) -> set[int]:
        """Handles of variables that a `split` scope reads and that every reader has a rule for."""
        from whaleish.rules import registry

        floats = {v.handle for v in self.graph.variables if v.dtype.startswith(("float", "bfloat", "complex"))}
        wanted, whole = set(), set()
        for op in self.graph.ops:
            for tensor in op.inputs:
                if tensor in floats:
                    if self.roles[op.scope].kind == SPLIT and op.phase == FORWARD:
                        wanted.add(tensor)
                    if registry.get(op.type) is None:
                        whole.add(tensor)
        return wanted - whole

    def _last_uses(self) -> list[int]:
        last = [-1] * len(self.graph.tensors)
        for index, op in enumerate(self.graph.ops):
            for tensor in (*op.inputs, *op.outputs):
                last[tensor] = index
        for tensor in self.graph.outputs:
            last[tensor] = len(self.graph.ops)
        return last

    def _last_reads(self) -> dict[int, int]:
        """Handle -> the last forward op that uses it; -1 for none."""
        last = dict.fromkeys(self.handles, -1)
        for index, op in enumerate(self.graph.ops):
            if op.phase == FORWARD:
                last.update((tensor, index) for tensor in op.inputs if tensor in self.handles)
        return last

    def _unsatisfied(self, index: int) -> PlanError:
        op, source = self.graph.ops[index], self.graph.source(index)
        shapes = [self.graph.tensors[t].shape for t in op.inputs if t in self.weights]
        place = f" at {source}" if source else ""
        role = self.roles[op.scope]
        pinned = f", dim={role.dim}" if role.dim is not None else ""
        return PlanError(
            f"split() cannot shard {op.type} {op.name!r}{place} over {self.axis.size} devices: its weight has shape "
            f"{', '.join(map(str, shapes))}{pinned}, and a dim that is split must have at least {self.axis.size} "
            "elements and a rule. Use fewer devices, another dim, or put it under replica()"
        )


def _size(tensor: Tensor) -> int:
    return prod(tensor.shape or ())
