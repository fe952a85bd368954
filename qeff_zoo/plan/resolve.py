# SPDX-License-Identifier: Apache-2.0
"""Every choice of a build, made once: what was chosen, and who chose it.

In: a checkpoint's config and a request. Out: a frozen `Plan`, which is printed by `qeff-zoo plan`, hashed to the build
key and recorded in the manifest. Nothing is downloaded but the config and small files; all conflicts are reported
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qeff_zoo import registry, targets, tasks
from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.rope import rope_scalings
from qeff_zoo.checkpoint.text import identity_of
from qeff_zoo.checkpoint.weight_files import undescribed
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.export import transforms
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.package import identity
from qeff_zoo.plan.decisions import (
    Chosen,
    choose_adapters,
    choose_merged,
    choose_weights,
    rounded_floats,
)
from qeff_zoo.plan.image_sizes import read_in_any_size
from qeff_zoo.plan.programs import READERS, ProgramPlan
from qeff_zoo.plan.request import CHOICES, Request
from qeff_zoo.plan.shape import choose_shape
from qeff_zoo.recipe import Component, Recipe, Shape
from qeff_zoo.targets import Resolved
from qeff_zoo.tasks import Task, selection
from qeff_zoo.versions import installed
from qeff_zoo.weights.kv_heads import widened

#: Raised when the same inputs come to give another graph or another package.
EXPORTER_REVISION = 7
#: Stands for the weights of a plan that is made from a config alone.
NO_WEIGHTS = "sha256:" + "0" * 64
_TRACERS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved build.

    Args:
        recipe: Of the checkpoint's `model_type`, as it is for the task that was chosen.
        programs: What the package runs, one for each component of the recipe.
        resolved: What the target adds.
        spec: All that identifies the build, in JSON values; its digest is the build key.
        why: For every chosen field of the spec, by its path there, who set it.
        warnings: What may go wrong, or is not as somebody might think, one sentence each.
    """

    recipe: Recipe = field(repr=False)
    programs: tuple[ProgramPlan, ...]
    resolved: Resolved
    spec: Mapping[str, Any]
    why: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def build_key(self) -> str:
        """The package's portable identity."""
        return identity.build_key(self.spec)

    @property
    def has_parts(self) -> bool:
        """Whether the model is traced in several parts, with a graph for each."""
        return len(self.programs) > 1 or bool(self.programs[0].within)

    @property
    def target(self) -> str:
        """Name of the target."""
        return str(self.spec["target"]["name"])

    def explained(self) -> dict[str, dict[str, Any]]:
        """Return every chosen field with its value and who set it, then what follows from the checkpoint."""
        chosen = {path: (_at(self.spec, path), by) for path, by in self.why.items()}
        follows = {
            "recipe.model_type": self.recipe.model_type,
            **_below("sources.model", self.spec["sources"]["model"]),
            **_below("target", self.spec["target"]),
            **_below("toolchain", self.spec["toolchain"]),
        }
        derived = {path: (value, "derived") for path, value in follows.items() if value is not None}
        # Both, those that were chosen first.
        every = {**chosen, **derived, **chosen}
        return {path: {"value": value, "by": by} for path, (value, by) in every.items()}

    def graph_key(self, program: ProgramPlan, structure: str) -> str:
        """Name the traced graph of a program: the same for every fine-tune of one architecture.

        Args:
            program: One of this plan's.
            structure: Digest of the checkpoint's tensor names and shapes.
        """
        parts = {
            **{name: self.spec[name] for name in ("arch", "recipe", "exporter")},
            "toolchain": {name: self.spec["toolchain"][name] for name in _TRACERS},
            "variant": dict(program.variant),
            "task": program.task,
            **({"role": program.role} if self.has_parts else {}),
            "structure": structure,
        }
        return "qg1-" + identity.digest(parts, "qz-graph-1")


