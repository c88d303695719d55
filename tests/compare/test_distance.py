"""How far two values are apart."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitproof.compare.distance import describe, ulp


def f32(value: float) -> bytes:
    """Return a float32, left-aligned in 8 bytes."""
    return struct.pack("<f", value).ljust(8, b"\0")


def sketch(*values: float) -> bytes:
    """Return the sketch of three float32."""
    return b"".join(f32(v) for v in values)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (1.0, 1.0 + 2**-23, 1),
        (1.0, 1.0 - 2**-24, 1),
        (0.0, 2**-149, 1),
        (-(2**-149), 2**-149, 2),
        (0.0, -0.0, 0),
        (1.0, 2.0, 2**23),
        (-1.0, 1.0, 2 * 0x3F800000),
        (float("inf"), 3.4028234663852886e38, 1),
    ],
)
def test_ulp(one: float, other: float, apart: int) -> None:
    """Units in the last place count the representable numbers in between, across zero too."""
    assert ulp("float32", f32(one), f32(other)) == apart
    assert ulp("float32", f32(other), f32(one)) == apart


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_next_number_is_one_away(value: float) -> None:
    """Any number and its neighbour are one unit apart."""
    after = float(torch.nextafter(torch.tensor(value), torch.tensor(float("inf"))))
    assert ulp("float32", f32(value), f32(after)) == (1 if (value, after) != (0.0, -0.0) else 0)


def test_describes_the_widest_gap() -> None:
    """Of the elements that were kept the one furthest apart is told, the reference's last."""
    said = describe("float32[9]", sketch(1, 2, 3), sketch(1, 2.5, 3 + 2**-22))
    assert said == "2.5 where the reference has 2 (2,097,152 ULP)"


def test_describes_values_and_counters() -> None:
    """A plain value is told by its text, an integer tensor by its number."""
    assert describe("value", b"0.1".ljust(24, b"\0"), b"0.025".ljust(24, b"\0")) == "0.025 where the reference has 0.1"
    eight, four = (struct.pack("<q", n) * 3 for n in (8, 4))
    assert describe("int64[]", eight, four) == "4 where the reference has 8"


def test_says_nothing_where_nothing_was_kept() -> None:
    """Equal sketches, missing ones and unknown dtypes give no distance."""
    assert describe("float32[9]", sketch(1, 2, 3), sketch(1, 2, 3)) is None
    assert describe("float32[9]", b"", b"") is None
    assert describe("bfloat16[9]", bytes(24), b"\1" + bytes(23)) is None
    assert describe("value", bytes(24), b"1".ljust(24, b"\0")) is None
