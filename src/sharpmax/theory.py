"""Compute what the theory of dispersion says about attention over n items.

The statements are those of "Softmax is not Enough (for Sharp Size Generalisation)" (Veličković,
Perivolaropoulos, Barbero, Pascanu; ICML 2025). Throughout, e are the logits of a row, alpha its
coefficients softmax(e / theta), theta the temperature, beta = 1 / theta its inverse, and entropies
are in nats. The spread of a row is delta = max e - min e.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from sharpmax._arrays import Array, Namespace, broadcast, namespace
from sharpmax._statistics import Rows, statistics

__all__ = [
    "DispersionBounds",
    "critical_length",
    "dispersion_bounds",
    "entropy_derivative",
    "entropy_grid",
    "spread_bound",
]

_LARGEST_EXPONENT = 9000.0  # of a critical length: Python cannot print much larger integers
_EXACT_INTEGERS = 2**53  # up to here a double represents every integer exactly
_OVERFLOW_EXPONENT = 700.0  # above this, exp overflows


class DispersionBounds(NamedTuple):
    """The smallest and the largest possible coefficient of a row.

    Attributes:
        lower: (1/n) exp(-spread / temperature).
        upper: (1/n) exp(+spread / temperature); vacuous where it exceeds one.
    """

    lower: Any
    upper: Any


def dispersion_bounds(n: Any, spread: Any, temperature: Any = 1.0) -> DispersionBounds:
    """Bound every softmax coefficient of n logits within a given spread.

    Lemma 2.1 (softmax must disperse): with delta the spread and theta the temperature,

        (1/n) exp(-delta / theta) <= alpha_k <= (1/n) exp(+delta / theta).

    By Theorem 2.2 the spread of a global attention head over a finite vocabulary is bounded at
    every length, so all coefficients go to zero like 1/n. The upper bound may exceed one, and then
    says nothing. The lower bound may underflow to 0.

    Args:
        n: the number of items that the row attends to, a whole number of at least 1.
        spread: delta, the largest logit minus the smallest, at least 0.
        temperature: theta, above 0.

    Returns:
        `(lower, upper)`: numbers if all arguments are numbers, otherwise NumPy arrays of the shape
        to which the arguments broadcast.

    Raises:
        TypeError: for an argument that is not a real number or an array of real numbers.
        ValueError: for an argument out of range, or shapes that do not broadcast.

    Example:
        >>> dispersion_bounds(1000, spread=2.0)
        DispersionBounds(lower=0.0001353, upper=0.0073890)
        >>> dispersion_bounds([10, 1000], spread=2.0).upper
        array([0.73890561, 0.00738906])
    """
    n, spread, temperature = _broadcast(
        n=_numbers("n", n, at_least=1.0, whole=True),
        spread=_numbers("spread", spread, at_least=0.0),
        temperature=_numbers("temperature", temperature, above=0.0),
    )
    with np.errstate(over="ignore", under="ignore"):
        # An infinite quotient gives infinity and 0, which is what the bounds round to.
        exponent = spread / temperature
        moderate = exponent <= _OVERFLOW_EXPONENT
        divided_inside = np.exp(exponent - np.log(n))
        upper = np.where(moderate, np.exp(np.where(moderate, exponent, 0.0)) / n, divided_inside)
        lower = np.exp(-exponent) / n
    if n.ndim == 0:
        return DispersionBounds(lower.item(), upper.item())
    return DispersionBounds(lower, upper)


def critical_length(spread: Any, epsilon: Any, temperature: Any = 1.0) -> Any:
    """Return the number of items from which no coefficient of a row can reach epsilon.

    From Lemma 2.1: the smallest whole n with (1/n) exp(delta / theta) < epsilon. At this n and
    every larger n, all coefficients are below epsilon, wherever the logits lie within the spread.

    Up to 2^53, where double precision distinguishes all integers, the result is the first n with
    `dispersion_bounds(n, spread, temperature).upper < epsilon` as computed. Above, it is exact for
    the given numbers, to the last digit: Python integers do not overflow.

    Args:
        spread: delta, the largest logit minus the smallest, at least 0.
        epsilon: the coefficient, above 0 and at most 1.
        temperature: theta, above 0.

    Returns:
        An integer if all arguments are numbers, otherwise an array: int64, or Python integers
        (dtype object) if one of them does not fit into 64 bits.

    Raises:
        OverflowError: if spread / temperature is above 9000: the integer has thousands of digits.
        TypeError, ValueError: as `dispersion_bounds` does.

    Example:
        >>> critical_length(spread=5.69, epsilon=0.01)
        29590
        >>> critical_length(spread=[0.0, 2.28, 14.78], epsilon=0.01)
        array([      101,       978, 262344790])
    """
    spread, epsilon, temperature = _broadcast(
        spread=_numbers("spread", spread, at_least=0.0),
        epsilon=_numbers("epsilon", epsilon, above=0.0, at_most=1.0),
        temperature=_numbers("temperature", temperature, above=0.0),
    )
    lengths = [
        _critical_length(*(float(value) for value in values))
        for values in zip(spread.flat, epsilon.flat, temperature.flat, strict=True)
    ]
    if spread.ndim == 0:
        return lengths[0]
    fits = all(length <= np.iinfo(np.int64).max for length in lengths)
    result = np.empty(len(lengths), dtype=np.int64 if fits else object)
    result[:] = lengths
    return result.reshape(spread.shape)


def spread_bound(
    query_weight: Array, key_weight: Array, query_norm: Any, key_norm: Any, scale: Any = 1.0
) -> Array:
    """Bound the spread of the logits of a head by its weights.

    Prop 3.1 (sharpness needs large weights): logits e_i = scale (Q y) · (K x_i) lie within

        delta <= 2 scale sigma_max(Q) sigma_max(K) |y| max_i |x_i|

    of each other, where sigma_max is the largest singular value and norms are Euclidean. The paper
    states it without the scale; the usual scale is 1 / sqrt(width of a head).

    Args:
        query_weight: Q, a matrix in the last two axes; further axes are heads. NumPy array, torch
            tensor or JAX array.
        key_weight: K, likewise.
        query_norm: |y|, the norm of the input of Q, at least 0.
        key_norm: max_i |x_i|, the largest norm of an input of K, at least 0.
        scale: the factor of the products, at least 0.

    Returns:
        The bound of each head, of the kind of the weights, in single precision at least.

    Raises:
        TypeError: for weights of two frameworks.
        ValueError: for a weight that is not a matrix, or a number that is negative or not finite.

    Example:
        >>> import numpy as np
        >>> float(spread_bound(np.diag([3.0, 1.0]), np.diag([2.0, 1.0]), 1.0, 5.0, scale=0.5))
        30.0
    """
    xp = namespace(query_weight, key_weight, query_norm, key_norm, scale)
    bound = 2.0
    for name, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        matrix = xp.promote(xp.asarray(weight))
        if matrix.ndim < 2 or 0 in matrix.shape[-2:]:
            came = tuple(matrix.shape)
            raise ValueError(f"{name}: expected a matrix in the last two axes, got shape {came}")
        bound = bound * xp.spectral_norm(matrix)
    for name, factor in (("query_norm", query_norm), ("key_norm", key_norm), ("scale", scale)):
        values = xp.asarray(factor, like=bound)
        accepted = (values >= 0) & ~xp.isinf(values)
        _refuse(xp, name, ~accepted, "a finite number of at least 0", values)
        bound = bound * values
    return bound


def entropy_derivative(
    logits: Array, beta: Any, axis: int = -1, where: Array | None = None
) -> Array:
    """Return the derivative of the entropy of a row by beta, in nats per unit of beta.

    Prop 3.2 (lowering the temperature lowers the entropy): with p = softmax(beta e),

        dH / dbeta = -beta Var_p(e) <= 0.

    Args:
        logits: e, a NumPy array, torch tensor or JAX array with at least one axis.
        beta: the inverse temperature 1 / theta, at least 0: a number, or an array that broadcasts
            to the rows. At infinity the derivative is its limit, 0.
        axis: the axis of a row.
        where: booleans that broadcast to `logits`; False does not count.

    Returns:
        The derivative for each row, without the axis `axis`, of the kind of `logits`, in single
        precision at least; 0 for a row without visible logits.

    Raises:
        TypeError: for complex logits, or arrays of two frameworks.
        ValueError: as `sharpmax.statistics` does, and for a beta that is negative, NaN, or does not
            broadcast to the rows.

    Example:
        >>> import numpy as np
        >>> float(entropy_derivative(np.array([0.0, 2.0]), beta=1.0))
        -0.419974
    """
    # The framework of all three, so that a differentiated beta keeps its graph over NumPy logits.
    xp = namespace(logits, where, beta)
    rows = Rows(xp.asarray(logits), axis, where)
    maximum = rows.statistics.maximum
    beta = broadcast("beta", xp.asarray(beta, like=maximum), tuple(maximum.shape))
    _refuse(xp, "beta", ~(beta >= 0), "a number of at least 0", beta)
    hard = xp.isinf(beta)
    _, variance = rows.tempered(xp.where(hard, 1.0, beta))
    return -xp.where(hard, 0.0, beta) * variance


def entropy_grid(bases: Any, temperatures: Any, powers: int = 10) -> np.ndarray[Any, Any]:
    """Compute the entropy of softmax_theta(lambda^1, …, lambda^powers) on a grid (lambda, theta).

    Figure 5: the larger the base and the lower the temperature, the lower the entropy, in nats:

        H(lambda, theta) = entropy of softmax((lambda^i / theta) for i = 1 … powers).

    Args:
        bases: the values of lambda.
        temperatures: the values of theta, above 0.
        powers: the number of powers, 10 in the figure, a whole number of at least 1.

    Returns:
        Entropies between 0 and log(powers), as a NumPy array of the shape of `bases` followed by
        the shape of `temperatures`.

    Raises:
        TypeError: for an argument that is not a real number or an array of real numbers.
        ValueError: for an argument out of range, or a base whose power overflows.

    Example:
        >>> entropy_grid([1.0, 1.5], [1.0, 4.0]).round(3)
        array([[2.303, 2.303],
               [0.   , 0.051]])
    """
    bases = _numbers("bases", bases)
    temperatures = _numbers("temperatures", temperatures, above=0.0)
    powers = int(_numbers("powers", powers, at_least=1.0, whole=True))
    with np.errstate(over="ignore", under="ignore"):
        logits = bases[..., np.newaxis] ** np.arange(1, powers + 1)
    if not np.isfinite(logits).all():
        worst = bases.flat[int(np.argmax(np.abs(bases)))]
        raise ValueError(f"bases: expected powers within double precision, got {worst}^{powers}")
    logits = logits.reshape(bases.shape + (1,) * temperatures.ndim + (powers,))
    with np.errstate(over="ignore", under="ignore"):
        # Halved first, since the difference of two doubles can overflow. A quotient that overflows
        # is -inf: a logit without weight.
        below = 0.5 * logits - 0.5 * logits.max(axis=-1, keepdims=True)
        tempered = 2.0 * (below / temperatures[..., np.newaxis])
    return np.asarray(statistics(tempered).entropy())


def _critical_length(spread: float, epsilon: float, temperature: float) -> int:
    exponent = Fraction(spread) / Fraction(temperature)
    if exponent > _LARGEST_EXPONENT:
        raise OverflowError(
            f"spread / temperature: expected at most {_LARGEST_EXPONENT:g}, got {spread} / "
            f"{temperature}: the critical length has more than 3,900 digits"
        )
    length = _floor_of_exp_over(exponent, Fraction(epsilon)) + 1
    if length > _EXACT_INTEGERS:
        return length

    # Rounding can move the computed bound across epsilon a few items earlier or later than the
    # exact one. Agree with the computed bound.
    def upper(n: int) -> float:
        return float(dispersion_bounds(n, spread, temperature).upper)

    while upper(length) >= epsilon:
        length += 1
    while length > 1 and upper(length - 1) < epsilon:
        length -= 1
    return length


def _floor_of_exp_over(exponent: Fraction, epsilon: Fraction) -> int:
    """floor(exp(exponent) / epsilon), exactly."""
    # exp of a rational number other than 0 is irrational: enough digits always decide the floor.
    if exponent == 0:
        return math.floor(1 / epsilon)
    magnitude = float(exponent) / math.log(10) - math.log10(epsilon)
    guard = 20
    while True:
        digits = max(0, math.ceil(magnitude)) + guard
        # Room for any exponent: the default context of decimal would overflow at 10^999999.
        with localcontext(Context(prec=digits, Emin=-(10**9), Emax=10**9)):
            argument = Decimal(exponent.numerator) / Decimal(exponent.denominator)
            quotient = argument.exp() * Decimal(epsilon.denominator) / Decimal(epsilon.numerator)
            # Relative errors: the rounded argument, magnified by exp, and three rounded operations.
            error = quotient * (abs(argument) + 4) * Decimal(10) ** (1 - digits)
            low = (quotient - error).to_integral_value(ROUND_FLOOR)
            high = (quotient + error).to_integral_value(ROUND_FLOOR)
            if low == high:
                return int(low)
        guard *= 2


def _numbers(
    name: str,
    values: Any,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    whole: bool = False,
) -> np.ndarray[Any, Any]:
    """`values` as finite doubles within a range, or an error that names the argument."""
    expected = "finite numbers"
    expected += f" above {above:g}" if above > -math.inf else ""
    expected += f" of at least {at_least:g}" if at_least > -math.inf else ""
    expected += f" and at most {at_most:g}" if at_most < math.inf else ""
    try:
        array = np.asarray(values)
        # Integers beyond 64 bits come as objects; so does much that is no number at all.
        objects = array.flat if array.dtype.kind == "O" else ()
        if array.dtype.kind not in "iufO" or not all(isinstance(value, Real) for value in objects):
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected {expected}, got {values!r}") from None
    except OverflowError:
        raise ValueError(f"{name}: expected {expected}, got one beyond double precision") from None
    accepted = np.isfinite(array) & (array > above) & (array >= at_least) & (array <= at_most)
    if accepted.all() and whole:
        expected, accepted = "whole numbers", array == np.floor(array)
    if not accepted.all():
        raise ValueError(f"{name}: expected {expected}, got {array[~accepted].flat[0]}")
    return array


def _broadcast(**arrays: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    try:
        return np.broadcast_arrays(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"expected shapes that broadcast to each other, got {shapes}") from None


def _refuse(xp: Namespace, name: str, refused: Array, expected: str, values: Array) -> None:
    """Raise for the first refused entry; compiled code cannot be checked."""
    if xp.any(refused):
        first = float(values[refused].reshape(-1)[0])
        raise ValueError(f"{name}: expected {expected}, got {first}")
