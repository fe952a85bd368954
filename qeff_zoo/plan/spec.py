# SPDX-License-Identifier: Apache-2.0
"""Spec of a build: everything that identifies a package, as JSON values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.export import transforms
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.package import identity
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import Pipeline, Recipe
from qeff_zoo.targets.base import Resolved
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Version of the form of a spec.
SPEC_VERSION = 2
#: Raised if the same inputs give another graph or another package.
EXPORTER_REVISION = 7
#: Placeholder digest of the weights in a plan that is made from a config alone.
NO_WEIGHTS = "sha256:" + "0" * 64
#: Distributions whose versions determine a traced graph.
TRACERS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


def spec_of_build(
    checkpoint: "Checkpoint",
    decisions: Decisions,
    programs: Sequence[ProgramPlan],
    resolved: Resolved,
) -> dict[str, Any]:
    """Return the spec of a build without a digest of the weights.

    Args:
        checkpoint: Opened checkpoint.
        decisions: All decisions, without problems.
        programs: Programs of the package.
        resolved: Additions of the target.
    """
    from qeff_zoo.checkpoint import processors, text  # slow, and of no use to `spec_of`

    facts = decisions.facts
    target, shape = facts["target"], facts["shape"]
    return {
        "spec": SPEC_VERSION,
        "sources": _sources(checkpoint),
        "arch": identity.arch_digest(checkpoint.config),
        "recipe": spec_of(facts["recipe"]),
        "task": {
            **_group(decisions, "task"),
            **{name: value for program in programs for name, value in program.variant.items()},
        },
        "shape": {key: value for key, value in asdict(shape).items() if value},
        "quantization": {
            "method": checkpoint.method,
            **_group(decisions, "quantization"),
            # Revision of what becomes of 8-bit floats: they were dequantized before.
            **({"float8": 1} if facts["float8"] else {}),
            # Revision of the rounding to int4: once to the nearest of steps over the range of a block.
            **({"int4": 1} if any(map(_is_fitted, programs)) else {}),
        },
        "target": {"name": target.name, "revision": target.revision, **facts["options"]},
        "exporter": EXPORTER_REVISION,
        "tokenizer": text.identity_of(checkpoint.tokenizer_files),
        "processor": processors.identity_of(checkpoint.companions),
        "toolchain": {
            **{
                name: installed(name) or "absent"
                for name in (*TRACERS, *libraries_of(facts["recipe"]))
            },
            **resolved.toolchain,
        },
    }


def _is_fitted(program: ProgramPlan) -> bool:
    return any(one.fitted for one in (program.weights, *dict(program.named).values()))


def _group(decisions: Decisions, group: str) -> dict[str, Any]:
    """Return the chosen options of a part of the spec, by their names in that part."""
    names = [name for name in decisions.why if OPTIONS[name].group == group]
    return {OPTIONS[name].key: decisions.value[name] for name in names}


def _sources(checkpoint: "Checkpoint") -> dict[str, Any]:
    adapters = [adapter.source for adapter in checkpoint.merged]
    heads = checkpoint.speculator
    model = {
        "model_id": checkpoint.model_id,
        "revision": checkpoint.revision,
        "weights": NO_WEIGHTS,
        "companions": checkpoint.companions_digest(),
    }
    return {
        "model": model,
        **({"adapters": adapters} if adapters else {}),
        **({"speculator": heads.source} if heads else {}),
    }


def libraries_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the distributions beside transformers whose classes a recipe's models have."""
    return ("diffusers",) if recipe.pipeline else ()


def spec_of(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe that determine graphs."""
    always = [{"name": name, "version": version} for name, version in transforms.ALWAYS.items()]
    own = [
        {"name": one.name, "version": one.version, "parameters": dict(one.parameters)}
        for one in recipe.transforms
    ]
    return {
        "model_type": recipe.model_type,
        "rev": recipe.rev,
        "transforms": [*always, *own],
        "components": [],  # in every build key so far
        **({"image_processor": recipe.image_processor} if recipe.image_processor else {}),
        **({"media": entry_of(recipe.media)} if recipe.media else {}),
        **({"audio": entry_of(recipe.audio)} if recipe.images and recipe.audio else {}),
        **({"pipeline": _entry_of(recipe.pipeline)} if recipe.pipeline else {}),
    }


def _entry_of(pipeline: Pipeline) -> dict[str, Any]:
    return {"family": pipeline.family, "components": dict(pipeline.components)}
