"""Elementwise operations on numbers, with broadcasting; what compares and selects."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation

ANY = listed("""
    tf.tanh tf.sigmoid tf.sin tf.cos tf.exp tf.square tf.negative tf.math.erf tf.math.erfc tf.math.softplus
    tf.math.softsign tf.math.expm1 tf.sinh tf.cosh tf.asinh tf.atan tf.nn.elu tf.nn.selu tf.nn.gelu tf.nn.silu
    tf.math.bessel_i0 tf.math.bessel_i0e tf.math.bessel_i1 tf.math.bessel_i1e tf.math.log_sigmoid tf.identity
    tf.stop_gradient tf.zeros_like tf.ones_like tf.math.ndtri(0.45*tf.tanh({})+0.5) tf.math.erfinv(0.9*tf.tanh({}))
    tf.tan(0.4*tf.tanh({})) tf.asin(0.9*tf.tanh({})) tf.acos(0.9*tf.tanh({})) tf.atanh(0.9*tf.tanh({}))
    tf.raw_ops.PreventGradient(input=tf.stop_gradient({})) tf.debugging.check_numerics({},'finite')
    tf.cast(tf.math.is_finite({}),tf.float64) tf.cast(tf.math.is_nan({}),tf.int32) tf.math.is_inf tf.nn.l2_loss
    tf.raw_ops.Snapshot(input=tf.stop_gradient({}))
""")
KINKED = listed("tf.abs tf.nn.relu tf.nn.leaky_relu tf.sign tf.raw_ops.Relu(features={})")
POSITIVE = listed("""
    tf.sqrt tf.math.rsqrt tf.math.log tf.math.log1p tf.math.reciprocal tf.math.lgamma tf.math.digamma
    tf.raw_ops.Inv(x={}) tf.acosh(1.0+{})
""")
STEPPED = listed("tf.floor tf.math.ceil tf.round tf.math.rint")

ARITHMETIC = listed("""
    {}+{} {}-{} {}*{} tf.math.squared_difference({},{}) tf.raw_ops.Add(x={},y={}) tf.math.multiply_no_nan({},{})
    tf.math.xlogy({},tf.exp({})) tf.math.xlog1py({},tf.exp({})) tf.math.atan2({},1.5+tf.exp({})) {}/(0.5+tf.exp({}))
    tf.math.divide_no_nan({},0.5+tf.exp({})) tf.math.xdivy({},0.5+tf.exp({})) tf.pow(0.5+tf.exp({}),{})
    tf.stop_gradient(tf.math.nextafter({},{})) tf.raw_ops.Div(x={},y=0.5+tf.exp({}))
    tf.stop_gradient(tf.math.igamma(0.5+tf.exp({}),tf.exp({})))
    tf.stop_gradient(tf.math.igammac(0.5+tf.exp({}),tf.exp({})))
    tf.stop_gradient(tf.math.zeta(1.5+tf.exp({}),0.5+tf.exp({})))
    tf.stop_gradient(tf.math.polygamma(tf.ones_like({}),0.5+tf.exp({})))
""")
ROUNDED = listed("""
    tf.math.floordiv({0},{1}) tf.math.floormod({0},{1}) tf.truncatemod(tf.stop_gradient({0}),tf.stop_gradient({1}))
