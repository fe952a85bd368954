# SPDX-License-Identifier: Apache-2.0
"""Names of our ONNX domains, and the opset of the portable graph."""

OPSET = 18
#: Semantic ops, which targets lower.
SEMANTIC = "qeff_zoo"
#: Functions that repeated layers are folded into.
LAYERS = "qeff_zoo.layers"
