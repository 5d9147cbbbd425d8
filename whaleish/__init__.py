"""Train TensorFlow and Keras models on many devices with a few `with` lines."""

from whaleish import versions

versions.warn_at_import()
