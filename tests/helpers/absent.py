# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages that this machine lacks, while modules that need them are imported."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def standing_in(modules: Mapping[str, Any]) -> Iterator[None]:
    """Let modules stand in for absent ones.

    Processors that are imported meanwhile hold a stand-in, and are forgotten. All other modules stay, which
    `mock.patch.dict` would drop: transformers keeps classes of modules, and looks these up by name later.

    Args:
        modules: The stand-ins, by name.
    """
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        yield
    for name in {*sys.modules} - before:
        if "_processing_" in name:
            del sys.modules[name]
