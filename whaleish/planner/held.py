"""What a device holds while a step runs: tensors in layouts, by kind."""

from __future__ import annotations

from dataclasses import dataclass

from whaleish.graph import Variable, layout_bytes
from whaleish.mesh import Mesh
from whaleish.sbp import Layout

WEIGHTS, SLOTS, ARGUMENTS = "weights", "slots", "arguments"
ACTIVATIONS, GRADIENTS, GATHERED, WORKSPACE = "activations", "gradients", "gathered weights", "workspace"
REGISTERS = "registers"
KINDS = (WEIGHTS, SLOTS, GRADIENTS, ACTIVATIONS, GATHERED, REGISTERS, WORKSPACE, ARGUMENTS)
"""Slots are what an optimizer keeps, and other variables that are not trained. Gradients are those that updates read,
also as summands that wait for being added up, and totals over micro-batches. Activations are what the forward makes,
also when it makes it again. Gathered weights are copies of variables: made whole for their use, cast, fetched from the
host, or as they were before an assignment that came while they were still read. Registers hold what waits between
chunks. Workspace is all else."""

OLD_VALUE = ", as it was before an assignment"
"""How the place ends of a copy that is there because the variable was assigned to while its value was still read."""


@dataclass(frozen=True)
class Held:
    """A tensor in a layout, as a device holds it.

    Attributes:
      nbytes: of the device's piece. kind: one of `KINDS`.
      place: the op that makes it, as errors name it.
    """

    tensor: int
    layout: Layout
    nbytes: int
    kind: str
    place: str


def variable_held(variable: Variable, layout: Layout, space: Mesh, place: int) -> Held:
    """A variable as a device holds it, at a place of a mesh without time; in the device's memory or in the host's."""
    nbytes = layout_bytes(space.local_shape(variable.shape, layout, place), variable.dtype)
    kind = WEIGHTS if variable.trainable else SLOTS
    return Held(variable.handle, layout, nbytes, kind, f"variable {variable.name!r}")


@dataclass(frozen=True)
class Peak:
    """When a device holds most.

    Attributes:
      nbytes: of all that it holds then. op: what runs then. held: everything, the largest first.
      on_host: bytes that wait for it in the host's memory, at the most.
    """

    nbytes: int
    op: int
    held: tuple[Held, ...]
    on_host: int = 0

    def of(self, *kinds: str) -> int:
        """Bytes of some kinds; of all without any."""
        return sum(held.nbytes for held in self.held if not kinds or held.kind in kinds)
