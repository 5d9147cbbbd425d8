"""Estimates: what a plan would take on each device, as plain data that prints as a table."""

from __future__ import annotations

from dataclasses import dataclass

from whaleish.planner.held import KINDS, Held
from whaleish.tables import bytes_text, table


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds when it holds most. `memory["weights"]` is the bytes of a kind.

    Attributes:
      device: its number.
      kinds: (kind, bytes), of all of `planner.held.KINDS`.
      largest: the three largest tensors, each in its layout; of registers, all of an actor's together.
      leading: the largest tensor of each kind that there is.
      at: the op that runs then, as errors name it; with stages after the chunk that it is in.
      on_host: bytes that wait for it in the host's memory, at the most: what `wh.offload()` puts there.
    """

    device: int
    kinds: tuple[tuple[str, int], ...]
    largest: tuple[Held, ...]
    leading: tuple[Held, ...]
    at: str
    on_host: int = 0

    def __getitem__(self, kind: str) -> int:
        found = dict(self.kinds)
        if kind not in found:
            raise KeyError(f"{kind!r} is no kind of memory; these are: {', '.join(KINDS)}")
        return found[kind]

    @property
    def peak(self) -> int:
        """Bytes of all kinds."""
        return sum(nbytes for _, nbytes in self.kinds)


@dataclass(frozen=True)
class Estimate:
    """What a step would take.

    Attributes:
      devices: of each device, in ascending order.
      at_most: what is assumed that may be too much; "" where nothing is.
    """

    devices: tuple[DeviceMemory, ...]
    at_most: str = ""

    @property
    def memory(self) -> dict[int, DeviceMemory]:
        """By the number of the device."""
        return {each.device: each for each in self.devices}

    @property
    def fullest(self) -> DeviceMemory:
        """Of the device that holds most."""
        return max(self.devices, key=lambda each: each.peak)

    def __str__(self) -> str:
        used = [kind for kind in KINDS if any(each[kind] for each in self.devices)]
        hosted = any(each.on_host for each in self.devices)
        alike: dict[tuple[str, ...], list[int]] = {}
        for each in self.devices:
            row = (bytes_text(each.peak), *(bytes_text(each[kind]) for kind in used))
            row += (bytes_text(each.on_host),) if hosted else ()
            alike.setdefault(row, []).append(each.device)
        rows = [(", ".join(map(str, devices)), *row) for row, devices in alike.items()]
        lines = table([("device", "peak", *used, *(["on the host"] if hosted else [])), *rows])
        return "\n".join([*lines, *([f"at most: {self.at_most}"] if self.at_most else [])]) + "\n"
