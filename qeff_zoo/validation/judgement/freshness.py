# SPDX-License-Identifier: Apache-2.0
"""Freshness of evidence: a validation holds for the software that it was made with.

In: a package. Out: the versions that its evidence is of, those of this machine, and how they differ.
"""

import json
from collections.abc import Mapping
from typing import Any

from qeff_zoo import registry, targets
from qeff_zoo.contract import for_task
from qeff_zoo.package import Package
from qeff_zoo.package.identity import digest
from qeff_zoo.plan.spec import TRACERS, libraries_of, spec_of
from qeff_zoo.store import Store
from qeff_zoo.versions import installed

#: Fields of a store's outcome: versions of the newest evidence of a package, and what disagreed with them.
VERSIONS, DISAGREES = "versions", "disagrees"
#: Name in the `tested` versions of an index entry of what its newest evidence is made from.
EVIDENCE = "evidence"
_REFERENCE = "transformers"
_DIGITS = 12  # of a recipe's digest


def versions_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return what evidence of a package is made from, by name: software, recipe, target's lowering.

    Args:
        spec: Spec of the package, whose toolchain is that of the first validation.
    """
    tools = {name: str(it) for name, it in spec["toolchain"].items() if name not in TRACERS}
    target = spec["target"]
    return {
        _REFERENCE: str(spec["toolchain"].get(_REFERENCE, "")),
        **tools,
        "recipe": digest(spec["recipe"], "qz-recipe-1")[:_DIGITS],
        f"target {target['name']}": f"revision {target['revision']}",
    }


def versions_now(package: Package) -> dict[str, str]:
    """Return what a validation of a package on this machine would be made from; see `versions_of`.

    Args:
        package: Package of a model that has a recipe.
    """
    target = targets.find(package.target)
    path = package.path / "config.json"  # which a pipeline lacks
    config = json.loads(path.read_bytes()) if path.is_file() else package.manifest
    recipe = for_task(registry.recipe_for(config), package.task)
    now: dict[str, Any] = {
        "recipe": spec_of(recipe),
        "target": {"name": target.name, "revision": target.revision},
        "toolchain": {
            _REFERENCE: installed(_REFERENCE) or "absent",
            **{name: installed(name) or "absent" for name in libraries_of(recipe)},
            **target.resolve({}, {}).toolchain,
        },
    }
    return versions_of(now)


def described(versions: Mapping[str, str]) -> str:
    """Describe versions in one line."""
    return "; ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe how versions differ: "onnxruntime 1.31.1, now 1.32.0".

    Args:
        before: Versions of the evidence.
        now: Current versions.
    """
    return [
        f"{name} {before.get(name, 'absent')}, now {now.get(name, 'absent')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def versions_of_evidence(package: Package, store: Store) -> Mapping[str, str]:
    """Return what the newest evidence of a package is made from; see `versions_of`.

    Args:
        package: Validated package.
        store: Store with the outcomes of later validations.
    """
    noted: Mapping[str, str] | None = store.outcome(package.build_key).get(VERSIONS)
    return noted or versions_of(package.manifest["spec"])


def staleness(package: Package, store: Store) -> list[str]:
    """Describe why the evidence of a package is stale, a phrase each; empty if it is fresh.

    Args:
        package: Validated package.
        store: Store with the outcomes of later validations.
    """
    return differences(versions_of_evidence(package, store), versions_now(package))


def same_variant(spec: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two packages are of the same model and options, whatever they were made with.

    Args:
        spec: Spec of a package.
        other: Spec of another package.
    """
    return _chosen(spec) == _chosen(other)


def _chosen(spec: Mapping[str, Any]) -> dict[str, Any]:
    target = {name: value for name, value in spec["target"].items() if name != "revision"}
    names = ("sources", "task", "shape", "quantization")
    return {**{name: spec.get(name) for name in names}, "target": target}
