"""Passes: from a planned step to another one that computes the same."""

from whaleish.passes.repeat import Repeat, entering, follow, repeat
from whaleish.passes.timed import timed

__all__ = ["Repeat", "entering", "follow", "repeat", "timed"]
