# SPDX-License-Identifier: Apache-2.0
"""pytest plugin that runs QEfficient's own tests of its interface on qeff-zoo.

    PYTHONPATH=scripts python -m pytest -p qefficient_examples.shim -c /dev/null --confcutdir CHECKOUT/tests/unit_test \
        CHECKOUT/tests/unit_test/utils/test_cloud.py

`QEfficient` is `qeff_zoo.qefficient`. A name without a counterpart fails where a test uses it, and not its whole file.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from qeff_zoo.errors import MissingNameError

_THEIRS, _OURS = "QEfficient", "qeff_zoo.qefficient"


class _Missing:
    """Stand-in for a name without a counterpart; every use raises the error of its import."""

    def __init__(self, error: MissingNameError) -> None:
        self.__dict__["_error"] = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.__dict__["_error"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.__dict__["_error"]


def _forgiving(module: ModuleType) -> ModuleType:
    """Let a module return stand-ins for names without a counterpart."""
    find = vars(module).get("__getattr__")
    if find is None or vars(find).get("forgives"):
        return module

    def found(name: str) -> Any:
        try:
            return find(name)
        except MissingNameError as error:
            return _Missing(error)

    found.forgives = True  # type: ignore[attr-defined]
    module.__getattr__ = found  # type: ignore[method-assign]
    return module


def _absent(name: str, error: MissingNameError) -> ModuleType:
    """Return a module without a counterpart, all of whose names are stand-ins."""
    module = ModuleType(name)

    def found(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Missing(error)

    module.__getattr__ = found  # type: ignore[method-assign]
    return module


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
        try:
            return _forgiving(import_module(spec.name.replace(_THEIRS, _OURS, 1)))
        except MissingNameError as error:
            return _absent(spec.name, error)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder)
