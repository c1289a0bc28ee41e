"""Logarithms and exponentials of arithmetic alone, against decimal numbers of forty digits."""

from decimal import Context, Decimal

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tpiedge.model.elementary import exponential, logarithm

DIGITS = Context(prec=40)
NEAR = Decimal(2) ** -50


@given(st.floats(1e-12, 1e15))
@example(1.0)
@example(1 + 2.0**-52)
@example(1 - 2.0**-53)
def test_logarithms_are_near(value: float) -> None:
    exact = DIGITS.ln(Decimal(value))
    assert abs(Decimal(logarithm(value)) - exact) <= abs(exact) * NEAR


@given(st.floats(-80, 80))
@example(0.0)
def test_exponentials_are_near(value: float) -> None:
    exact = DIGITS.exp(Decimal(value))
    (found,) = exponential(np.array([value])).tolist()
    assert abs(Decimal(found) - exact) <= exact * NEAR


def test_an_exponential_does_not_depend_on_the_others() -> None:
    values = np.linspace(-30, 30, 67)
    together = exponential(values)
    assert together.tolist() == [exponential(values[at : at + 1])[0] for at in range(len(values))]
