"""Clusters: the devices a plan is made for, and the rates by which its cost is estimated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """Equal devices joined by equal links.

    The default rates are nominal, of a few CPU cores and a 10 Gbit/s link: they say how computing and moving weigh
    against each other, not how long a step takes.

    Attributes:
      size: number of devices.
      flops: floating-point operations per second of one device.
      memory_rate: bytes per second between a device and its memory.
      link_rate: bytes per second that one device can send to the others.
      latency: seconds that a collective takes before any byte moves.
    """

    size: int
    flops: float = 50e9
    memory_rate: float = 10e9
    link_rate: float = 1e9
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a cluster of {self.size} devices: it has at least one")

    def compute_seconds(self, flops: float, nbytes: float) -> float:
        """Roofline: an operation is bound by arithmetic or by memory."""
        return max(flops / self.flops, nbytes / self.memory_rate)

    def boxing_seconds(self, volume: float, parts: int) -> float:
        """Seconds to move `volume` bytes in all, sent evenly by `parts` devices."""
        return self.latency + volume / parts / self.link_rate if volume else 0.0
