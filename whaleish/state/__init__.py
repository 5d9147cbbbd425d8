"""Variables in their layout: where their parts live, how they are read and written, what ranks must agree on."""

from whaleish.state.creator import install, uninstall
from whaleish.state.ranks import broadcast_from_chief, gather
from whaleish.state.storage import Storage, lay_out, moves, settle_all, storage
from whaleish.state.variable import LaidOutVariable

__all__ = [
    "LaidOutVariable",
    "Storage",
    "broadcast_from_chief",
    "gather",
    "install",
    "lay_out",
    "moves",
    "settle_all",
    "storage",
    "uninstall",
]
