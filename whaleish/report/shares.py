"""What each device holds and does: the check that work is divided, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whaleish.graph import UPDATE, LogicalGraph, Variable, layout_bytes
from whaleish.mesh import Mesh
from whaleish.planner.flops import flops
from whaleish.planner.plan import Plan
from whaleish.planner.view import op_view
from whaleish.rules import OpView, TensorSpec
from whaleish.sbp import Layout


@dataclass(frozen=True)
class Share:
    """One device's part of a step.

    Attributes:
      flops: of the forward and backward ops it runs; step_flops: of the same ops on a single device.
      weight_bytes: of the variables it stores; step_weight_bytes: of all variables, whole.
    """

    flops: float
    step_flops: float
    weight_bytes: int
    step_weight_bytes: int


def shares(graph: LogicalGraph, plan: Plan, *, once: bool) -> list[Share]:
    """One share per place among the devices. `graph` and `plan` are the expanded ones.

    Args:
      once: of devices that do or store the same only the first does, as in one process with several devices.
    """
    done, total = _work(graph, plan, once)
    stored = [
        (variable, layout, plan.mesh) for variable, (_, layout) in zip(graph.variables, plan.variables, strict=True)
    ]
    held, everything = weights(stored, once)
    devices = enumerate(plan.mesh.devices)
    return [Share(done[place], total, held.get(device, 0), everything) for place, device in devices]


def staged_shares(
    chunks: Iterable[tuple[LogicalGraph, Plan]], graph: LogicalGraph, plan: Plan, *, once: bool
) -> list[Share]:
    """The same for a step with stages, one share per device.

    Args:
      chunks: graph and plan of each, expanded. graph, plan: of the step.
    """
    done, total = dict.fromkeys(plan.devices, 0.0), 0.0
    for part, own in chunks:
        work, all_work = _work(part, own, once)
        total += all_work
        for place, device in enumerate(own.mesh.devices):
            done[device] += work[place]
    stored = [
        (variable, layout, plan.mesh_of(graph.tensors[variable.handle].producer))
        for variable, (_, layout) in zip(graph.variables, plan.variables, strict=True)
    ]
    held, everything = weights(stored, once)
    return [Share(done[device], total, held.get(device, 0), everything) for device in plan.devices]


def _work(graph: LogicalGraph, plan: Plan, once: bool) -> tuple[list[float], float]:
    """FLOPs of the forward and backward ops: of each place among the devices, and of the same ops on one."""
    mesh = plan.mesh
    done, total = [0.0] * len(mesh.devices), 0.0
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        if op.phase == UPDATE:
            continue
        view, repeats = op_view(graph, index), graph.repeats(index)
        total += flops(view) * repeats
        for part in range(mesh.size):
            first = mesh.first_alike(part, *choice.inputs, *choice.outputs)
            if first == part or not (once or mesh.time(first) != mesh.time(part)):
                done[mesh.place(part)] += flops(local_view(view, choice.inputs, choice.outputs, mesh, part)) * repeats
    return done, total


def weights(stored: Iterable[tuple[Variable, Layout, Mesh]], once: bool) -> tuple[dict[int, int], int]:
    """Bytes of variables: on each device, and of all, whole."""
    held: dict[int, int] = {}
    everything = 0
    for variable, layout, mesh in stored:
        everything += layout_bytes(variable.shape, variable.dtype)
        space = mesh.in_space
        for place, device in enumerate(space.devices):
            if not once or space.first_alike(place, layout) == place:
                local = layout_bytes(space.local_shape(variable.shape, layout, place), variable.dtype)
                held[device] = held.get(device, 0) + local
    return held, everything


def local_view(view: OpView, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...], mesh: Mesh, part: int) -> OpView:
    """What a part does of an op."""

    def cut(spec: TensorSpec, layout: Layout) -> TensorSpec:
        return spec if spec.shape is None else TensorSpec(mesh.local_shape(spec.shape, layout, part), spec.dtype)

    return OpView(
        view.type,
        view.attrs,
        tuple(cut(spec, layout) for spec, layout in zip(view.inputs, inputs, strict=True)),
        tuple(cut(spec, layout) for spec, layout in zip(view.outputs, outputs, strict=True)),
        view.constants,
    )


def shares_text(found: list[Share]) -> str:
    """A table for people."""
    lines = ["device   work    weights"]
    for part, share in enumerate(found):
        work = share.flops / share.step_flops if share.step_flops else 0.0
        weights = share.weight_bytes / share.step_weight_bytes if share.step_weight_bytes else 0.0
        lines.append(f"{part:6d}  {work:5.1%}  {weights:8.1%}")
    return "\n".join(lines) + "\n"
