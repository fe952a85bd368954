# SPDX-License-Identifier: Apache-2.0
"""The pictures of the sequences that the reference answers, as transformers' forward takes them.

Only the reference process imports this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Pictures:
    """Arguments of a forward besides its tokens.

    Args:
        request: With `pictures`, how many each sequence has, and `images`, what the recipe says of them.
        arrays: `picture.sequence.number.name`, as a processor prepares a picture.
    """

    def __init__(
        self, request: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> None:
        self._counts: list[int] = request.get("pictures") or []
        self._images = request.get("images") or {}
        self._arrays = {
            name: torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("picture.")
        }

    def of(
        self, numbers: Sequence[int], input_ids: Tensor, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return the pictures of some sequences, and which of their tokens belong to pictures.

        Args:
            numbers: Of the sequences, a row each.
            input_ids: (rows, tokens).
            dtype: That the model computes in.
        """
        if not self._counts:
            return {}
        found: dict[str, list[Tensor]] = {}
        for number in numbers:
            for place in range(self._counts[number]):
                prefix = f"picture.{number}.{place}."
                for name in (name for name in self._arrays if name.startswith(prefix)):
                    found.setdefault(name.removeprefix(prefix), []).append(self._arrays[name])
        shown = {name: torch.cat(parts) for name, parts in found.items()}
        shown |= {name: one.to(dtype) for name, one in shown.items() if one.is_floating_point()}
        if (types := self._images.get("types")) and shown:
            shown[types] = (input_ids == self._images["placeholder"]).long()
        return shown
