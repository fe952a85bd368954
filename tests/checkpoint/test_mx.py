# SPDX-License-Identifier: Apache-2.0
"""Float16 with saturation and the microscaling formats, against gfloat and by their properties."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import FLOAT16, MXFP6, MXINT8
from qeff_zoo.weights.quantization import round_trip

ELEMENTS = sorted(microscaling.ELEMENTS)
FLOATS = {"e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn}
#: Half of the distance between the largest elements; or what saturation cuts off, up to the next power of two.
WORST = {"e2m3": 0.5, "e3m2": 4.0, "int8": 1 / 64}

numbers = st.floats(-(2.0**100), 2.0**100, width=32)
arrays = hn.arrays(
    np.float32, hn.array_shapes(min_dims=1, max_dims=3, max_side=40), elements=numbers
)
each_element = pytest.mark.parametrize("element", ELEMENTS)


def normal(*shape: int) -> Any:
    """Give numbers of many magnitudes, one a block."""
    random = np.random.default_rng(0)
    exponents = random.integers(-40, 40, (*shape[:-1], 1))
    return np.ldexp(random.standard_normal(shape), exponents).astype(np.float32)


# --- against another implementation ---------------------------------------------------------------


@each_element
def test_microscaling_is_bit_identical_to_gfloat(element: str) -> None:
    from gfloat import formats
    from gfloat.block import compute_scale_amax, quantize_block

    kind = getattr(formats, "format_info_mx" + {"int8": "int8"}.get(element, f"fp6_{element}"))
    values = normal(300, microscaling.BLOCK)
    values[0], values[1, 1:], values[2] = 0, 0, 2.0**-60
    expected = np.stack([quantize_block(kind, row, compute_scale_amax) for row in values])

    got = microscaling.round_trip(values, element)

    # The standard lets int8 leave out -2, so that its range is symmetric; gfloat does not.
    scales = microscaling.quantize(values, element)[1].astype(np.float32)
    left_out = (expected == -2 * scales) & (element == "int8")
    assert left_out.mean() < 1e-3
    assert np.array_equal(got[~left_out], expected.astype(np.float32)[~left_out])


# --- properties -----------------------------------------------------------------------------------


@each_element
@given(values=arrays)
@settings(max_examples=example_count(50))
def test_rounding_twice_changes_nothing(element: str, values: Any) -> None:
    once = microscaling.round_trip(values, element)

    assert np.array_equal(once, microscaling.round_trip(once, element))


@each_element
@given(values=arrays)
@settings(max_examples=example_count(50))
def test_signs_do_not_matter(element: str, values: Any) -> None:
    assert np.array_equal(
        -microscaling.round_trip(values, element), microscaling.round_trip(-values, element)
    )


@each_element
@given(values=arrays)
@settings(max_examples=example_count(50))
def test_errors_are_bounded_by_the_scale(element: str, values: Any) -> None:
    elements, scales = microscaling.quantize(values, element)
    wide = np.repeat(scales.astype(np.float32), microscaling.BLOCK, axis=-1)[
        ..., : values.shape[-1]
    ]

    errors = np.abs(values - microscaling.dequantize(elements, scales, values.shape[-1], element))

    assert (errors <= WORST[element] * wide).all()


@each_element
@given(values=arrays)
@settings(max_examples=example_count(50))
def test_the_largest_has_the_largest_exponent(element: str, values: Any) -> None:
    elements, scales = microscaling.quantize(values, element)
    kind = microscaling.ELEMENTS[element]
    largest = np.abs(elements.astype(np.float32)).max(-1) * kind.unit

    assert (largest <= kind.largest).all()
    ordinary = (scales.astype(np.float32) > 2.0**-127) & (largest > 0)
    assert (largest[ordinary] >= min(2.0**kind.emax, kind.largest)).all()


@pytest.mark.parametrize("element", sorted(FLOATS))
def test_all_codes_are_exact(element: str) -> None:
    codes = np.arange(64, dtype=np.uint8).view(FLOATS[element]).astype(np.float32)
    values = np.append(
        np.delete(codes, np.argmax(codes)).reshape(3, 21), np.full((3, 1), codes.max()), 1
    )

    for power in (1.0, 2.0**-30, 2.0**30):
        assert np.array_equal(
            microscaling.round_trip(values * np.float32(power), element), values * power
        )


def test_all_integers_are_exact() -> None:
    values = np.arange(-127, 128, dtype=np.float32)
    values = np.append(values.reshape(15, 17), np.full((15, 1), 127, np.float32), 1)

    assert np.array_equal(microscaling.round_trip(values, "int8"), values)


@pytest.mark.parametrize(
    ("element", "given_values", "expected"),
    [
        # Ties go to the even element; what is beyond the largest saturates.
        ("e2m3", [4.0, 1.0625, 1.1875, 7.9, -7.9], [4.0, 1.0, 1.25, 7.5, -7.5]),
        ("e3m2", [16.0, 1.125, 1.375, 31.0, -31.0], [16.0, 1.0, 1.5, 28.0, -28.0]),
        ("int8", [1.0, 0.5 / 64, 1.5 / 64, 1.999, -1.999], [1.0, 0.0, 2 / 64, 127 / 64, -127 / 64]),
    ],
)
def test_rounding(element: str, given_values: list[float], expected: list[float]) -> None:
    got = microscaling.round_trip(np.array(given_values, np.float32), element)

    assert got.tolist() == expected


@each_element
def test_zeros_and_subnormals(element: str) -> None:
    least = np.float32(2.0**-149)
    values = np.array([[0, 0], [2.0**-126, 2.0**-127], [least, 0]], np.float32)

    got = microscaling.round_trip(values, element)

    assert np.array_equal(got[:2], values[:2])
    assert got[2].tolist() == [0, 0]  # less than half of the least element at the least scale


@each_element
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinity_and_nan_are_not_rounded(element: str, value: float) -> None:
    with pytest.raises(ValueError, match="infinite or not a number"):
        microscaling.round_trip(np.array([1, value], np.float32), element)


# --- shapes ---------------------------------------------------------------------------------------


@each_element
@pytest.mark.parametrize("shape", [(70,), (3, 70), (70, 3), (2, 70, 33), (0, 4), (4, 0), (2, 0, 3)])
def test_blocks_lie_along_any_axis(element: str, shape: tuple[int, ...]) -> None:
    values = normal(*shape, 1)[..., 0]
    for axis in range(-len(shape), 0):
        columns = np.moveaxis(values, axis, -1)
        parts = [
            microscaling.round_trip(columns[..., at : at + 32], element)
            for at in range(0, columns.shape[-1], 32)
        ]

        got = microscaling.round_trip(values, element, axis)

        assert got.shape == shape
        if got.size:
            assert np.array_equal(np.moveaxis(got, axis, -1), np.concatenate(parts, -1))


def test_large_matrices_are_rounded_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    values = normal(50, 40)
    whole = microscaling.round_trip(values, "e2m3")
    monkeypatch.setattr(microscaling, "_AT_ONCE", 100)

    assert np.array_equal(microscaling.round_trip(values, "e2m3"), whole)
    assert np.array_equal(microscaling.round_trip(values.T, "e2m3", axis=0).T, whole)


@each_element
@pytest.mark.parametrize("axis", [0, 1])
def test_values_may_be_rounded_in_place(element: str, axis: int) -> None:
    values = normal(70, 40)
    expected = microscaling.round_trip(values, element, axis)

    assert microscaling.round_trip(values, element, axis, out=values) is values
    assert np.array_equal(values, expected)


def test_large_arrays_become_float16_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    values = normal(50, 40)
    whole = microscaling.to_float16_and_back(values)
    monkeypatch.setattr(microscaling, "_AT_ONCE", 33)

    assert np.array_equal(microscaling.to_float16_and_back(values), whole)
    assert microscaling.to_float16_and_back(np.float32(1 / 3)).shape == ()


def test_float16_saturates() -> None:
    values = np.array([1e6, -1e6, 65519, 0.1, 2.0**-25, np.inf, np.nan], np.float32)

    got = microscaling.to_float16_and_back(values)

    assert got.dtype == np.float32
    expected = [65504, -65504, 65504, 0.0999755859375, 0, 65504, np.nan]
    np.testing.assert_array_equal(got, np.array(expected, np.float32))


def test_formats_round_float16_numbers() -> None:
    values = normal(5, 70) * np.float32(1e-3)
    narrow = microscaling.to_float16_and_back(values)

    assert np.array_equal(round_trip(values, FLOAT16), narrow)
    assert np.array_equal(round_trip(values, MXFP6), microscaling.round_trip(narrow, "e2m3"))
    assert np.array_equal(round_trip(values, MXINT8), microscaling.round_trip(narrow, "int8"))
