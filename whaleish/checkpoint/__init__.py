"""Checkpoints that every rank writes its parts of, and that any layout, and plain TensorFlow, can read."""

from whaleish.checkpoint.errors import CheckpointError
from whaleish.checkpoint.restoring import Restored, restore
from whaleish.checkpoint.saving import Saving, save

__all__ = ["CheckpointError", "Restored", "Saving", "restore", "save"]
