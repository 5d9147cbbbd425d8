"""Products: matrices, einsum, convolutions, and what is made of matrices."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation

SIZES = range(1, 8)

EINSUMS = listed("""
    ij,jk->ik ij,kj->ki ij,ij->i ij,j->i i,j->ij ijk,kl->ijl ijk,jk->i bij,bjk->bik bij,bkj->bki bijk,bikl->bijl
    ijk,ilk->jl ij,jk->ijk bqhd,bkhd->bhqk
""")


@operation
def matmul(d: Draft) -> None:
    x = d.ranked(2, 2)
    rows, columns = d.shape(x)
    transpose_a, transpose_b = d.pick([False, True]), d.pick([False, True])
    inner, outer = rows if transpose_a else columns, d.pick(SIZES)
    y = d.weight(*((outer, inner) if transpose_b else (inner, outer)))
    d.add(f"tf.matmul({x}, {y}, transpose_a={transpose_a}, transpose_b={transpose_b})")


again = operation(matmul)


@operation
def dense(d: Draft) -> None:
    x = d.ranked(2, 2)
    outer = d.pick(SIZES)
    d.add(f"tf.nn.bias_add(tf.matmul({x}, {d.weight(d.shape(x)[1], outer)}), {d.weight(outer)})")


@operation
def batch_matmul(d: Draft) -> None:
    x = d.ranked(3, 4)
    *batch, _, columns = d.shape(x)
    if d.pick([False, True]):
        batch[0] = 1
    if d.pick([False, True]):
        batch = batch[1:]
    transpose = d.pick([False, True])
    inner = (d.pick(SIZES), columns) if transpose else (columns, d.pick(SIZES))
    d.add(f"tf.matmul({x}, {d.weight(*batch, *inner)}, transpose_b={transpose})")


@operation
def einsum(d: Draft) -> None:
    equation = d.pick(EINSUMS)
    left, _, rest = equation.partition(",")
    right = rest.partition("->")[0]
    x = d.ranked(len(left), len(left))
    lengths = dict(zip(left, d.shape(x), strict=True))
    y = d.weight(*(lengths[k] if k in lengths else d.pick(SIZES) for k in right))
    d.add(f"tf.einsum({equation!r}, {x}, {y})")


@operation
def tensordot(d: Draft) -> None:
    x = d.ranked(1, 4)
    axis = d.axis(x)
    d.add(f"tf.tensordot({x}, {d.weight(d.shape(x)[axis], d.pick(SIZES))}, [[{axis}], [0]])")


@operation
def cross(d: Draft) -> None:
    x = d.take(lambda value: value.shape.rank and value.shape[-1] == 3)
    d.add(f"tf.linalg.cross({x}, {d.weight(*d.shape(x))})")


# Square matrices. -----------------------------------------------------------------------------------------------------


def square(d: Draft) -> str:
    """A batch of well-conditioned symmetric matrices."""
    x = d.ranked(2, 4)
    size = d.shape(x)[-2]
    return d.add(f"0.3 * tf.matmul({x}, {x}, transpose_b=True) + 2.0 * tf.eye({size}, dtype=tf.float64)")


@operation
def of_square(d: Draft) -> None:
    code = d.pick(listed("tf.linalg.inv tf.linalg.det tf.linalg.cholesky tf.linalg.logdet"))
    d.add(f"{code}({square(d)})")


@operation
def solve(d: Draft) -> None:
    a = square(d)
    *batch, size = d.shape(a)[:-1]
    y = d.weight(*batch, size, d.pick(range(1, 4)))
    code = d.pick(listed("tf.linalg.solve tf.linalg.triangular_solve"))
    d.add(f"{code}({a}, {y}, adjoint={d.pick([False, True])})")


@operation
def diagonals(d: Draft) -> None:
    x = d.ranked(2)
    rows, columns = d.shape(x)[-2:]
    code = d.pick(listed("band part set trace upper"))
    if code == "band":
        d.add(f"tf.linalg.band_part({x}, {d.pick(range(-1, rows))}, {d.pick(range(-1, columns))})")
    elif code == "part":
        d.add(f"tf.linalg.diag_part({x}, k={d.pick(range(1 - rows, columns))})")
    elif code == "set":
        d.add(f"tf.linalg.set_diag({x}, {d.weight(*d.shape(x)[:-2], min(rows, columns))})")
    elif code == "trace":
        d.add(f"tf.linalg.trace({x})")
    else:
        d.add(f"tf.linalg.diag_part({x}, k=(0, {d.pick(range(columns))}), padding_value=0.25)")


@operation
def diagonal(d: Draft) -> None:
    x = d.take(lambda value: 1 <= value.shape.rank <= 3 and value.shape[-1])
    d.add(f"tf.linalg.diag({x}, k={d.pick([0, 1, -2])})")
