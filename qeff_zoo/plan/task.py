# SPDX-License-Identifier: Apache-2.0
"""Decisions about the task: its recipe, the models that become programs, and the options of its graphs."""

from collections.abc import Sequence

from qeff_zoo import contract, registry
from qeff_zoo.checkpoint import authors_forms, formats
from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.config_faults import fault_of_labels
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.rope import rope_scalings
from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import (
    CrossEncoder,
    read_cross_encoder,
)
from qeff_zoo.checkpoint.sentence_transformers.sparse_encoder import read_sparse_encoder
from qeff_zoo.checkpoint.weight_files import undescribed
from qeff_zoo.contract import selection
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import Component, Recipe, Shape
from qeff_zoo.targets.base import Target


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """Return the recipe of a checkpoint's `model_type`.

    Raises:
        UnsupportedModelError: The `model_type` has no recipe, or the checkpoint is not in transformers' form.
    """
    other = authors_forms.converted(checkpoint.name)
    instead = (
        f"The files of {checkpoint.name!r} are for its authors' own code. Expected those of transformers' form. Build "
        f"{other!r}, which has the same weights."
    )
    # A folder of that name may have files of transformers' form.
    if other and (checkpoint.model_id or checkpoint.needs_remote_code):
        raise UnsupportedModelError(instead)
    try:
        return registry.recipe_for(checkpoint.config)
    except UnsupportedModelError as error:
        if other:
            raise UnsupportedModelError(instead) from error
        if not checkpoint.needs_remote_code:
            raise
        raise UnsupportedModelError(
            f"{checkpoint.name!r} needs Python code of its own (`auto_map` in config.json), and model_type "
            f"{checkpoint.model_type!r} has no recipe. Expected a model that transformers implements; code from a "
            f"checkpoint is never run. {error}"
        ) from error


def decide_task(checkpoint: Checkpoint, request: Request, architecture: Recipe) -> Decisions:
    """Decide the task; the fact `recipe` is the architecture's recipe for it, `left_out` names heads that it drops."""
    decisions, recipe = Decisions(), architecture
    classes = selection.classes_of(checkpoint, recipe, request.task)
    encoder = read_cross_encoder(checkpoint.companions)
    chosen = selection.choose(
        checkpoint.name,
        recipe,
        classes,
        checkpoint.companions,
        request.task,
        _marked(checkpoint, encoder),
    )
    if unknown := selection.unknown_class(checkpoint.name, recipe, classes, chosen.task):
        code = " It needs Python code of its own (`auto_map` in config.json), which is never run."
        decisions.refuse(unknown + code * checkpoint.needs_remote_code)
    if encoder and encoder.modules and not (request.task or contract.scores_texts(chosen.task)):
        raise UnsupportedModelError(
            f"{checkpoint.name!r} is a CrossEncoder of sentence-transformers with {' and '.join(encoder.modules)}, "
            f"whose scores {chosen.task!r} ({chosen.by}) does not compute. Expected a classifier, or LogitScore on a "
            f"causal model; choose {' or '.join(contract.served_by(recipe))} with --task for another output."
        )
    decisions.set("task", chosen.task, chosen.by)
    decisions.problems += chosen.problems
    decisions.problems += contract.find(chosen.task).problems(checkpoint, recipe, request)
    if contract.names_labels(chosen.task) and (fault := fault_of_labels(checkpoint.config)):
        decisions.refuse(f"{checkpoint.name!r}: {fault}")
    left_out = [
        f"{checkpoint.name!r} has architecture {one!r}; {chosen.task!r} (--task) leaves out its head."
        for one in selection.headless(recipe, classes, chosen.task)
        if request.task
    ]
    return decisions.provide(
        recipe=contract.for_task(recipe, chosen.task), left_out=tuple(left_out)
    )


def _marked(checkpoint: Checkpoint, encoder: CrossEncoder | None) -> str | None:
    """Return the task that modules of sentence-transformers are for, beyond those of a model's class."""
    if encoder is not None and encoder.ranks_by_tokens:
        return contract.TEXT_RANKING
    if encoder is not None and encoder.ranks_by_modules:
        return contract.ENCODER_RANKING
    return contract.SPARSE_EMBEDDING if read_sparse_encoder(checkpoint.companions) else None


def decide_components(checkpoint: Checkpoint, recipe: Recipe, target: Target) -> Decisions:
    """Decide which models become programs; on some targets the decoder program computes draft heads itself.

    The fact `fused_heads` describes such heads; None if they have their own program, or there are no draft heads.
    """
    roles = contract.wanted_beside(recipe, checkpoint, target.roles)
    draft, fused = checkpoint.speculator, None
    if HEADS in roles and draft and HEADS in target.fused_roles and draft.at_once:
        fused = dict(draft.settings)
    separate = [role for role in roles if not (fused and role == HEADS)]
    components = contract.components_of(recipe, *separate)
    return Decisions().provide(components=components, fused_heads=fused)


def check_quantization(checkpoint: Checkpoint, recipe: Recipe) -> Decisions:
    """Refuse quantized weights that cannot be read, or that the config does not describe."""
    decisions = Decisions()
    quantized = checkpoint.quantization
    if not quantized and (
        error := undescribed(checkpoint.name, checkpoint.files, checkpoint.names_at_hand)
    ):
        decisions.refuse(str(error))
    if quantized and (problem := formats.problem_of(quantized)):
        decisions.refuse(f"{checkpoint.name!r} is {problem}")
    return decisions


def decide_task_options(
    checkpoint: Checkpoint, request: Request, components: Sequence[Component]
) -> Decisions:
    """Decide the options of the graph beyond its sizes: requested values, else those of the checkpoint."""
    decisions = Decisions()
    for task in (contract.find(component.task) for component in components):
        defaults = task.defaults(checkpoint)
        for name, option in OPTIONS.items():
            requested = getattr(request, name)
            if option.group != "task" or option.key == "name" or not task.takes(option):
                continue
            if name not in defaults and requested in (None, option.default):
                continue  # nothing new
            default = defaults.get(name, (option.default, "default"))
            decisions.first(name, (requested, "user"), default)
            decisions.check(name)
    return decisions.provide(task_options=decisions.value)


def decide_rope_factors(checkpoint: Checkpoint, request: Request, shape: Shape) -> Decisions:
    """Choose between the two sets of longrope factors, by the longest text of the package.

    The fact `rope_factors` has the choice if the context does not determine the graph; otherwise it is empty.
    """
    decisions = Decisions()
    config = checkpoint.text_config
    longrope = (scaling for scaling in rope_scalings(config) if "long_factor" in scaling)
    scaling = next(longrope, None)
    if scaling is None:
        if request.rope_factors is not None:
            decisions.refuse(
                f"--rope-factors is for longrope, which {checkpoint.name!r} does not have. Leave it out."
            )
        return decisions.provide(rope_factors={})
    original = (
        config.get("original_max_position_embeddings")
        or scaling.get("original_max_position_embeddings")
        or positions_of(config)
    )
    longest = shape.ctx_len or max(shape.seq_lens, default=0)
    derived = "long" if original is not None and longest > original else "short"
    by = f"derived: {longest} tokens, {original} originally"
    decisions.first("rope_factors", (request.rope_factors, "user"), (derived, by))
    factors = decisions.value["rope_factors"]
    follows = shape.ctx_len and factors == derived
    return decisions.provide(rope_factors={} if follows else {"rope_factors": factors})
