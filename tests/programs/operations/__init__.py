"""What programs are made of, by family."""

from tests.programs.operations import elementwise, images, indices, integers, products, reductions, rows, shapes, state
from tests.programs.operations.catalogue import CATALOGUE

__all__ = ["CATALOGUE", "elementwise", "images", "indices", "integers", "products", "reductions", "rows", "shapes"]
__all__ += ["state"]
