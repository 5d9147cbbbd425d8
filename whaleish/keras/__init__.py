"""Keras models on all devices: `wh.keras.distribute`."""

from whaleish.keras.distribute import distribute

__all__ = ["distribute"]
