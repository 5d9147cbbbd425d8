"""Passes: from a planned step to another one that computes the same."""

from whaleish.passes.draft import Draft, follow
from whaleish.passes.finished import finished
from whaleish.passes.repeat import Repeat, entering, repeat
from whaleish.passes.timed import timed

__all__ = ["Draft", "Repeat", "entering", "finished", "follow", "repeat", "timed"]
