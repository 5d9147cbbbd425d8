"""What goes wrong with checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or does not fit or cannot be read; raised by all ranks."""
