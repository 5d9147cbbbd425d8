"""Passes: from a planned step to another one that computes the same."""

from whaleish.passes.reads import time_reads
from whaleish.passes.repeat import Repeat, entering, follow, repeat

__all__ = ["Repeat", "entering", "follow", "repeat", "time_reads"]
