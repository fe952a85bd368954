# SPDX-License-Identifier: Apache-2.0
"""Validation notices plausible faults of a quantized package, however slight, and refuses no right one."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import selection
from runnable_package import package

from qeff_zoo.registry import find_recipe
from qeff_zoo.validation import tiny_models

SCRIPT = Path(__file__).parent.parent / "scripts" / "package_faults.py"
AT_LEAST = 45


def test_every_fault_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    spec = importlib.util.spec_from_file_location("package_faults", SCRIPT)
    assert spec
    assert spec.loader
    package_faults = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "package_faults", package_faults)
    spec.loader.exec_module(package_faults)
    every: list[str] = []

    def some(faults: Mapping[str, Any]) -> Mapping[str, Any]:
        every.extend(faults)
        drawn = selection.sample(
            dict.fromkeys(faults, ()), 1 if selection.EVERY else selection.TENTH
        )
        return {name: faults[name] for name in faults if name in drawn}

    of_graphs, of_calls = package_faults.graph_faults, package_faults.CALL_FAULTS
    monkeypatch.setattr(package_faults, "graph_faults", lambda config: some(of_graphs(config)))
    monkeypatch.setattr(package_faults, "CALL_FAULTS", some(of_calls))
    recipe = find_recipe("gemma3_text")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "checkpoint")
    made = package(checkpoint, weights="int8", batch_size=3, prefill_seq_len=8, ctx_len=48)
    right, *faults = package_faults.results(made, checkpoint)
    assert not right.noticed
    assert right.error < right.threshold / 4
    assert len({*every}) >= AT_LEAST
    assert len({one.fault for one in faults}) >= (AT_LEAST if selection.EVERY else 1)
    assert [one.fault for one in faults if not one.noticed] == []
    assert all(one.stages for one in faults)
