# SPDX-License-Identifier: Apache-2.0
"""A file for the weights that `device.apply` rounds, so that no graph is too large for its own."""

from pathlib import Path

import onnx_ir as ir

from qeff_zoo.store import Store

_ALIGNED = 4096
_SMALL = 1 << 10  # bytes of a tensor that stays in its graph


class RoundedWeights:
    """Rounded weights of graphs, each written once however many graphs read it.

    Args:
        path: Path of the file, which `place` writes; beside the graphs that read it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._placed: dict[str, ir.ExternalTensor] = {}
        self._written = 0

    def place(self, model: ir.Model) -> None:
        """Write what a graph reads and the file does not have yet, and let the graph read it there.

        Args:
            model: After `device.apply`.

        Raises:
            StoreError: The disk has no room for it.
        """
        tensors = {
            value: tensor
            for value in model.graph.initializers.values()
            if isinstance(tensor := value.const_value, ir.LazyTensor) and tensor.nbytes > _SMALL
        }
        fresh = [tensor for tensor in tensors.values() if tensor.name not in self._placed]
        needed = sum(tensor.nbytes + _ALIGNED for tensor in fresh)
        Store.require_space(self._path.parent, needed, "rounded weights")
        with self._path.open("ab") as file:
            for tensor in fresh:
                self._written += file.write(bytes(-self._written % _ALIGNED))
                tensor.tofile(file)
                self._placed[str(tensor.name)] = ir.ExternalTensor(
                    self._path.name, self._written, tensor.nbytes, tensor.dtype,
                    shape=ir.Shape(tensor.shape), name=str(tensor.name), base_dir=self._path.parent,
                )  # fmt: skip
                self._written += tensor.nbytes
        for value, tensor in tensors.items():
            value.const_value = self._placed[str(tensor.name)]
