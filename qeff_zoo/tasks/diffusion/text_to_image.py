# SPDX-License-Identifier: Apache-2.0
"""The `text-to-image` contract: a text in, and an image if there is one; an image out, over the steps of a scheduler.

Programs: text encoders, a model that removes noise (`unet` or `transformer`), `vae_encoder`, which makes latents of
pixels, and `vae_decoder`, which makes pixels of latents. See `qeff_zoo.tasks.diffusion.tracing` and the family of a
pipeline for their inputs and outputs.
"""

from typing import Any

from qeff_zoo.contract import Part, Task, Tracing, lazy
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.recipe import IMAGE_SHAPES
from qeff_zoo.tasks.diffusion.parts import (
    part_of_pipeline,
    problems_of,
    specializations_of,
    variant_of,
    warnings_of,
)
from qeff_zoo.tasks.diffusion.sizes import sized

#: Hub pipeline tag.
NAME = "text-to-image"
#: Parts of a pipeline that come before the VAE: role, and kind of a call.
_BEFORE = {
    "text_encoder": "Text",
    "text_encoder_2": "Text",
    "text_encoder_3": "Text",
    "unet": "Denoise",
    "transformer": "Denoise",
}


def _decoding(model: Any, *, family: str) -> Tracing:
    from . import tracing

    return tracing.vae_decoder(model)


def _encoding(model: Any, *, family: str) -> Tracing:
    from . import tracing

    return tracing.vae_encoder(model)


#: Encoder of the VAE: every checkpoint has its weights, 3 % of all or less, so that every package has it.
_VAE_ENCODER = Part(
    role="vae_encoder",
    probe=None,
    tracing=_encoding,
    component="vae",
    variant=variant_of,
    specializations=specializations_of("vae_encoder", "Encode"),
    sized=sized,
)


TASK = Task(
    name=NAME,
    does="draw images of texts, and change images by texts",
    guide="diffusion.md",
    role="vae_decoder",
    component="vae",
    comparison=VALUES,
    before=(*(part_of_pipeline(role, kind) for role, kind in _BEFORE.items()), _VAE_ENCODER),
    auto_classes=("AutoModel",),
    suffixes=("Pipeline",),
    shapes=IMAGE_SHAPES,
    probe=None,
    tracing=_decoding,
    variant=variant_of,
    specializations=specializations_of("vae_decoder", "Decode"),
    sized=sized,
    problems=problems_of,
    warnings=warnings_of,
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
