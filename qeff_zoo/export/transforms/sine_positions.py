# SPDX-License-Identifier: Apache-2.0
"""Sine tables of positions that a model computes itself, and that no checkpoint has, become constants."""

from typing import Any


def apply(model: Any) -> int:
    """Give every such table its values.

    Args:
        model: Model, changed in place.

    Returns:
        Number of tables changed.
    """
    tables = [module for module in model.modules() if hasattr(module, "create_weight")]
    for table in tables:
        values = table.create_weight()
        del table.weight
        table.register_buffer("weight", values, persistent=False)
    return len(tables)
