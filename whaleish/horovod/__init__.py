"""Horovod's two modules for scripts that are written for Horovod, working with Keras 3.

`import whaleish.horovod.keras as hvd` in place of `import horovod.tensorflow.keras as hvd`, and
`import whaleish.horovod.tensorflow as hvd` in place of `import horovod.tensorflow as hvd`.
"""

try:
    import horovod.tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"whaleish.horovod needs Horovod, which this Python has not, or not for this TensorFlow ({error}). Run "
        "`whaleish install-horovod`"
    ) from error
