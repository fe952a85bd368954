# SPDX-License-Identifier: Apache-2.0
"""Granite Speech Plus, `transformers.models.granite_speech_plus`: its projector reads states of earlier layers, too."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .granite_speech import RECIPE as GRANITE_SPEECH

_BASE = GRANITE_SPEECH.tiny[0].config
_TINY = {
    **_BASE,
    "encoder_config": {**_BASE["encoder_config"], "cat_hidden_layers": [0, 2]},
    "projector_config": {**_BASE["projector_config"], "encoder_hidden_size": 96},
}

RECIPE = replace(
    GRANITE_SPEECH,
    model_type="granite_speech_plus",
    architectures=("GraniteSpeechPlusForConditionalGeneration",),
    special="Granite Speech, whose projector reads states of some earlier layers beside those of the last.",
    tiny=(Tiny(config=_TINY),),
)
