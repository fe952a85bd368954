# SPDX-License-Identifier: Apache-2.0
"""Plan of a build: every decision, made once, in the order of what each requires.

Input: a checkpoint's config and a request. Output: a frozen `Plan`, which `qeff-zoo plan` prints, whose digest is the
    build key, and which the manifest records. Only the config and small files are downloaded; all conflicts are
    reported together.
"""

from dataclasses import replace

from qeff_zoo import contract
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import PlanError
from qeff_zoo.export.program_plan import READERS, ProgramPlan
from qeff_zoo.plan.adapters import decide_adapter_slots, decide_merged_adapters
from qeff_zoo.plan.decisions import Decision, Decisions, make
from qeff_zoo.plan.generation import check_generation, generation_warnings, shown_settings
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.plan.shape import decide_shape
from qeff_zoo.plan.spec import spec_of_build
from qeff_zoo.plan.target import (
    check_applicable,
    check_programs,
    check_single_program,
    check_target,
    decide_options,
    decide_target,
    decide_tuning,
)
from qeff_zoo.plan.task import (
    check_quantization,
    decide_components,
    decide_rope_factors,
    decide_task,
    decide_task_options,
    recipe_of,
)
from qeff_zoo.plan.weights import decide_weights, float_warnings, rounding_warnings
from qeff_zoo.weights.kv_heads import widened

#: Initial facts of every plan.
GIVEN = ("checkpoint", "request", "architecture")
#: Every decision of a plan. A decision requires the facts that its parameters name, which earlier decisions provide.
DECISIONS = (
    Decision(decide_task, provides=("recipe", "left_out")),
    Decision(decide_target, provides=("target",)),
    Decision(decide_components, provides=("components", "fused_heads")),
    Decision(check_quantization),
    Decision(check_generation, provides=("generation",)),
    Decision(decide_weights, provides=("weights", "formats", "float8")),
    Decision(decide_tuning, provides=("profile", "tuned")),
    Decision(decide_shape, provides=("shape",)),
    Decision(decide_task_options, provides=("task_options",)),
    Decision(decide_merged_adapters),
    Decision(decide_adapter_slots, provides=("adapter_slots",)),
    Decision(decide_rope_factors, provides=("rope_factors",)),
    Decision(decide_options, provides=("options",)),
    Decision(check_target),
    Decision(check_programs),
    Decision(check_applicable),
    Decision(check_single_program),
)


def check(checkpoint: Checkpoint, request: Request) -> Plan:
    """Make every decision from small files alone, before weights are downloaded or hashed.

    Args:
        checkpoint: Opened checkpoint; its weights may be remote.
        request: Options of the build.

    Returns:
        The plan without a digest of the weights: sufficient to trace, insufficient to identify a package.

    Raises:
        UnsupportedModelError: The model has no recipe.
        PlanError: Options conflict; all conflicts at once.
    """
    architecture = recipe_of(checkpoint)
    decisions = make(DECISIONS, checkpoint=checkpoint, request=request, architecture=architecture)
    if decisions.problems:
        raise PlanError(decisions.problems)
    facts = decisions.facts
    target, options = facts["target"], facts["options"]
    resolved = target.resolve(widened(checkpoint.config, request.kv_heads), options)
    programs = _programs(checkpoint, decisions)
    floats = float_warnings(checkpoint, request, target)
    chosen = {name: (decisions.value[name], by) for name, by in decisions.why.items()}
    surprises = contract.find(facts["recipe"].task).warnings(checkpoint, chosen)
    return Plan(
        recipe=facts["recipe"],
        programs=programs,
        resolved=resolved,
        spec=spec_of_build(checkpoint, decisions, programs, resolved),
        why={str(OPTIONS[name].path): by for name, by in decisions.why.items()},
        warnings=(
            *resolved.warnings,
            *([facts["tuned"].note] if facts["tuned"] else []),
            *rounding_warnings(checkpoint, request),
            *floats,
            *surprises,
            *facts["left_out"],
            *generation_warnings(checkpoint, facts["recipe"], facts["generation"], options),
        ),
        generation=shown_settings(facts["generation"]),
    )


def resolve(checkpoint: Checkpoint, request: Request, weights_digest: str) -> Plan:
    """Make every decision, with the digest of the weights.

    Args:
        checkpoint: Opened checkpoint.
        request: Options of the build.
        weights_digest: Identity of the weights, "sha256:…".

    Raises:
        ZooError: The same errors as `check`.
    """
    return check(checkpoint, request).of_weights(weights_digest)


def _programs(checkpoint: Checkpoint, decisions: Decisions) -> tuple[ProgramPlan, ...]:
    """Plan one program for each component, or a single program that also computes its encoders."""
    facts = decisions.facts
    recipe, shape, options = facts["recipe"], facts["shape"], facts["options"]
    programs = list[ProgramPlan]()
    for component in facts["components"]:
        if shape.decode_only and component.role in READERS:
            continue  # another package, for the same target, encodes images
        part = contract.part_of(component)
        variant = {
            **part.variant(checkpoint, recipe, shape, decisions.value),
            **facts["adapter_slots"],
            **facts["rope_factors"],
        }
        if facts["fused_heads"] and variant.pop("hidden_states", None):
            variant["heads"] = facts["fused_heads"]
        programs.append(
            ProgramPlan(
                role=component.role,
                task=component.task,
                variant=variant,
                specializations=part.specializations(part.sized(checkpoint, shape)),
                shape=shape,
                flags=options,
                **facts["formats"],
            )
        )
    if not options.get("single_program"):
        return tuple(programs)
    answering, *others = programs
    fused = tuple(program for program in others if program.role in READERS)
    return (replace(answering, fused=fused), *(one for one in others if one not in fused))
