# SPDX-License-Identifier: Apache-2.0
"""What several tests of full size and others use."""

import onnx
import onnx_ir as ir


def without_weights(graph: ir.Model) -> onnx.ModelProto:
    """Make inputs of the weights, which lie in no file yet."""
    proto = ir.to_proto(graph)
    stored = list(proto.graph.initializer)
    del proto.graph.initializer[:]
    for tensor in stored:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
        else:
            proto.graph.initializer.append(tensor)
    return proto
