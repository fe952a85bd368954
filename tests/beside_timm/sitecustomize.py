# SPDX-License-Identifier: Apache-2.0
"""Lets torchvision be imported beside the CPU's torch: its wheel in package registries is built for CUDA's.

Without that its operators are not loaded, which it takes; but of two it says how they are computed without values.
"""

import torch

_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
