# SPDX-License-Identifier: Apache-2.0
"""Decisions about the target: its name, its options, and limits on the package."""

from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo import contract, targets
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.image_sizes import read_in_any_size
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import Component, Recipe, Shape
from qeff_zoo.targets.base import Target, Tuned


def decide_target(request: Request) -> Decisions:
    """Decide the target; the default replaces an unknown target."""
    decisions, default = Decisions(), OPTIONS["target"].default
    decisions.first("target", (request.target, "user"), (default, "default"))
    known = decisions.check("target")
    return decisions.provide(target=targets.find(decisions.value["target"] if known else default))


def decide_tuning(
    checkpoint: Checkpoint, request: Request, recipe: Recipe, target: Target
) -> Decisions:
    """Decide measured settings, if the profile is an objective.

    Returns:
        The facts `profile`, of the recipe's, and `tuned`, either or both None.
    """
    decisions, objective = Decisions(), request.profile
    known = targets.objectives()
    if objective is None or objective not in known:
        return decisions.provide(profile=objective, tuned=None)
    decisions.provide(profile=None, tuned=None)
    if objective not in target.objectives:
        expected = " or ".join(known[objective])
        decisions.refuse(
            f"--profile {objective} is for target {expected}, and --target is {target.name!r}. Leave it out, or choose "
            f"--target {expected}."
        )
        return decisions
    shape = next(iter(recipe.shapes.values()))
    longest = max(request.seq_lens or shape.seq_lens or (0,))
    config = checkpoint.text_config if longest else checkpoint.config
    tuned = target.tune(recipe.task, config, checkpoint.name, longest, objective)
    if tuned is None:
        decisions.refuse(
            f"--profile {objective} follows measured settings, and there are none of {recipe.task}. Leave it out, and "
            "choose --num-cores and the other options of the compiler."
        )
    return decisions.provide(tuned=tuned)


def decide_options(
    request: Request, target: Target, recipe: Recipe, tuned: Tuned | None
) -> Decisions:
    """Decide the options of the target; see `options_of`."""
    usual = [(recipe.compile_flags.get(target.name, {}), "recipe")]
    return options_of(request, target, [(tuned.options, tuned.by), *usual] if tuned else usual)


def options_of(
    request: Request, target: Target, usual: Sequence[tuple[Mapping[str, Any], str]]
) -> Decisions:
    """Decide the options of a target: requested values, else usual values; refuse options of other targets.

    Args:
        request: Options of a build.
        target: Target of the build.
        usual: Values by option name, and who chose them, those that apply first before others.

    Returns:
        The decision, with the fact `options`: values by name, without options that are off.
    """
    decisions = Decisions()
    for name, option in OPTIONS.items():
        requested = getattr(request, name)
        if option.targets and target.name not in option.targets:
            if requested is not None:
                expected = " or ".join(option.targets)
                decisions.refuse(
                    f"{option.flag} is for target {expected}, and --target is {target.name!r}. Leave it out, or choose "
                    f"--target {expected}."
                )
            continue
        candidates = (
            (requested, "user"),
            *((values.get(name), by) for values, by in usual),
            (option.default, "default"),
        )
        value, by = next((pair for pair in candidates if pair[0] is not None), (None, ""))
        if not option.targets or value is None or (value is False and by == "default"):
            continue
        decisions.set(name, value, by)
        decisions.check(name)
    options = {name: value for name, value in decisions.value.items() if value is not False}
    return decisions.provide(options=options)


def check_target(
    checkpoint: Checkpoint, target: Target, shape: Shape, options: Mapping[str, Any]
) -> Decisions:
    """Refuse what the target cannot compile."""
    decisions = Decisions()
    decisions.problems += target.problems(checkpoint.model_config, shape, options)
    return decisions


