# SPDX-License-Identifier: Apache-2.0
"""Functions that Qualcomm's HTP approximates more coarsely than float16 would have it.

Measured on the simulator of onnxruntime-qnn 2.7.0, by comparing every intermediate of a graph with what is right.
Products, sums, norms, exponentials and roots are right to the last bit or nearly; these two are not:

- A softmax divides by a reciprocal that is too small, by 0.02 to 0.2 %, with the mantissa of the sum.
- A sigmoid of a product's result is a line, two cubics and a constant, up to 0.0038 off. The compiler makes one
  operator of the two in graphs that decode, and not in all that prefill.
"""

from collections.abc import Sequence

import onnx_ir as ir

from qeff_zoo.semantic.domains import OPSET

_SHORT = 0.99885  # the mean over all mantissas
_LINE = (0.0, 0.2385)
#: Of |x|, what is added to a half: coefficients from the constant on; and where each ends.
_NEAR, _FAR = (-0.00293, 0.28396, -0.05242, 0.002892), (-0.08912, 0.36317, -0.07726, 0.005559)
_LINE_END, _NEAR_END = 0.84, 3.0


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


def bodies(domain: str) -> tuple[str, str]:
    """Return the functions that stand for softmax and sigmoid.

    Args:
        domain: That they belong to.
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
    return softmax, sigmoid


def mark(graph: ir.Graph, domain: str) -> None:
    """Let a graph call these functions, in place.

    Args:
        graph: Of ONNX operators.
        domain: As given to `bodies`.
    """
    for node in graph.all_nodes():
        if node.domain:
            continue
        if node.op_type == "Softmax":
            node.attributes.setdefault("axis", ir.AttrInt64("axis", -1))
            node.domain = domain
        if node.op_type == "Sigmoid":
            given = node.inputs[0]
            product = given.producer() if given is not None else None
            if product is not None and product.op_type in ("MatMul", "Gemm"):
                node.domain = domain