""")
ORDERED = listed("tf.maximum tf.minimum")
COMPARISONS = listed("tf.less tf.less_equal tf.greater tf.greater_equal tf.equal tf.not_equal")


@operation
def unary(d: Draft) -> None:
    x = d.take()
    apply(d, d.pick(ANY), x)


@operation
def kinked(d: Draft) -> None:
    apply(d, d.pick(KINKED), d.off(d.take(), 0.0))


@operation
def relu6(d: Draft) -> None:
    d.add(f"tf.nn.relu6({d.off(d.take(), 0.0, 6.0)})")


@operation
def positive(d: Draft) -> None:
    code = d.pick(POSITIVE)
    apply(d, code, d.add(f"tf.math.softplus({d.take()}) + 0.3"))


@operation
def stepped(d: Draft) -> None:
    apply(d, d.pick(STEPPED), d.off_steps(d.take()))


def apply(d: Draft, code: str, *inputs: str) -> str:
    return d.add(code.format(*inputs) if "{" in code else f"{code}({', '.join(inputs)})")


def partner(d: Draft, name: str) -> str:
    """Something that broadcasts with a value, perhaps with fewer dims or with dims of size 1."""
    shape = d.shape(name)
    short = shape[d.pick(range(len(shape) + 1)) :]
    return d.weight(*(1 if d.pick([False, False, False, True]) else length for length in short))


@operation
def arithmetic(d: Draft) -> None:
    x = d.take()
    pair = [x, partner(d, x)]
    apply(d, d.pick(ARITHMETIC), *(pair if d.pick([True, False]) else pair[::-1]))


binary = operation(arithmetic)


@operation
def between_values(d: Draft) -> None:
    x = d.take()
    apply(d, d.pick(ARITHMETIC), x, d.take())


@operation
def division(d: Draft) -> None:
    """Division that rounds."""
    x = d.take()
    y = d.add(f"1.5 + tf.exp({partner(d, x)})")
    d.off_steps(f"{x} / {y}")
    d.add(d.pick(ROUNDED).format(x, y))


def of_unlike(d: Draft, codes: list[str]) -> None:
    """Ops that jump where their inputs are equal."""
    x = d.take()
    y = partner(d, x)
    d.unlike(x, y)
    apply(d, d.pick(codes), x, y)


@operation
def ordered(d: Draft) -> None:
    of_unlike(d, ORDERED)


@operation
def comparison(d: Draft) -> None:
    of_unlike(d, COMPARISONS)


@operation
def approximately(d: Draft) -> None:
    x = d.take()
    y = d.weight(*d.shape(x))
    d.off(f"tf.abs({x} - {y})", 0.3)
    d.add(f"tf.raw_ops.ApproximateEqual(x={x}, y={y}, tolerance=0.3)")


@operation
def select(d: Draft) -> None:
    condition = d.take(dtype="bool")
    x = d.take()
    d.add(f"tf.where({condition}, {x}, {partner(d, x)})")


@operation
def clip(d: Draft) -> None:
    x = d.off(d.take(), -0.4, 0.5)
    d.add(f"tf.clip_by_value({x}, -0.4, 0.5)")


@operation
def clip_by_norm(d: Draft) -> None:
    d.add(f"tf.clip_by_norm({d.take()}, 0.7)")


@operation
def several(d: Draft) -> None:
    """Sums of several tensors of one shape."""
    x = d.take()
    others = [d.weight(*d.shape(x)) for _ in range(d.pick(range(3)))]
    code = d.pick(listed("tf.add_n tf.math.accumulate_n tf.raw_ops.IdentityN"))
    if code == "tf.raw_ops.IdentityN":
        d.add_list(f"tf.identity_n([{', '.join([x, *others])}])")
    else:
        d.add(f"{code}([{', '.join([x, *others])}])")


@operation
def bounds(d: Draft) -> None:
    """An op of three inputs that has no gradient for all of them."""
    x = d.take()
    d.add(f"tf.stop_gradient(tf.math.betainc(1.2 + tf.sin({x}), 0.9, tf.sigmoid({x})))")


@operation
def complex_numbers(d: Draft) -> None:
    x = d.take()
    z = d.add(f"tf.complex({x}, {d.weight(*d.shape(x))})")
    z = d.add(d.pick(listed("{0} tf.math.conj({0}) {0}*{0} tf.exp({0})")).format(z))
    d.add(d.pick(listed("tf.math.real({0}) tf.math.imag({0}) tf.math.real({0}*tf.math.conj({0}))")).format(z))


@operation
def spectrum(d: Draft) -> None:
    x = d.ranked(1)
    z = d.add(f"tf.signal.{d.pick(['fft', 'ifft'])}(tf.cast({x}, tf.complex128))")
    d.add(f"tf.math.{d.pick(['real', 'imag'])}({z})")


@operation
def conversion(d: Draft) -> None:
    d.add(f"tf.cast({d.off_steps(d.take())}, tf.{d.pick(['int32', 'int64'])})")


@operation
def bucketize(d: Draft) -> None:
    d.add(f"tf.raw_ops.Bucketize(input={d.off(d.take(), -0.5, 0.1, 0.7)}, boundaries=[-0.5, 0.1, 0.7])")
