# SPDX-License-Identifier: Apache-2.0
"""Functions that Qualcomm's HTP approximates more coarsely than float16 would have it.

Measured on the simulator of onnxruntime-qnn 2.7.0, by comparing every intermediate of a graph with what is right.
Products, sums, norms, exponentials, roots, tanh and powers are right to the last bit or nearly; these are not:

- A softmax divides by a reciprocal that is too small, by 0.02 to 0.2 %, with the mantissa of the sum.
- A sigmoid of a product's result is a line, two cubics and a constant, up to 0.0038 off. The compiler makes one
  operator of the two in graphs that decode, and not in all that prefill.
- A GELU is that by tanh, also if the graph has that by erf: x times a share in steps of 1/2048, which is 0 below
  -3.57, and 1 + 1/1024 above 3.57. The same holds for a GELU of a product's result that is spelled in small operators.
- A quotient is too small by 0.03 %: the reciprocal is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff_zoo.graph.constants import number_of
from qeff_zoo.graph.semantic.domains import OPSET

_SHORT = 0.99885  # the mean over all mantissas
_LINE = (0.0, 0.2385)
#: Of |x|, what is added to a half: coefficients from the constant on; and where each ends.
_NEAR, _FAR = (-0.00293, 0.28396, -0.05242, 0.002892), (-0.08912, 0.36317, -0.07726, 0.005559)
_LINE_END, _NEAR_END = 0.84, 3.0
_SHARES, _SHARE_END = 2048.0, 3.57
_QUOTIENT = 0.99971  # the mean over all mantissas
_FORMS = ("Tanh", "Erf")  # of which a GELU is written in small operators
_LONGEST = 5  # operators from its input to one of these, and from there to its end
_POINTS = np.linspace(-4, 4, 41)
_GELU = 0.5 * _POINTS * (1 + np.tanh(math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS**3)))
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf),
}


def _polynomial(name: str, coefficients: Sequence[float]) -> str:
    """Write nodes that compute a polynomial of `size`."""
    *rest, last = coefficients
    lines = [f"{name}_0 = Constant <value_float = {last}> ()"]
    for step, coefficient in enumerate(reversed(rest)):
        lines += [
            f"{name}_times_{step} = Mul ({name}_{step}, size)",
            f"{name}_with_{step} = Constant <value_float = {coefficient}> ()",
            f"{name}_{step + 1} = Add ({name}_times_{step}, {name}_with_{step})",
        ]
    return "\n".join([*lines, f"{name} = Identity ({name}_{len(rest)})"])


def bodies(domain: str) -> tuple[str, ...]:
    """Return the functions that stand for softmax, sigmoid, GELU and quotients.

    Args:
        domain: Domain of the bodies.
    """
    header = f'<domain: "{domain}", opset_import: ["" : {OPSET}]>'
    softmax = f"""{header}
    Softmax <axis> (x) => (y) {{
        exact = Softmax <axis: int = @axis> (x)
        short = Constant <value_float = {_SHORT}> ()
        y = Mul (exact, short)
    }}"""
    sigmoid = f"""{header}
    Sigmoid (x) => (y) {{
        size = Abs (x)
        {_polynomial("line", _LINE)}
        {_polynomial("near", _NEAR)}
        {_polynomial("far", _FAR)}
        line_end = Constant <value_float = {_LINE_END}> ()
        near_end = Constant <value_float = {_NEAR_END}> ()
        half = Constant <value_float = 0.5> ()
        is_line = Less (size, line_end)
        is_near = Less (size, near_end)
        curve = Where (is_near, near, far)
        every = Where (is_line, line, curve)
        above = Min (every, half)
        sign = Sign (x)
        signed = Mul (sign, above)
        y = Add (signed, half)
    }}"""
    gelu = f"""{header}
    Gelu (x) => (y) {{
        square = Mul (x, x)
        cubes = Constant <value_float = 0.044715> ()
        one = Constant <value_float = 1.0> ()
        little = Mul (square, cubes)
        stretched = Add (little, one)
        root = Constant <value_float = {math.sqrt(2 / math.pi)}> ()
        scaled = Mul (x, root)
        inner = Mul (scaled, stretched)
        curve = Tanh (inner)
        more = Add (curve, one)
        half = Constant <value_float = 0.5> ()
        share = Mul (more, half)
        zero = Constant <value_float = 0.0> ()
        many = Constant <value_float = {_SHARES}> ()
        wide = Mul (share, many)
        whole = Round (wide)
        step = Div (whole, many)
        end = Constant <value_float = {_SHARE_END}> ()
        begin = Constant <value_float = {-_SHARE_END}> ()
        most = Constant <value_float = {1 + 2 / _SHARES}> ()
        is_above = Greater (x, end)
        is_below = Less (x, begin)
        above = Where (is_above, most, step)
        every = Where (is_below, zero, above)
        y = Mul (x, every)
    }}"""
    quotient = f"""{header}
    Div (x, divisor) => (y) {{
        right = Div (x, divisor)
        short = Constant <value_float = {_QUOTIENT}> ()
        y = Mul (right, short)
    }}"""
    reciprocal = f"""{header}
    Reciprocal (x) => (y) {{
        right = Reciprocal (x)
        short = Constant <value_float = {_QUOTIENT}> ()
        y = Mul (right, short)
    }}"""
    return softmax, sigmoid, gelu, quotient, reciprocal


def mark(graph: ir.Graph, domain: str) -> None:
    """Let a graph call these functions, in place.

    Args:
        graph: Graph of ONNX operators.
        domain: Argument of `bodies`.
    """
    for end, x in list(_gelus(graph)):
        node = end.producer()
        assert node is not None
        gelu = ir.node("Gelu", [x])
        gelu.outputs[0].type, gelu.outputs[0].shape = end.type, end.shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], [gelu], [end], gelu.outputs)
    for node in graph.all_nodes():
        if node.domain:
            continue
        if node.op_type == "Softmax":
            node.attributes.setdefault("axis", ir.AttrInt64("axis", -1))
            node.domain = domain
        elif node.op_type == "Sigmoid":
            if _is_product(node.inputs[0], biased=False):
                node.domain = domain
        elif node.op_type == "Gelu":
            node.attributes.pop("approximate", None)
            node.domain = domain
        elif node.op_type in ("Div", "Reciprocal"):
            divisor = node.inputs[-1]
            if node.outputs[0].dtype == ir.DataType.FLOAT and number_of(divisor) is None:
                node.domain = domain


def _is_product(value: ir.Value | None, *, biased: bool) -> bool:
    """Whether a product makes a value, perhaps with a bias."""
    node = value.producer() if value is not None else None
    if node is not None and biased and node.op_type == "Add":
        return any(_is_product(one, biased=False) for one in node.inputs)
    return node is not None and node.op_type in ("MatMul", "Gemm")


def _gelus(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield results and inputs of GELUs that are written in small operators."""
    for node in graph:
        if node.op_type in _FORMS and not node.domain:
            inputs = [one for one in _above(node, _LONGEST) if _is_product(one, biased=True)]
            value = node.outputs[0]
            for _ in range(_LONGEST):
                if len(value.uses()) != 1 or value.consumers()[0].op_type not in _ARITHMETIC:
                    break
                value = value.consumers()[0].outputs[0]
                x = next((one for one in inputs if _is_gelu(value, one)), None)
                if x is not None:
                    yield value, x
                    break


def _above(node: ir.Node, steps: int) -> Iterator[ir.Value]:
    """Yield what a node computes from, through that many operators at most."""
    for value in node.inputs:
        if value is not None:
            yield value
            maker = value.producer()
            if maker is not None and steps and maker.op_type in _ARITHMETIC:
                yield from _above(maker, steps - 1)


def _is_gelu(value: ir.Value, x: ir.Value) -> bool:
    with np.errstate(all="ignore"):
        computed = _computed(value, x, 3 * _LONGEST)
    return computed is not None and np.allclose(computed, _GELU, atol=2e-3)


def _computed(value: ir.Value | None, x: ir.Value, steps: int) -> Any:
    """Compute a value from points of another; None where it depends on more."""
    if value is x:
        return _POINTS
    if (number := number_of(value)) is not None:
        return number
    node = value.producer() if value is not None else None
    if node is None or not steps or node.domain or node.op_type not in _ARITHMETIC:
        return None
    given = [_computed(one, x, steps - 1) for one in node.inputs]
    return None if any(one is None for one in given) else _ARITHMETIC[node.op_type](*given)
