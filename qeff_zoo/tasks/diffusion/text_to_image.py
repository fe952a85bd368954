# SPDX-License-Identifier: Apache-2.0
"""The `text-to-image` contract: a text in, and an image if there is one; an image out, over the steps of a scheduler.

Programs: text encoders, a model that removes noise (`unet` or `transformer`), `vae_encoder`, which makes latents of
pixels, and `vae_decoder`, which makes pixels of latents. See `qeff_zoo.tasks.diffusion.tracing` and the family of a
pipeline for their inputs and outputs.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.files import COMPONENTS
from qeff_zoo.contract import Part, Task, Tracing, lazy, named
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Pipeline, Recipe, Shape
from qeff_zoo.tasks.diffusion.sizes import ImageShape, sized

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "text-to-image"
#: Parts of a pipeline that come before the decoder of its VAE: role, and kind of a call.
_BEFORE = {
    "text_encoder": "Text",
    "text_encoder_2": "Text",
    "text_encoder_3": "Text",
    "unet": "Denoise",
    "transformer": "Denoise",
}
#: Folder of the tokenizer of each text encoder, by role.
TOKENIZERS = {
    role: role.replace("text_encoder", "tokenizer")
    for role, kind in _BEFORE.items()
    if kind == "Text"
}


def _tracing(role: str, model: Any, *, family: str) -> Tracing:
    from . import tracing

    return tracing.of_family(model, family, role)


def _decoding(model: Any, *, family: str) -> Tracing:
    from . import tracing

    return tracing.vae_decoder(model)


def _encoding(model: Any, *, family: str) -> Tracing:
    from . import tracing

    return tracing.vae_encoder(model)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    assert recipe.pipeline
    return {"family": recipe.pipeline.family}


def _specializations(role: str, kind: str) -> Callable[[Shape], list[dict[str, Any]]]:
    def specializations(shape: Shape) -> list[dict[str, Any]]:
        return named(kind, [shape.symbols(role) if isinstance(shape, ImageShape) else {}])

    return specializations


def _part(role: Any, kind: str) -> Part:
    return Part(
        role=role,
        probe=None,
        tracing=partial(_tracing, role),
        component=role,
        needed=lambda recipe: bool(recipe.pipeline and role in recipe.pipeline.components),
        variant=_variant,
        specializations=_specializations(role, kind),
        sized=sized,
        half=attrgetter(role) if role == "transformer" else None,
    )


#: Encoder of the VAE: every checkpoint has its weights, 3 % of all or less, so that every package has it.
_VAE_ENCODER = Part(
    role="vae_encoder",
    probe=None,
    tracing=_encoding,
    component="vae",
    variant=_variant,
    specializations=_specializations("vae_encoder", "Encode"),
    sized=sized,
)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
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
    for folder, kind in pipeline.components.items():
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
    if not pipeline.components.keys() <= components.keys():
        return
    family = family_of(checkpoint.config, pipeline.family)
    try:
        read_config(family.scheduler)
    except UnsupportedModelError as error:
        yield f"{name!r}: {error}"
    yield from (f"{name!r} {problem}" for problem in family.problems())


def _warnings(checkpoint: "Checkpoint", chosen: Mapping[str, Any]) -> list[str]:
    from qeff_zoo.registry import find_recipe

    pipeline = find_recipe(checkpoint.model_type).pipeline
    assert pipeline
    known = {*pipeline.components, "scheduler", *TOKENIZERS.values()}
    left_out = [folder for folder in checkpoint.config[COMPONENTS] if folder not in known]
    if not left_out:
        return []
    checked = " Its images are not checked for safety." * ("safety_checker" in left_out)
    return [f"{checkpoint.name!r} has {', '.join(left_out)}, which a package leaves out.{checked}"]


TASK = Task(
    name=NAME,
    does="draw images of texts, and change images by texts",
    guide="diffusion.md",
    role="vae_decoder",
    component="vae",
    comparison=VALUES,
    before=(*(_part(role, kind) for role, kind in _BEFORE.items()), _VAE_ENCODER),
    auto_classes=("AutoModel",),
    suffixes=("Pipeline",),
    shapes=IMAGE_SHAPES,
    probe=None,
    tracing=_decoding,
    variant=_variant,
    specializations=_specializations("vae_decoder", "Decode"),
    sized=sized,
    problems=_problems,
    warnings=_warnings,
    session=lazy("qeff_zoo.tasks.diffusion.session:TextToImageSession"),
    public=(
        "qeff_zoo.tasks.diffusion.session:TextToImageSession",
        "qeff_zoo.tasks.diffusion.initial_image:InitialImage",
        "qeff_zoo.tasks.diffusion.options:GeneratedImage",
        "qeff_zoo.tasks.diffusion.options:ImageOptions",
    ),
    trial=lazy("qeff_zoo.tasks.diffusion.trial:ImageTrial"),
    reference=lazy("qeff_zoo.tasks.diffusion.reference:PipelineReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.diffusion.verbs:DrawImages"),
        run_options=(
            *(*PROMPTS, "negative_prompt", "seed", "steps", "guidance_scale", "true_cfg_scale"),
            *("height", "width", "image", "mask", "strength", "mask_blur"),
        ),
        outputs=(".png",),
        serve=lazy("qeff_zoo.tasks.diffusion.service:Drawings"),
        serve_paths=("/v1/images/generations", "/v1/images/edits"),
    ),
    stages=lazy("qeff_zoo.tasks.diffusion.trial:stages"),
)
