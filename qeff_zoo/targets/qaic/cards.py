# SPDX-License-Identifier: Apache-2.0
"""The cards of this machine, and the SDK's modules that drive them."""

import importlib
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from qeff_zoo.errors import GenerationError, SettingsError
from qeff_zoo.targets.qaic.sdk import SDK

#: Ids of the cards to run on, separated by commas.
DEVICES_ENV = "QEFF_ZOO_DEVICES"
_DEV = SDK / "dev"


def sdk() -> tuple[Any, Any]:
    """Import `qaicrt` and `QAicApi_pb2`, from where Python looks or from where the SDK is installed.

    Raises:
        GenerationError: One is not there, or is for another Python.
    """
    for folder in (_DEV / "lib" / platform.machine(), _DEV / "python"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        return importlib.import_module("qaicrt"), importlib.import_module("QAicApi_pb2")
    except ImportError as error:
        raise GenerationError(
            f"Cannot run on Cloud AI 100: {error}. Expected qaicrt and QAicApi_pb2 of its SDKs, for Python "
            f"{platform.python_version()}, under {str(_DEV)!r} or on PYTHONPATH, and protobuf. Install them, or run a "
            "package for target 'ort'."
        ) from error


def choose(qaicrt: Any, flags: Mapping[str, Any]) -> list[int]:
    """Choose as many cards as a program was compiled for: those that the user named, else the first with free cores.

    Args:
        qaicrt: The module.
        flags: Flags of the compiler.

    Raises:
        GenerationError: There are too few, or another number was named.
        SettingsError: `QEFF_ZOO_DEVICES` is no list of ids.
    """
    needed, cores = int(flags.get("num_devices", 1)), int(flags.get("num_cores", 1))
    named = _named()
    if named and len(named) != needed:
        raise GenerationError(
            f"{DEVICES_ENV} names {len(named)} cards, {', '.join(map(str, named))}; expected {needed}, as the program "
            f"was compiled. Name as many, or build with --num-devices {len(named)}."
        )
    if named:
        return named
    util = qaicrt.Util()
    status, known = util.getDeviceIds()
    every = [int(name) for name in known] if status == qaicrt.QStatus.QS_SUCCESS else []
    free = [one for one in every if _free_cores(qaicrt, util, one) >= cores]
    if len(free) < needed:
        raise GenerationError(
            f"{len(free)} of {len(every)} Cloud AI 100 cards have {cores} free cores ({status}); expected {needed}, as "
            f"the program was compiled. End what else runs on them (`qaic-util -q` lists it), or name cards with "
            f"{DEVICES_ENV}."
        )
    return free[:needed]


def _named() -> list[int]:
    text = os.environ.get(DEVICES_ENV, "")
    ids = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in ids) or len({*ids}) < len(ids):
        raise SettingsError(
            f"{DEVICES_ENV} is {text!r}; expected ids of different cards, such as '0,1'. Correct it, or unset it for "
            "the first that are free."
        )
    return [int(word) for word in ids]


def _free_cores(qaicrt: Any, util: Any, card: int) -> int:
    status, resources = util.getResourceInfo(card)
    return int(resources.nspFree) if status == qaicrt.QStatus.QS_SUCCESS else 0
