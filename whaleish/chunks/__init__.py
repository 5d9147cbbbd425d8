"""Chunks: a planned step with stages in pieces, and the actors that run them. Pure: no TensorFlow."""

from whaleish.chunks.actors import Actors, feed_of, make_actors
from whaleish.chunks.chunk import Chunk, Chunks, Give, Key
from whaleish.chunks.cut import cut

__all__ = ["Actors", "Chunk", "Chunks", "Give", "Key", "cut", "feed_of", "make_actors"]
