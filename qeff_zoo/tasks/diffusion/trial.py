# SPDX-License-Identifier: Apache-2.0
"""Sample prompts through a text-to-image package: whole images, and the calls of each program on the way.

Calls are those of a real run: every prompt of the text encoders; the first, the middle and the last call of the model
that removes noise; an initial image; and the last latents. The reference gets their inputs, and the prompts and seeds
of whole images, with their initial images and masks.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array, Observed
from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.options import ImageOptions
from qeff_zoo.tasks.diffusion.session import TextToImageSession
from qeff_zoo.tasks.text_to_speech.points import row_of
from qeff_zoo.validation.trial.faults import Fault, FaultKind
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext

#: Stages of whole images, with guidance and without.
GUIDED, UNGUIDED = "guided_image", "unguided_image"
#: Stages of whole images that begin with another image, and of which a part is drawn anew.
CHANGED, MASKED = "changed_image", "masked_image"
_PROMPT, _NEGATIVE = "A red cat on the house, 3 dogs & thé rain", "the dog"
_STEPS = 4
_UNITS = (2, 3)  # height and width of an image, in the smallest steps
_STRENGTH = 0.5  # of changed images
#: Faults that whole images must show, by stage.
_FAULTS: Mapping[str, Mapping[FaultKind, str]] = {
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


def stages(roles: Sequence[str]) -> list[str]:
    """Return the names of the stages: one for each program, and those of whole images.

    Args:
        roles: Roles of the programs.
    """
    return [*roles, GUIDED, UNGUIDED, *([CHANGED, MASKED] if "vae_encoder" in roles else [])]


class ImageTrial:
    """Runs a text-to-image package on sample prompts.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: TextToImageSession) -> None:
        self.session = session
        #: Image of every drawing, if the model draws masked parts alone.
        self._initial = self._image_of_waves(has_mask=True) if session.family.reads_masks else None
        self._cases: list[dict[str, Any]] = []
        self._arrays: list[Array] = []
        self._rows: list[list[Array]] = []

    def call_once(self) -> None:
        """Draw a small image in one step."""
        strength = 1.0 if self._initial else None  # of less, a single step leaves none
        options = self._options(guidance_scale=1.0, steps=1, strength=strength)
        self.session.draw_all([_PROMPT], options, initial=self._initial)

    def _options(self, **chosen: Any) -> ImageOptions:
        height, width = (count * self.session.family.unit for count in _UNITS)
        usual = {"seed": 1234, "steps": _STEPS, "height": height, "width": width}
        return self.session.options_for(self._initial, **{**usual, **chosen})

    def _image_of_waves(self, *, has_mask: bool) -> InitialImage:
        return _initial_image(self.session.family.unit, has_mask=has_mask)

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        names = context.task.stages()(sorted(self.session.programs))
        if self.session.family.lost_with_masks:
            names = [name for name in names if name != MASKED]
        keys: dict[str, list[Key]] = {}
        noted: dict[str, list[tuple[Mapping[str, Array], Mapping[str, Array]]]] = {}
        with_guidance = self._options(negative_prompt=_NEGATIVE, **self.session.family.guided)
        programs = self.session.programs
        self.session.programs = {
            role: Observed(program, partial(_note, noted.setdefault(role, [])))
            for role, program in programs.items()
        }
        keys[GUIDED] = self._image(_PROMPT, with_guidance, context, self._initial)
        if CHANGED in names:
            keys[CHANGED] = self._changed(context, strength=_STRENGTH)
        self.session.programs = programs
        if MASKED in names:
            keys[MASKED] = self._changed(context, has_mask=True, strength=1.0)
        without = self._options(guidance_scale=0.0, seed=5)
        keys[UNGUIDED] = self._image(_PROMPT, without, context, self._initial)
        for role in sorted(programs):
            keys[role] = [key for call in _some(noted[role]) for key in self._call(role, *call)]
        return Trial(
            sequences=[[*map(ord, json.dumps(case))] for case in self._cases],
            positions=[[*range(len(rows))] for rows in self._rows],
            keys={name: keys[name] for name in names},
            answers={
                name: np.stack([self._rows[number][index] for number, index, _ in keys[name]])
                for name in names
            },
            runs=[],
            recordings=self._arrays,
            faults=[
                Fault(stage=stage, kind=kind, words=words)
                for stage, faults in _FAULTS.items()
                if stage in names
                for kind, words in faults.items()
            ],
        )

    def _changed(
        self, context: TrialContext, *, has_mask: bool = False, strength: float
    ) -> list[Key]:
        """Change an image, or draw its masked part; return the keys of the last latents and of the pixels."""
        initial = self._initial or self._image_of_waves(has_mask=has_mask)
        height, width = (count * self.session.family.unit for count in _UNITS)
        options = self.session.options_for(
            initial, seed=77, steps=_STEPS, height=height, width=width, strength=strength
        )
        return self._image(_PROMPT, options, context, initial)

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
                case[name] = len(self._arrays)
                self._arrays.append(pixels)
        return self._add(case, [samples[0], session.image_of(samples[0], options)])

    def _call(
        self, role: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> list[Key]:
        """Add a call of a program; return the keys of its outputs."""
        first = len(self._arrays)
        self._arrays += inputs.values()
        numbers = {name: first + place for place, name in enumerate(inputs)}
        case = {"role": role, "inputs": numbers, "outputs": [*outputs]}
        return self._add(case, [*outputs.values()])

    def _add(self, case: dict[str, Any], found: Sequence[Array]) -> list[Key]:
        number = len(self._cases)
        self._cases.append(case)
        self._rows.append([row_of(one) for one in found])
        return [(number, index, 0) for index in range(len(found))]


def _initial_image(unit: int, *, has_mask: bool) -> InitialImage:
    """Return an image of waves, larger than the one that is drawn, whose mask is a rectangle near its middle."""
    height, width = (count * unit + 5 for count in _UNITS)
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin(rows / 5 + np.arange(3)) * np.cos(columns / 7 + 2 * np.arange(3))
    mask = np.zeros((height, width, 3), np.uint8)
    mask[height // 4 : 3 * height // 4, width // 3 :] = 255
    return InitialImage(
        pixels=(waves * 127 + 128).astype(np.uint8), mask=mask if has_mask else None
    )


def _note(
    noted: list[tuple[Mapping[str, Array], Mapping[str, Array]]],
    inputs: Mapping[str, Array],
    _: Sequence[int],
    outputs: Mapping[str, Array],
) -> None:
    noted.append((dict(inputs), dict(outputs)))


def _some(calls: Sequence[Any]) -> list[Any]:
    """Return the first, the middle and the last call."""
    numbers = sorted({0, len(calls) // 2, len(calls) - 1})
    return [calls[number] for number in numbers]
