# SPDX-License-Identifier: Apache-2.0
"""What tasks of diffusers' pipelines share: parts of their packages, and checks of checkpoints."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.files import COMPONENTS
from qeff_zoo.checkpoint.pipeline_files import folders_of
from qeff_zoo.contract import Part, Tracing, named
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Pipeline, Recipe, Shape
from qeff_zoo.tasks.diffusion.sizes import ImageShape, sized

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Folder of the tokenizer of each text encoder, by role.
TOKENIZERS = {
    role: role.replace("text_encoder", "tokenizer")
    for role in ("text_encoder", "text_encoder_2", "text_encoder_3")
}


def of_family(role: str, model: Any, *, family: str) -> Tracing:
    """Describe how to trace a program that the family of a pipeline traces."""
    from . import tracing

    return tracing.of_family(model, family, role)


def variant_of(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the family of a pipeline, which traces its programs."""
    assert recipe.pipeline
    return {"family": recipe.pipeline.family}


def specializations_of(role: str, kind: str) -> Callable[[Shape], list[dict[str, Any]]]:
    """Return a function that returns the specialization of a program.

    Args:
        role: Role of the program.
        kind: Kind of its call.
    """

    def specializations(shape: Shape) -> list[dict[str, Any]]:
        return named(kind, [shape.symbols(role) if isinstance(shape, ImageShape) else {}])

    return specializations


def part_of_pipeline(role: Any, kind: str, component: str = "") -> Part:
    """Return the part of a component that the family of a pipeline traces.

    Args:
        role: Role of the program.
        kind: Kind of its call.
        component: Folder of the component, if it is not the role.
    """
    folder = component or role
    return Part(
        role=role,
        probe=None,
        tracing=partial(of_family, role),
        component=folder,
        needed=lambda recipe: bool(recipe.pipeline and folder in recipe.pipeline.components),
        wanted=lambda checkpoint: folder in folders_of(checkpoint.config),
        variant=variant_of,
        specializations=specializations_of(role, kind),
        sized=sized,
        half=attrgetter(role) if role.startswith("transformer") else None,
    )


def problems_of(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return why a checkpoint cannot be built, one sentence each."""
    assert recipe.pipeline
    if find_spec("diffusers") is None:
        return [
            f"{checkpoint.name!r} is a pipeline of diffusers, which is not installed. Expected the extra `diffusion`. "
            "Run `pip install 'qeff-zoo[diffusion]'`."
        ]
    return [*_faults(checkpoint, recipe.pipeline)]


def _faults(checkpoint: "Checkpoint", pipeline: Pipeline) -> Iterator[str]:
    """Yield why the components of a pipeline cannot be built."""
    from qeff_zoo.tasks.diffusion.family import family_of
    from qeff_zoo.tasks.diffusion.schedulers.opening import read_config

    name, components = checkpoint.name, checkpoint.config[COMPONENTS]
    for folder in folders_of(checkpoint.config):
        kind = pipeline.components[folder]
        found = components.get(folder, {})
        if found.get("_class_name") != kind:
            yield (
                f"{name!r} has the component {folder} of class {found.get('_class_name')!r}; expected {kind!r}. Use a "
                "checkpoint with that component."
            )
        elif f"{folder}/config.json" not in checkpoint.companions:
            yield (
                f"{name!r} has no {folder}/config.json; expected the configuration of {kind}. Get the whole checkpoint."
            )
        elif found.get("quantization_config"):
            method = found["quantization_config"].get("quant_method")
            yield (
                f"{name!r} has the component {folder} quantized by {method!r}; expected float weights. Use the "
                "checkpoint that it was made from."
            )
    if "scheduler/scheduler_config.json" not in checkpoint.companions:
        yield f"{name!r} has no scheduler/scheduler_config.json; expected it. Get the whole checkpoint."
        return
    if not {*folders_of(checkpoint.config)} <= components.keys():
        return
    family = family_of(checkpoint.config, pipeline.family)
    try:
        read_config(family.scheduler)
    except UnsupportedModelError as error:
        yield f"{name!r}: {error}"
    yield from (f"{name!r} {problem}" for problem in family.problems())


def warnings_of(checkpoint: "Checkpoint", chosen: Mapping[str, Any]) -> list[str]:
    """Return the components that a package leaves out, in a sentence."""
    from qeff_zoo.registry import find_recipe

    pipeline = find_recipe(checkpoint.model_type).pipeline
    assert pipeline
    known = {*pipeline.components, "scheduler", "image_processor", *TOKENIZERS.values()}
    left_out = [folder for folder in checkpoint.config[COMPONENTS] if folder not in known]
    if not left_out:
        return []
    checked = " Its images are not checked for safety." * ("safety_checker" in left_out)
    return [f"{checkpoint.name!r} has {', '.join(left_out)}, which a package leaves out.{checked}"]
