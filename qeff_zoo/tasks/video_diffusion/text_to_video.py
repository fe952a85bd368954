# SPDX-License-Identifier: Apache-2.0
"""The `text-to-video` contract: a text in, a video out, over the steps of a scheduler.

Programs: a text encoder, one or two models that remove noise, and two of the decoder of the VAE: `vae_decoder` for the
first frame, and `vae_decoder_next` for all others, which reads features of the frames before. See the family of a
pipeline, and its tracing, for their inputs and outputs.
"""

from functools import partial

from qeff_zoo.contract import Task, lazy
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.recipe import VIDEO_SHAPES
from qeff_zoo.tasks.diffusion.parts import (
    of_family,
    part_of_pipeline,
    problems_of,
    specializations_of,
    variant_of,
    warnings_of,
)
from qeff_zoo.tasks.diffusion.sizes import sized

#: Hub pipeline tag.
NAME = "text-to-video"

TASK = Task(
    name=NAME,
    does="draw videos of texts",
    guide="diffusion.md",
    role="vae_decoder",
    component="vae",
    comparison=VALUES,
    before=(
        part_of_pipeline("text_encoder", "Text"),
        part_of_pipeline("transformer", "Denoise"),
        part_of_pipeline("vae_decoder_next", "Decode", component="vae"),
    ),
    beside=(part_of_pipeline("transformer_2", "Denoise"),),
    auto_classes=("AutoModel",),
    suffixes=("Pipeline",),
    shapes=VIDEO_SHAPES,
    probe=None,
    tracing=partial(of_family, "vae_decoder"),
    variant=variant_of,
    specializations=specializations_of("vae_decoder", "Decode"),
    sized=sized,
    problems=problems_of,
    warnings=warnings_of,
    session=lazy("qeff_zoo.tasks.video_diffusion.session:TextToVideoSession"),
    public=(
        "qeff_zoo.tasks.video_diffusion.session:TextToVideoSession",
        "qeff_zoo.tasks.video_diffusion.video:GeneratedVideo",
        "qeff_zoo.tasks.diffusion.options:VideoOptions",
    ),
    trial=lazy("qeff_zoo.tasks.video_diffusion.trial:VideoTrial"),
    reference=lazy("qeff_zoo.tasks.diffusion.reference:PipelineReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.video_diffusion.verbs:DrawVideos"),
        run_options=(
            *(*PROMPTS, "negative_prompt", "seed", "steps", "guidance_scale", "guidance_scale_2"),
            *("height", "width", "frames", "fps"),
        ),
        outputs=(".mp4", ".gif", ".png"),
    ),
    stages=lazy("qeff_zoo.tasks.video_diffusion.trial:stages"),
)