def _at(spec: Mapping[str, Any], path: str) -> Any:
    """Look up what a spec holds at a path of groups and a name; what it leaves out is off."""
    value: Any = spec
    for part in path.split("."):
        value = value.get(part, False)
    return value


def _below(path: str, members: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{path}.{name}": value for name, value in members.items()}


def resolve(checkpoint: Checkpoint, request: Request, weights_digest: str) -> Plan:
    """Make every choice.

    Args:
        checkpoint: Opened; its weights need not be here.
        request: What the user asked for.
        weights_digest: Identity of the weights, "sha256:…".

    Raises:
        UnsupportedModelError: There is no recipe for the model.
        PlanError: Choices conflict; all conflicts at once.
    """
    choices = Chosen()
    recipe = _choose_task(checkpoint, recipe_of(checkpoint), request, choices)
    target = _choose_target(request, choices)
    wanted = tasks.wanted_beside(recipe, checkpoint, target.beside)
    within = _heads_within(checkpoint, target) if HEADS in wanted else None
    components = tasks.components_of(recipe, *(one for one in wanted if not within or one != HEADS))
    served = [tasks.find(component.task) for component in components]
    _check_model(checkpoint, recipe, choices)
    storage = choose_weights(target, checkpoint, request, choices)
    shape = choose_shape(checkpoint, recipe, target, request, choices)
    _choose_variant(checkpoint, served, request, choices)
    choose_merged(checkpoint, request, choices)
    others = choose_adapters(target, len(served), request, choices)
    others |= _choose_rope_factors(checkpoint, request, shape, choices)
    usual = recipe.compile_flags.get(target.name, {})
    options = choose_options(target, usual, request, choices)
    choices.problems += target.problems(checkpoint.model_config, shape, options)
    _check_programs(checkpoint, recipe, components, target, choices, drafts=bool(within))
    if shape.decode_only:  # another package, for the same target, reads pictures
        components = tuple(one for one in components if one.role not in READERS)
    _check_applicable(served, target, request, choices)
    _check_single(recipe, shape, options, choices)
    if choices.problems:
        raise PlanError(choices.problems)
    resolved = target.resolve(widened(checkpoint.config, request.kv_heads), options)
    told = {
        group: {name: choices.value[name] for name in choices.why if CHOICES[name].group == group}
        for group in ("task", "quantization")
    }
    common = {"shape": shape, "flags": options, **storage}
    programs = _programs(checkpoint, recipe, components, choices, within, factors=others, **common)
    source = {
        "model_id": checkpoint.model_id,
        "revision": checkpoint.revision,
        "weights": weights_digest,
        "companions": checkpoint.companions_digest(),
    }
    spec = {
        "spec": 2,
        "sources": {"model": source, **_others(checkpoint)},
        "arch": identity.arch_digest(checkpoint.config),
        "recipe": spec_of(recipe),
        "task": {
            **{CHOICES[name].key: value for name, value in told["task"].items()},
            **{name: value for program in programs for name, value in program.variant.items()},
        },
        "shape": {key: value for key, value in asdict(shape).items() if value},
        "quantization": {
            "method": checkpoint.method,
            **{CHOICES[name].key: value for name, value in told["quantization"].items()},
        },
        "target": {"name": target.name, "revision": target.revision, **options},
        "exporter": EXPORTER_REVISION,
        "tokenizer": identity_of(checkpoint.companions),
        "toolchain": {
            **{name: installed(name) or "absent" for name in _TRACERS},
            **resolved.toolchain,
        },
    }
    why = {str(CHOICES[name].path): by for name, by in choices.why.items()}
    return Plan(
        recipe=recipe,
        programs=programs,
        resolved=resolved,
        spec=spec,
        why=why,
        warnings=resolved.warnings + (rounded_floats(checkpoint) if storage["stored"] else ()),
    )


def _programs(
    checkpoint: Checkpoint,
    recipe: Recipe,
    components: Sequence[Component],
    choices: Chosen,
    within: Mapping[str, Any] | None,
    factors: Mapping[str, Any],
    **common: Any,
) -> tuple[ProgramPlan, ...]:
    """Plan a program for each component, or one that does what others would."""
    shape, programs = common["shape"], list[ProgramPlan]()
    for one, part in zip(components, map(tasks.part_of, components), strict=True):
        variant = {**part.variant(checkpoint, recipe, shape, choices.value), **factors}
        if within and variant.pop("hidden_states", None):
            variant["heads"] = within
        programs.append(
            ProgramPlan(
                role=one.role,
                task=one.task,
                variant=variant,
                specializations=part.specializations(shape),
                **common,
            )
        )
    if not common["flags"].get("single_program"):
        return tuple(programs)
    answering, *others = programs
    read = tuple(one for one in others if one.role in READERS)
    return (replace(answering, within=read), *(one for one in others if one not in read))


def _heads_within(checkpoint: Checkpoint, target: targets.Target) -> Mapping[str, Any] | None:
    """Say what heads compute that the program which answers has itself; None where they are a program."""
    drafts = checkpoint.speculator
    return dict(drafts.said) if drafts and HEADS in target.within and drafts.at_once else None


def _others(checkpoint: Checkpoint) -> dict[str, Any]:
    found = [one.source for one in checkpoint.merged]
    heads = checkpoint.speculator
    return {
        **({"adapters": found} if found else {}),
        **({"speculator": heads.source} if heads else {}),
    }


def spec_of(recipe: Recipe) -> dict[str, Any]:
    """Return what of a recipe makes graphs what they are."""
    always = [{"name": name, "version": version} for name, version in transforms.ALWAYS.items()]
    own = [
        {"name": one.name, "version": one.version, "parameters": dict(one.parameters)}
        for one in recipe.transforms
    ]
    return {
        "model_type": recipe.model_type,
        "rev": recipe.rev,
        "transforms": [*always, *own],
        "components": [asdict(component) for component in recipe.components],
        **({"image_processor": recipe.image_processor} if recipe.image_processor else {}),
        **({"media": entry_of(recipe.media)} if recipe.media else {}),
        **({"sounds": entry_of(recipe.sounds)} if recipe.images and recipe.sounds else {}),
    }


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """Return the recipe of a checkpoint's `model_type`.

    Raises:
        UnsupportedModelError: There is none.
    """
    try:
        return registry.recipe_for(checkpoint.config)
    except UnsupportedModelError as error:
        if not checkpoint.needs_remote_code:
            raise
        raise UnsupportedModelError(
            f"{checkpoint.name!r} needs Python code of its own (`auto_map` in config.json), and model_type "
            f"{checkpoint.model_type!r} has no recipe. Expected a model that transformers implements; code from a "
            f"checkpoint is never run. {error}"
        ) from error


def _choose_task(
    checkpoint: Checkpoint, recipe: Recipe, request: Request, choices: Chosen
) -> Recipe:
    """Choose the task, and return the recipe as it is for that."""
    classes = selection.classes_of(checkpoint, recipe, request.task)
    chosen = selection.choose(checkpoint.name, recipe, classes, checkpoint.companions, request.task)
    if unknown := [name for name in classes if name not in recipe.architectures]:
        choices.problems.append(
            f"{checkpoint.name!r} has architecture {unknown[0]!r}, but recipe {recipe.model_type!r} covers "
            f"{', '.join(recipe.architectures)}. Use a checkpoint of one of those, or extend the recipe."
        )
    choices.set("task", chosen.task, chosen.by)
    choices.problems += chosen.problems
    choices.problems += tasks.find(chosen.task).problems(checkpoint, recipe, request)
    return tasks.for_task(recipe, chosen.task)


def _check_applicable(
    served: Sequence[Task], target: targets.Target, request: Request, choices: Chosen
) -> None:
    """Refuse what means nothing to any task of the package, and tasks that mean nothing to the target."""
    choices.problems += [
        f"--target {target.name} runs nothing that reads {task.reads}s, as {task.name} does. Expected "
        f"{' or '.join(name for name in targets.NAMES if task.reads in targets.find(name).reads)}; choose that."
        for task in {one.name: one for one in served}.values()
        if task.reads not in target.reads
    ]
    choices.problems += [
        f"{one.flag} does not apply to {served[0].name}. Leave it out."
        for one in CHOICES.values()
        if getattr(request, one.name) is not None and not any(task.takes(one) for task in served)
    ]


def _check_programs(
    checkpoint: Checkpoint,
    recipe: Recipe,
    components: Sequence[Component],
    target: targets.Target,
    choices: Chosen,
    *,
    drafts: bool,
) -> None:
    """Refuse programs and pictures that a target does not take, and heads where nothing is drafted."""
    roles = [component.role for component in components]
    if checkpoint.speculator and not drafts and checkpoint.speculator.role not in roles:
        choices.problems.append(
            f"--speculator is for {tasks.TEXT_GENERATION} and {tasks.IMAGE_TEXT_TO_TEXT}, and the package is for "
            f"{recipe.task}. Leave it out."
        )
    lacking = {*roles[1:]} - {*target.beside}
    if lacking:
        other = (
            "; or give --num-speculative-tokens in place of --speculator, and draft with 'lookup' or the package of a "
            "smaller model"
        )
        fits_without = checkpoint.speculator and lacking == {checkpoint.speculator.role}
        choices.problems.append(
            f"A package for {recipe.task} has programs {' and '.join(map(repr, roles))}, but --target {target.name} "
            f"does not run {' and '.join(map(repr, sorted(lacking)))} of them. Choose --target "
            f"{targets.NAMES[0]}{other if fits_without else ''}."
        )
    elif target.fixed and {"vision", "audio"} <= {*roles}:
        choices.problems.append(
            f"A package for {recipe.task} reads pictures and sounds in one prompt, which programs for --target "
            f"{target.name} do not, whose features lie in one place. Choose --target {targets.NAMES[0]}, or a package "
            f"of each with --task {tasks.IMAGE_TEXT_TO_TEXT} and --task {tasks.AUDIO_TEXT_TO_TEXT}."
        )
    elif target.fixed and (read := read_in_any_size(recipe, roles)):
        choices.problems.append(
            f"Recipe {recipe.model_type!r} reads {read} and has nothing that fills one up, but programs for --target "
            f"{target.name} have fixed sizes. Choose --target {targets.NAMES[0]}, or another model."
        )
    elif target.fixed and recipe.images and recipe.images.by_cross_attention:
        choices.problems.append(
            f"Recipe {recipe.model_type!r} reads pictures by cross-attention, whose keys and values --target "
            f"{target.name} does not keep. Choose --target {targets.NAMES[0]}."
        )


def _check_single(
    recipe: Recipe, shape: Shape, options: Mapping[str, Any], choices: Chosen
) -> None:
    """Refuse what a program does not do that reads one picture itself, of one size, for one row."""
    images = recipe.images
    if images is None or not options.get("single_program"):
        return
    asked = CHOICES["single_program"].flag
    if not images.one_piece:
        choices.problems.append(
            f"{asked} is for models that read a picture of one size, in one piece; recipe {recipe.model_type!r} reads "
            "tiles or patches, whose number differs. Leave it out: the package then has a program for pictures."
        )
    if shape.full_batch_size or shape.batch_size > 1:
        rows = shape.full_batch_size or shape.batch_size
        choices.problems.append(
            f"{asked} keeps one picture, and the package is for {rows} rows; expected one. Leave --full-batch-size and "
            "--batch-size out, or build two programs."
        )
    if shape.apart:
        choices.problems.append(
            f"{asked} reads pictures and writes in one program; expected neither --prefill-only nor --decode-only. "
            "Leave one of them out."
        )
    if shape.prefill_seq_len == 1:
        choices.problems.append(
            f"{asked} reads pictures in calls of several tokens, and --prefill-seq-len is 1. Give a larger one."
        )


def _check_model(checkpoint: Checkpoint, recipe: Recipe, choices: Chosen) -> None:
    quantized = checkpoint.quantization
    if not quantized and (
        error := undescribed(checkpoint.name, checkpoint.files, checkpoint.names_at_hand)
    ):
        choices.problems.append(str(error))
    if quantized and (problem := formats.problem_of(quantized, recipe.quant_exceptions)):
        choices.problems.append(f"{checkpoint.name!r} is {problem}")


def _choose_target(request: Request, choices: Chosen) -> targets.Target:
    """Choose what to compile for; the default stands in for an unknown one."""
    choices.first("target", (request.target, "user"), (CHOICES["target"].default, "default"))
    known = choices.check("target")
    return targets.find(choices.value["target"] if known else CHOICES["target"].default)


def choose_options(
    target: targets.Target, usual: Mapping[str, Any], request: Request, choices: Chosen
) -> dict[str, Any]:
    """Choose what is for this target alone: as asked, else as the recipe says; refuse what is for another.

    Args:
        target: That is compiled for.
        usual: What the recipe says, by name.
        request: As asked.
        choices: Are set, and told what is wrong.

    Returns:
        By name, without those that are off.
    """
    options = {}
    for name, one in CHOICES.items():
        asked = getattr(request, name)
        if one.targets and target.name not in one.targets:
            if asked is not None:
                wanted = " or ".join(one.targets)
                choices.problems.append(
                    f"{one.flag} is for target {wanted}, and --target is {target.name!r}. Leave it out, or choose "
                    f"--target {wanted}."
                )
            continue
        given = ((asked, "user"), (usual.get(name), "recipe"), (one.default, "default"))
        value, by = next((pair for pair in given if pair[0] is not None), (None, ""))
        if not one.targets or value is None or (value is False and by == "default"):
            continue
        choices.set(name, value, by)
        choices.check(name)
        options[name] = value
    return {name: value for name, value in options.items() if value is not False}


def _choose_variant(
    checkpoint: Checkpoint, served: Sequence[Task], request: Request, choices: Chosen
) -> None:
    """Choose what changes the graph beyond its sizes: as asked, else as the checkpoint says."""
    for task in served:
        said = task.defaults(checkpoint)
        for name, one in CHOICES.items():
            asked = getattr(request, name)
            if one.group != "task" or one.key == "name" or not task.takes(one):
                continue
            if name not in said and asked in (None, one.default):
                continue  # nothing new
            choices.first(name, (asked, "user"), said.get(name, (one.default, "default")))
            choices.check(name)


def _choose_rope_factors(
    checkpoint: Checkpoint, request: Request, shape: Shape, choices: Chosen
) -> dict[str, str]:
    """Choose between the two sets of factors of longrope, by the longest text that the package holds.

    Returns:
        What was chosen where the graph would not go by its context; else nothing.
    """
    config = checkpoint.text_config
    scaling = next((one for one in rope_scalings(config) if "long_factor" in one), None)
    if scaling is None:
        if request.rope_factors is not None:
            choices.problems.append(
                f"--rope-factors is for longrope, which {checkpoint.name!r} does not have. Leave it out."
            )
        return {}
    original = (
        config.get("original_max_position_embeddings")
        or scaling.get("original_max_position_embeddings")
        or tasks.positions_of(config)
    )
    longest = shape.ctx_len or max(shape.seq_lens, default=0)
    derived = "long" if original is not None and longest > original else "short"
    by = f"derived: {longest} tokens, {original} originally"
    choices.first("rope_factors", (request.rope_factors, "user"), (derived, by))
    factors = choices.value["rope_factors"]
    return {} if shape.ctx_len and factors == derived else {"rope_factors": factors}
