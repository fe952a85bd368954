# SPDX-License-Identifier: Apache-2.0
"""The `image-to-video` contract: a text and an image in, a video out that begins with the image.

Programs: those of `text-to-video`; two of the encoder of the VAE, `vae_encoder` for the first frame and
`vae_encoder_next` for all others; and an encoder of images, if a checkpoint has one.
"""

from dataclasses import replace

from qeff_zoo.contract import lazy
from qeff_zoo.tasks.diffusion.parts import part_of_pipeline
from qeff_zoo.tasks.video_diffusion import text_to_video

#: Hub pipeline tag.
NAME = "image-to-video"

TASK = replace(
    text_to_video.TASK,
    name=NAME,
    does="draw videos of texts that begin with an image",
    before=(
        *text_to_video.TASK.before,
        part_of_pipeline("vae_encoder", "Encode", component="vae"),
        part_of_pipeline("vae_encoder_next", "Encode", component="vae"),
    ),
    beside=(*text_to_video.TASK.beside, part_of_pipeline("image_encoder", "Encode")),
    session=lazy("qeff_zoo.tasks.video_diffusion.image_session:ImageToVideoSession"),
    public=("qeff_zoo.tasks.video_diffusion.image_session:ImageToVideoSession",),
    trial=lazy("qeff_zoo.tasks.video_diffusion.trial:ImageToVideoTrial"),
    commands=replace(
        text_to_video.TASK.commands,
        run=lazy("qeff_zoo.tasks.video_diffusion.verbs:DrawVideosOfImages"),
        run_options=(*text_to_video.TASK.commands.run_options, "image"),
    ),
)
