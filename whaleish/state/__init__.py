"""Variables in their layout: where their parts live, how they are read and written, what ranks must agree on."""

from whaleish.state.assigned import assigned, assigned_number, assigned_text, forget_assigned
from whaleish.state.creator import install, uninstall
from whaleish.state.deferred import deferred, while_capturing
from whaleish.state.ranks import gather
from whaleish.state.starts import broadcast_from_chief, equalise_copies, is_deferred
from whaleish.state.storage import Storage, lay_out, moves, not_laid_out, pin, pins, settle_all, storage
from whaleish.state.tf_private import Resource
from whaleish.state.variable import LaidOutVariable

__all__ = [
    "LaidOutVariable",
    "Resource",
    "Storage",
    "assigned",
    "assigned_number",
    "assigned_text",
    "broadcast_from_chief",
    "deferred",
    "equalise_copies",
    "forget_assigned",
    "gather",
    "install",
    "is_deferred",
    "lay_out",
    "moves",
    "not_laid_out",
    "pin",
    "pins",
    "settle_all",
    "storage",
    "uninstall",
    "while_capturing",
]
