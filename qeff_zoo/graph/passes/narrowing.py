# SPDX-License-Identifier: Apache-2.0
"""Constants within the range of devices that compute in float16 and int32, whatever the types of the graph.

The mask value -3.4e38 would become minus infinity, and a fully masked row NaN. Devices truncate integers silently.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qeff_zoo.graph.external_data import is_placeholder

#: Replaces numbers below float16: masked scores are 0 after a softmax, and the sum of two masks is still finite.
HIDDEN = -30000.0
_LARGEST = 65504.0
_INT32 = np.iinfo(np.int32)


def narrow(model: ir.Model) -> int:
    """Bring every constant into the range of float16 or int32, in place; return the number of changed constants.

    Infinities stay: float16 has them.

    Args:
        model: Model without functions; weights stay.
    """
    count = 0
    for value in model.graph.initializers.values():
        if value.const_value is None or is_placeholder(value):
            continue
        narrowed = _narrowed(value.const_value.numpy())
        if narrowed is not None:
            value.const_value = ir.tensor(narrowed, name=value.name)
            count += 1
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("Constant", "ConstantOfShape"):
            continue
        for name, array in _arrays(node):
            narrowed = _narrowed(array)
            if narrowed is not None:
                del node.attributes[name]
                node.attributes["value"] = ir.AttrTensor("value", ir.tensor(narrowed))
                count += 1
    return count


def _arrays(node: ir.Node) -> Iterator[tuple[str, np.ndarray]]:
    for name, attribute in list(node.attributes.items()):
        if name == "value":
            yield name, attribute.as_tensor().numpy()
        elif name in ("value_float", "value_floats"):
            yield name, np.asarray(attribute.value, np.float32)
        elif name in ("value_int", "value_ints"):
            yield name, np.asarray(attribute.value, np.int64)


def _narrowed(array: np.ndarray) -> np.ndarray | None:
    """Return a constant, brought into the range; None if it is within."""
    if array.dtype in (np.float32, np.float64):
        finite = np.isfinite(array)
        below, above = finite & (array < -_LARGEST), finite & (array > _LARGEST)
        if not (below | above).any():
            return None
        narrowed: np.ndarray = np.where(below, HIDDEN, np.where(above, _LARGEST, array))
    elif array.dtype == np.int64:
        narrowed = array.clip(_INT32.min, _INT32.max)
        if (narrowed == array).all():
            return None
    else:
        return None
    return narrowed.astype(array.dtype)
