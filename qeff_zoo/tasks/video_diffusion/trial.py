# SPDX-License-Identifier: Apache-2.0
"""Sample prompts through a text-to-video package: whole videos, with guidance and without."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.options import VideoOptions
from qeff_zoo.tasks.diffusion.pipeline_trial import NEGATIVE, PROMPT, STEPS, PipelineTrial
from qeff_zoo.tasks.diffusion.trial import image_of_waves
from qeff_zoo.tasks.video_diffusion.session import TextToVideoSession
from qeff_zoo.validation.trial.faults import FaultKind
from qeff_zoo.validation.trial.package_runner import Key, TrialContext

#: Stages of whole videos, with guidance and without; and with guidance, of pipelines with two transformers.
GUIDED, UNGUIDED, IN_TWO_STAGES = "guided_video", "unguided_video", "video_in_two_stages"
_LATENT_FRAMES = 4  # so that the VAE has a middle call


def stages(roles: Sequence[str]) -> list[str]:
    """Return the names of the stages: one for each program, and those of whole videos.

    Args:
        roles: Roles of the programs.
    """
    return [*roles, GUIDED, UNGUIDED, *([IN_TWO_STAGES] if "transformer_2" in roles else [])]


class VideoTrial(PipelineTrial[TextToVideoSession]):
    """Runs a text-to-video package on sample prompts.

    Args:
        session: Session of the package.
    """

    faults: ClassVar[Mapping[str, Mapping[FaultKind, str]]] = {
        GUIDED: {
            "timestep": "timesteps off by one",
            "guidance": "guidance ignored",
            "prompts": "prompt and negative prompt exchanged",
            "scale": "scale of the VAE forgotten",
            "features": "frames decoded without those before",
        },
        IN_TWO_STAGES: {
            "boundary": "the second transformer in all steps",
            "second_guidance": "guidance of the first transformer in all steps",
        },
    }

    #: First image of all videos.
    initial: InitialImage | None = None

    def call_once(self) -> None:
        """Draw a small video in one step."""
        options = self._options(guidance_scale=1.0, steps=1)
        self.session.draw_with(PROMPT, options, initial=self.initial)

    def observed_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw a video with guidance."""
        return {GUIDED: self._video(self._options(negative_prompt=NEGATIVE), context)}

    def further_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw a video without guidance, and one with another guidance for each transformer."""
        keys = {UNGUIDED: self._video(self._options(guidance_scale=0.0, seed=5), context)}
        if IN_TWO_STAGES in names:
            scales = {"guidance_scale": 4.0, "guidance_scale_2": 2.0}
            keys[IN_TWO_STAGES] = self._video(self._options(**scales, seed=6), context)
        return keys

    def _options(self, **chosen: Any) -> VideoOptions:
        frames = 1 + (_LATENT_FRAMES - 1) * self.session.family.frame_factor
        usual = {"seed": 1234, "steps": STEPS, **self.size, "frames": frames}
        return self.session.options(**{**usual, **chosen})

    def _video(self, options: VideoOptions, context: TrialContext) -> list[Key]:
        """Draw a video; return the keys of its last latents and of its frames."""
        samples, case = [], {"prompt": PROMPT, **vars(options)}
        conditions = self.session.conditions(PROMPT, options)
        for one in self.session.denoise(conditions, options, self.initial):
            samples = [one]
            context.step(1)
        if self.initial:
            case["pixels"] = self.array(self.initial.pixels)
        return self.add(case, [samples[0], self.session.values_of(samples[0], options)])


class ImageToVideoTrial(VideoTrial):
    """Runs an image-to-video package on sample prompts, and an image of waves.

    Args:
        session: Session of the package.
    """

    faults: ClassVar[Mapping[str, Mapping[FaultKind, str]]] = {
        **VideoTrial.faults,
        UNGUIDED: {"image": "an inverted image"},
    }

    def __init__(self, session: TextToVideoSession) -> None:
        super().__init__(session)
        self.initial = image_of_waves(session.family.unit, has_mask=False)
