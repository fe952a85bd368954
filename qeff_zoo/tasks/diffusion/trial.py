# SPDX-License-Identifier: Apache-2.0
"""Sample prompts through a text-to-image package: images of texts, and images that begin with another image.

The reference also gets the initial images of whole images, and their masks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.options import ImageOptions
from qeff_zoo.tasks.diffusion.pipeline_trial import NEGATIVE, PROMPT, STEPS, PipelineTrial
from qeff_zoo.tasks.diffusion.session import TextToImageSession
from qeff_zoo.validation.trial.faults import FaultKind
from qeff_zoo.validation.trial.package_runner import Key, TrialContext

#: Stages of whole images, with guidance and without.
GUIDED, UNGUIDED = "guided_image", "unguided_image"
#: Stages of whole images that begin with another image, and of which a part is drawn anew.
CHANGED, MASKED = "changed_image", "masked_image"
_STRENGTH = 0.5  # of changed images


def stages(roles: Sequence[str]) -> list[str]:
    """Return the names of the stages: one for each program, and those of whole images.

    Args:
        roles: Roles of the programs.
    """
    return [*roles, GUIDED, UNGUIDED, *([CHANGED, MASKED] if "vae_encoder" in roles else [])]


class ImageTrial(PipelineTrial[TextToImageSession]):
    """Runs a text-to-image package on sample prompts.

    Args:
        session: Session of the package.
    """

    faults: ClassVar[Mapping[str, Mapping[FaultKind, str]]] = {
        GUIDED: {
            "timestep": "timesteps off by one",
            "guidance": "guidance ignored",
            "prompts": "prompt and negative prompt exchanged",
            "scale": "scale of the VAE forgotten",
        },
        CHANGED: {
            "strength": "an image changed by one step more",
            "scale": "scale of the VAE forgotten",
        },
        MASKED: {"mask": "a mask inverted"},
    }

    def __init__(self, session: TextToImageSession) -> None:
        super().__init__(session)
        #: Image of every drawing, if the model draws masked parts alone.
        self._initial = self._image_of_waves(has_mask=True) if session.family.reads_masks else None

    def call_once(self) -> None:
        """Draw a small image in one step."""
        strength = 1.0 if self._initial else None  # of less, a single step leaves none
        options = self._options(guidance_scale=1.0, steps=1, strength=strength)
        self.session.draw_all([PROMPT], options, initial=self._initial)

    def stages(self, context: TrialContext) -> list[str]:
        """Return the names of the stages."""
        names = super().stages(context)
        if self.session.family.lost_with_masks:
            names = [name for name in names if name != MASKED]
        return names

    def observed_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw an image with guidance, and change one."""
        options = self._options(negative_prompt=NEGATIVE, **self.session.family.guided)
        keys = {GUIDED: self._image(PROMPT, options, context, self._initial)}
        if CHANGED in names:
            keys[CHANGED] = self._changed(context, strength=_STRENGTH)
        return keys

    def further_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw the masked part of an image anew, and an image without guidance."""
        keys = {}
        if MASKED in names:
            keys[MASKED] = self._changed(context, has_mask=True, strength=1.0)
        options = self._options(guidance_scale=0.0, seed=5)
        keys[UNGUIDED] = self._image(PROMPT, options, context, self._initial)
        return keys

    def _options(self, **chosen: Any) -> ImageOptions:
        usual = {"seed": 1234, "steps": STEPS, **self.size}
        return self.session.options_for(self._initial, **{**usual, **chosen})

    def _image_of_waves(self, *, has_mask: bool) -> InitialImage:
        return image_of_waves(self.session.family.unit, has_mask=has_mask)

    def _changed(
        self, context: TrialContext, *, has_mask: bool = False, strength: float
    ) -> list[Key]:
        """Change an image, or draw its masked part; return the keys of the last latents and of the pixels."""
        initial = self._initial or self._image_of_waves(has_mask=has_mask)
        options = self.session.options_for(
            initial, seed=77, steps=STEPS, **self.size, strength=strength
        )
        return self._image(PROMPT, options, context, initial)

    def _image(
        self,
        prompt: str,
        options: ImageOptions,
        context: TrialContext,
        initial: InitialImage | None = None,
    ) -> list[Key]:
        """Draw an image; return the keys of its last latents and of its pixels."""
        session = self.session
        conditions = session.conditions(prompt, options)
        samples, encoded = [], None
        if initial:
            encoded = session.encode(initial.prepared(options.height, options.width))
        for one in session.denoise(conditions, options, encoded):
            samples = [one]
            context.step(1)
        case = {"prompt": prompt, **vars(options)}
        for name, pixels in vars(initial).items() if initial else ():
            if pixels is not None:
                case[name] = self.array(pixels)
        return self.add(case, [samples[0], session.values_of(samples[0], options)])


def image_of_waves(unit: int, *, has_mask: bool) -> InitialImage:
    """Return an image of waves, larger than the one that is drawn, whose mask is a rectangle near its middle."""
    height, width = (count * unit + 5 for count in (2, 3))
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin(rows / 5 + np.arange(3)) * np.cos(columns / 7 + 2 * np.arange(3))
    mask = np.zeros((height, width, 3), np.uint8)
    mask[height // 4 : 3 * height // 4, width // 3 :] = 255
    return InitialImage(
        pixels=(waves * 127 + 128).astype(np.uint8), mask=mask if has_mask else None
    )
