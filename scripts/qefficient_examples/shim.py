# SPDX-License-Identifier: Apache-2.0
"""pytest plugin that runs QEfficient's own tests of its interface on qeff-zoo.

    PYTHONPATH=scripts python -m pytest -p qefficient_examples.shim CHECKOUT/tests/unit_test/utils/test_cloud.py

`QEfficient` is `qeff_zoo.qefficient`.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_THEIRS, _OURS = "QEfficient", "qeff_zoo.qefficient"


class _Finder:
    """Python finder of QEfficient's modules: ours of the same names."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _THEIRS:
            return None
        return importlib.util.spec_from_loader(fullname, cls, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return import_module(spec.name.replace(_THEIRS, _OURS, 1))

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder)
