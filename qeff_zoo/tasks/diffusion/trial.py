# SPDX-License-Identifier: Apache-2.0
"""Sample prompts through a text-to-image package: whole images, and the calls of each program on the way.

Calls are those of a real run: every prompt of the text encoders; the first, the middle and the last call of the model
that removes noise; and the last latents. The reference gets their inputs, and the prompts and seeds of whole images.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array, Observed
from qeff_zoo.tasks.diffusion.options import ImageOptions
from qeff_zoo.tasks.diffusion.session import TextToImageSession
from qeff_zoo.tasks.text_to_speech.points import row_of
from qeff_zoo.validation.trial.faults import Fault, FaultKind
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext

#: Stages of whole images, with guidance and without.
GUIDED, UNGUIDED = "guided_image", "unguided_image"
_PROMPT, _NEGATIVE = "A red cat on the house, 3 dogs & thé rain", "the dog"
_STEPS = 4
_UNITS = (2, 3)  # height and width of an image, in the smallest steps
#: Faults that a whole image with guidance must show.
_FAULTS: Mapping[FaultKind, str] = {
    "timestep": "timesteps off by one",
    "guidance": "guidance ignored",
    "prompts": "prompt and negative prompt exchanged",
    "scale": "scale of the VAE forgotten",
}


def stages(roles: Sequence[str]) -> list[str]:
    """Return the names of the stages: one for each program, and those of whole images.

    Args:
        roles: Roles of the programs.
    """
    return [*roles, GUIDED, UNGUIDED]


class ImageTrial:
    """Runs a text-to-image package on sample prompts.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: TextToImageSession) -> None:
        self.session = session
        self._cases: list[dict[str, Any]] = []
        self._arrays: list[Array] = []
        self._rows: list[list[Array]] = []

    def call_once(self) -> None:
        """Draw a small image in one step."""
        options = self._options(guidance_scale=1.0, steps=1)
        self.session.draw_all([_PROMPT], options)

    def _options(self, **chosen: Any) -> ImageOptions:
        height, width = (count * self.session.family.unit for count in _UNITS)
        usual = {"seed": 1234, "steps": _STEPS, "height": height, "width": width}
        return self.session.options(**{**usual, **chosen})

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        names = context.task.stages()(sorted(self.session.programs))
        keys: dict[str, list[Key]] = {}
        noted: dict[str, list[tuple[Mapping[str, Array], Mapping[str, Array]]]] = {}
        with_guidance = self._options(negative_prompt=_NEGATIVE, **self.session.family.guided)
        programs = self.session.programs
        self.session.programs = {
            role: Observed(program, partial(_note, noted.setdefault(role, [])))
            for role, program in programs.items()
        }
        keys[GUIDED] = self._image(_PROMPT, with_guidance, context)
        self.session.programs = programs
        keys[UNGUIDED] = self._image(_PROMPT, self._options(guidance_scale=0.0, seed=5), context)
        for role in names[:-2]:
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
            faults=[Fault(stage=GUIDED, kind=kind, words=words) for kind, words in _FAULTS.items()],
        )

    def _image(self, prompt: str, options: ImageOptions, context: TrialContext) -> list[Key]:
        """Draw an image; return the keys of its last latents and of its pixels."""
        session = self.session
        samples = []
        for one in session.denoise(session.conditions(prompt, options), options):
            samples = [one]
            context.step(1)
        case = {"prompt": prompt, **vars(options)}
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
