"""What programs are made of, by family; importing a family puts it into the catalogue."""

from tests.programs.operations import elementwise, images, indices, integers, products, reductions, rows, shapes, state
from tests.programs.operations.catalogue import CATALOGUE

__all__ = [
    "CATALOGUE",
    "elementwise",
    "images",
    "indices",
    "integers",
    "products",
    "reductions",
    "rows",
    "shapes",
    "state",
]
