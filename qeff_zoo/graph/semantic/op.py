# SPDX-License-Identifier: Apache-2.0
"""What a semantic op is: a name, a signature, and the ONNX function that computes it anywhere."""

from dataclasses import dataclass

#: An attribute that bounds no float32.
UNBOUNDED = 3.4028234663852886e38


@dataclass(frozen=True, kw_only=True)
class SemanticOp:
    """One op of the portable graph.

    Args:
        name: ONNX op type in the domain `qeff_zoo`.
        inputs: Number of inputs.
        outputs: Input that determines the type of each output; None for float32.
        attributes: Names of float attributes.
        integers: Names of integer attributes.
        body: ONNX function in onnx.parser's text form, opset 18.
    """

    name: str
    inputs: int
    body: str
    outputs: tuple[int | None, ...] = (0,)
    attributes: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
