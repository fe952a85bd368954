# SPDX-License-Identifier: Apache-2.0
"""The `audio-classification` contract: a score of every label for each recording.

See `qeff_zoo.tasks.audio_classification.tracing` for inputs and outputs.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.contract import Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.tasks.encoders import whole_texts
from qeff_zoo.tasks.speech import ctc

#: Hub pipeline tag.
NAME = "audio-classification"


def _tracing(model: Any) -> Tracing:
    from . import tracing

    return tracing.tracing(model)


TASK = replace(
    ctc.TASK,
    name=NAME,
    does="classify recordings",
    guide="speech.md",
    by_token=False,
    auto_classes=("AutoModelForAudioClassification",),
    suffixes=("ForSequenceClassification", "ForAudioClassification"),
    tracing=_tracing,
    specializations=whole_texts.specializations("Classification"),
    session=lazy("qeff_zoo.tasks.audio_classification.session:AudioClassificationSession"),
    trial=lazy("qeff_zoo.tasks.audio_classification.trial:AudioTrial"),
    reference=lazy("qeff_zoo.tasks.audio_classification.reference:AudioReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.audio_classification.verbs:ClassifyRecordings"),
        run_options=("audio",),
    ),
)