def check_programs(
    checkpoint: Checkpoint,
    recipe: Recipe,
    target: Target,
    components: Sequence[Component],
    fused_heads: Mapping[str, Any] | None,
) -> Decisions:
    """Refuse programs and images that the target does not support, and draft heads without speculative decoding."""
    decisions = Decisions()
    roles = [component.role for component in components]
    if checkpoint.speculator and not fused_heads and checkpoint.speculator.role not in roles:
        decisions.refuse(
            f"--draft-heads is for {contract.TEXT_GENERATION} and {contract.IMAGE_TEXT_TO_TEXT}, and the package is "
            f"for {recipe.task}. Leave it out."
        )
    lacking = {*roles[1:]} - {*target.roles}
    if lacking:
        other = (
            "; or give --num-speculative-tokens in place of --draft-heads, and draft with 'lookup' or the package of a "
            "smaller model"
        )
        fits_without = checkpoint.speculator and lacking == {checkpoint.speculator.role}
        decisions.refuse(
            f"A package for {recipe.task} has programs {' and '.join(map(repr, roles))}, but --target {target.name} "
            f"does not run {' and '.join(map(repr, sorted(lacking)))} of them. Choose --target "
            f"{targets.NAMES[0]}{other if fits_without else ''}."
        )
    elif target.static_shapes and {"vision", "audio"} <= {*roles}:
        decisions.refuse(
            f"A package for {recipe.task} reads images and audio in one prompt, which programs for --target "
            f"{target.name} do not, whose features lie in one place. Choose --target {targets.NAMES[0]}, or a package "
            f"of each with --task {contract.IMAGE_TEXT_TO_TEXT} and --task {contract.AUDIO_TEXT_TO_TEXT}."
        )
    elif target.static_shapes and (read := read_in_any_size(recipe, roles)):
        decisions.refuse(
            f"Recipe {recipe.model_type!r} reads {read} and has nothing that fills one up, but programs for --target "
            f"{target.name} have fixed sizes. Choose --target {targets.NAMES[0]}, or another model."
        )
    elif target.static_shapes and recipe.images and recipe.images.by_cross_attention:
        decisions.refuse(
            f"Recipe {recipe.model_type!r} reads images by cross-attention, whose keys and values --target "
            f"{target.name} does not keep. Choose --target {targets.NAMES[0]}."
        )
    return decisions


def check_applicable(
    request: Request, target: Target, components: Sequence[Component]
) -> Decisions:
    """Refuse options that no task uses, and tasks that the target does not support."""
    decisions = Decisions()
    served = [contract.find(component.task) for component in components]
    decisions.problems += [
        f"--target {target.name} runs nothing that reads {task.reads}s, as {task.name} does. Expected "
        f"{' or '.join(name for name in targets.NAMES if task.reads in targets.find(name).reads)}; choose that."
        for task in {task.name: task for task in served}.values()
        if task.reads not in target.reads
    ]
    decisions.problems += [
        f"{option.flag} does not apply to {served[0].name}. Leave it out."
        for option in OPTIONS.values()
        if getattr(request, option.name) is not None
        and not any(task.takes(option) for task in served)
    ]
    return decisions


def check_single_program(recipe: Recipe, shape: Shape, options: Mapping[str, Any]) -> Decisions:
    """Refuse options that a single program with its own image encoder lacks: it has one image size and one slot."""
    decisions, images = Decisions(), recipe.images
    if images is None or not options.get("single_program"):
        return decisions
    flag = OPTIONS["single_program"].flag
    if not images.one_piece:
        decisions.refuse(
            f"{flag} is for models that read an image of one size, in one piece; recipe {recipe.model_type!r} reads "
            "tiles or patches, whose number differs. Leave it out: the package then has a program for images."
        )
    if shape.full_batch_size or shape.batch_size > 1:
        rows = shape.full_batch_size or shape.batch_size
        decisions.refuse(
            f"{flag} keeps one image, and the package is for {rows} rows; expected one. Leave --full-batch-size and "
            "--batch-size out, or build two programs."
        )
    if shape.apart:
        decisions.refuse(
            f"{flag} reads images and writes in one program; expected neither --prefill-only nor --decode-only. "
            "Leave one of them out."
        )
    if shape.prefill_seq_len == 1:
        decisions.refuse(
            f"{flag} reads images in calls of several tokens, and --prefill-seq-len is 1. Give a larger one."
        )
    return decisions
