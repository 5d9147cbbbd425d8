"""Making a plan: the meshes and stages that the scopes imply, and on each mesh one axis after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from whaleish.cluster import Cluster
from whaleish.collector import collector_paused
from whaleish.graph import LogicalGraph
from whaleish.mesh import Mesh
from whaleish.planner.carried import Carried
from whaleish.planner.facts import Facts
from whaleish.planner.gathering import gather_inputs
from whaleish.planner.micro import needed_whole, out_of_turn, sums_across
from whaleish.planner.partial import settle_partials
from whaleish.planner.pins import pinned_layouts
from whaleish.planner.placement import place_ops
from whaleish.planner.plan import Choice, Pipelining, Plan
from whaleish.planner.roles import find_roles
from whaleish.planner.search import Search
from whaleish.planner.stages import find_stages
from whaleish.planner.view import AxisView, Candidate, OuterAxis, choice_of, made_layouts
from whaleish.planner.zero import Zero
from whaleish.rules.gradient import GRADIENT
from whaleish.sbp import B, Layout, Sbp


@collector_paused()
def make_plan(
    graph: LogicalGraph,
    cluster: Cluster,
    *,
    fingerprint: str = "0",
    inputs: tuple[Layout, ...] | None = None,
    variables: Mapping[str, tuple[Layout, Mesh | None]] | None = None,
) -> Plan:
    """Plans a captured step for the devices of a cluster.

    One mesh axis is planned after the other, outer to inner, each on the parts that the axes before it leave (so does
    SoyBean, Wang et al., 2018, which cuts in two again and again).

    Args:
      graph: the step.
      cluster: how many devices, and how fast.
      fingerprint: identifies the graph in the plan.
      inputs: layout in which each argument arrives, over all devices as one axis; the default is B, every process is
        given the whole batch.
      variables: layouts and meshes that variables have already; where the mesh is the plan's, and every op that uses
        them has a rule, they keep them.

    Raises:
      PlanError: the scopes cannot be satisfied; names the scope or op, and what to do.
    """
    arrivals = inputs or ((B,),) * len(graph.inputs)
    stages = find_stages(graph, cluster.size)
    if stages is None:
        planned = _plan_mesh(graph, cluster, arrivals, variables or {}, lambda mesh, _: mesh)
        mesh, pipelining, choices = planned.mesh, None, planned.choices
        stored = [planned.layouts[v.handle] for v in graph.variables]
    else:
        stage_of = place_ops(graph, stages)
        home = {v.handle: stage_of[graph.tensors[v.handle].producer] for v in graph.variables}

        def mesh_of(mesh: Mesh, handle: int) -> Mesh:
            return stages.mesh(home[handle], mesh)

        # A plan for each number of devices that a stage has; every op takes the one of its stage.
        by_size = {
            size: _plan_mesh(graph, replace(cluster, size=size), (), variables or {}, mesh_of, stage_of)
            for size in sorted({len(devices) for devices in stages.devices})
        }
        own = [by_size[len(devices)] for devices in stages.devices]
        meshes = tuple(stages.mesh(number, planned.mesh) for number, planned in enumerate(own))
        mesh, pipelining = meshes[0], Pipelining(meshes, stage_of, stages.schedule, stages.recompute)
        choices = tuple(own[stage].choices[index] for index, stage in enumerate(stage_of))
        stored = [own[home[v.handle]].layouts[v.handle] for v in graph.variables]
    return Plan(
        mesh=mesh,
        graph=fingerprint,
        inputs=arrivals,
        outputs=tuple((B,) * len(mesh.axes) for _ in graph.outputs),
        variables=tuple((v.name, layout) for v, layout in zip(graph.variables, stored, strict=True)),
        choices=choices,
        pipelining=pipelining,
    )


class _Planned(NamedTuple):
    """A plan on one mesh: the choices of the ops, and the layouts of the variables by their handles."""

    mesh: Mesh
    choices: tuple[Choice, ...]
    layouts: dict[int, Layout]


def _plan_mesh(
    graph: LogicalGraph,
    cluster: Cluster,
    arrivals: tuple[Layout, ...],
    variables: Mapping[str, tuple[Layout, Mesh | None]],
    mesh_of: Callable[[Mesh, int], Mesh],
    stage_of: Sequence[int] = (),
) -> _Planned:
    """Plans a step on as many devices as a cluster has.

    Args:
      arrivals: the layouts of the step's inputs; () if they arrive whole.
      mesh_of: from the mesh and a variable's handle to where the variable is.
      stage_of: the stage of each op, if there are stages.
    """
    mesh, roles = find_roles(graph, cluster.size)
    stored = {
        v.handle: mesh.at_all_times(variables[v.name][0])
        for v in graph.variables
        if v.name in variables and variables[v.name][1] == mesh_of(mesh, v.handle).in_space
    }
    pinned = {tensor: mesh.at_all_times(layout) for tensor, layout in pinned_layouts(graph, mesh.in_space).items()}
    stored |= {v.handle: pinned[v.handle] for v in graph.variables if v.handle in pinned}
    outer: list[OuterAxis] = []
    handles: list[dict[int, Sbp]] = []
    for number, axis in enumerate(mesh.axes):
        view = AxisView(graph, axis, cluster, outer)
        own = {} if axis.time else {tensor: layout[number] for tensor, layout in pinned.items()}
        facts = Facts(graph, roles[number], _cuts(graph, outer, handles), own)
        zero = Zero(graph, view, roles[number], facts.whole)
        fixed = zero.variables | {
            handle: layout[number] for handle, layout in stored.items() if handle not in facts.whole
        }
        arriving = {tensor: layout[0] for tensor, layout in zip(graph.inputs, arrivals, strict=False)}
        if axis.time:
            fixed, arriving = dict.fromkeys(facts.handles, B), {}
        whole: set[int] = set()
        while True:  # until no micro-batch waits for a later one, and no sum over them crosses between stages for each
            taken, layouts = _plan_axis(facts, view, arriving, fixed, whole, zero.gradients)
            late = _late(facts, taken, whole, stage_of, outer) if axis.time else set()
            if late <= whole:
                break
            whole |= late
        outer.append(OuterAxis(axis, taken))
        handles.append(layouts)
    return _Planned(
        mesh,
        tuple(map(choice_of, zip(*(planned.taken for planned in outer), strict=True))),
        {v.handle: mesh.without_time([found.get(v.handle, B) for found in handles]) for v in graph.variables},
    )


def _late(
    facts: Facts, taken: list[Candidate], whole: set[int], stage_of: Sequence[int], outer: Sequence[OuterAxis]
) -> set[int]:
    """The ops that are to run once, on an axis of time."""
    found = out_of_turn(facts.graph, taken, outer) | sums_across(facts.graph, taken, stage_of)
    return found | needed_whole(facts, taken, whole, apart=bool(stage_of))


def _plan_axis(
    facts: Facts,
    view: AxisView,
    arriving: dict[int, Sbp],
    fixed: dict[int, Sbp],
    whole: set[int],
    gradients: Mapping[int, Sbp],
) -> tuple[list[Candidate], dict[int, Sbp]]:
    """The candidate of each op on one axis, and the layouts of the variables' handles."""
    graph, carried = facts.graph, Carried(facts.graph, view)
    while True:  # until the layouts of what loops carry are a fixed point of their bodies
        search = Search(facts, view, arriving, fixed, carried, whole, gradients)
        taken = search.run()
        if not carried.weaken(taken):
            break
    settled_ops = {i for i, op in enumerate(graph.ops) if op.pinned or op.type == GRADIENT}
    raw = settled_ops | {i for i, c in enumerate(taken) if search.local.is_raw(i, c) or carried.concerns(i)}
    settled = settle_partials(view, taken, set(graph.outputs), raw)
    settled = gather_inputs(view, settled, graph.outputs, raw)
    carried.verify(settled)
    return settled, search.layouts


def _cuts(graph: LogicalGraph, outer: Sequence[OuterAxis], handles: Sequence[Mapping[int, Sbp]]) -> dict[int, int]:
    """Tensor -> into how many parts the outer axes cut it where it is made, or stored."""
    cuts: dict[int, int] = {}
    for planned, layouts in zip(outer, handles, strict=True):
        for tensor, sbp in (*made_layouts(graph, planned.taken).items(), *layouts.items()):
            if sbp.is_split:
                cuts[tensor] = cuts.get(tensor, 1) * planned.axis.size
    return cuts
