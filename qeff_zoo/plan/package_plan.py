# SPDX-License-Identifier: Apache-2.0
"""Plan of a package: every decision, the spec that identifies it, and its programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.package import identity
from qeff_zoo.plan.spec import NO_WEIGHTS, TRACERS, libraries_of
from qeff_zoo.recipe import Recipe
from qeff_zoo.targets.base import Resolved


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved build.

    Args:
        recipe: Recipe of the checkpoint's `model_type`, for the chosen task.
        programs: Programs of the package, one for each component of the recipe.
        resolved: Additions of the target.
        spec: Everything that identifies the build, as JSON values; its digest is the build key.
        why: Source of each chosen field of the spec, by its path.
        warnings: Warnings about possible failures or surprises, one sentence each.
        generation: Generation settings of the checkpoint, which its files set and the spec has the digest of.
    """

    recipe: Recipe = field(repr=False)
    programs: tuple[ProgramPlan, ...]
    resolved: Resolved
    spec: Mapping[str, Any]
    why: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    generation: Mapping[str, str] = field(default_factory=dict)

    @property
    def build_key(self) -> str:
        """Portable identity of the package."""
        return identity.build_key(self.spec)

    def of_weights(self, digest: str) -> "Plan":
        """Return this plan with the digest of the weights.

        Args:
            digest: Identity of the weights, "sha256:…".
        """
        sources = self.spec["sources"]
        model = {**sources["model"], "weights": digest}
        return replace(self, spec={**self.spec, "sources": {**sources, "model": model}})

    @property
    def has_parts(self) -> bool:
        """Whether the model is traced in several parts, with one graph each."""
        return len(self.programs) > 1 or bool(self.programs[0].fused)

    @property
    def target(self) -> str:
        """Name of the target."""
        return str(self.spec["target"]["name"])

    def explained(self) -> dict[str, dict[str, Any]]:
        """Return every chosen field with its value and source, then the fields derived from the checkpoint."""
        chosen = {path: (_at(self.spec, path), by) for path, by in self.why.items()}
        follows = {
            "recipe.model_type": self.recipe.model_type,
            **_below("sources.model", self.spec["sources"]["model"]),
            **_below("target", self.spec["target"]),
            **_below("toolchain", self.spec["toolchain"]),
            **{f"generation.{name}": value for name, value in self.generation.items()},
        }
        derived = {
            path: (value, "derived")
            for path, value in follows.items()
            if value not in (None, NO_WEIGHTS)
        }
        # Chosen fields keep the first position and override derived ones.
        every = {**chosen, **derived, **chosen}
        return {path: {"value": value, "by": by} for path, (value, by) in every.items()}

    def graph_key(self, program: ProgramPlan, structure: str) -> str:
        """Return the key of a program's traced graph, which is the same for every fine-tune of one architecture.

        Args:
            program: A program of this plan.
            structure: Digest of the checkpoint's tensor names and shapes.
        """
        parts = {
            **{name: self.spec[name] for name in ("arch", "recipe", "exporter")},
            "toolchain": {
                name: self.spec["toolchain"][name]
                for name in (*TRACERS, *libraries_of(self.recipe))
            },
            "variant": dict(program.variant),
            "task": program.task,
            **({"role": program.role} if self.has_parts else {}),
            "structure": structure,
        }
        return "qg1-" + identity.digest(parts, "qz-graph-1")


def _at(spec: Mapping[str, Any], path: str) -> Any:
    """Return the value of a spec at a path of groups and a name; omitted options are off."""
    value: Any = spec
    for part in path.split("."):
        value = value.get(part, False)
    return value


def _below(path: str, members: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{path}.{name}": value for name, value in members.items()}
