# SPDX-License-Identifier: Apache-2.0
"""The `text2text-generation` contract: a text in, and tokens of another out, one after the other.

Two programs: `encoder` reads a text once, `decoder` writes of what came of it. See `qeff_zoo.tasks.crossing` for inputs
and outputs. The Hub also has tags for translations and summaries, which are computed alike.
"""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import SEQ2SEQ_SHAPES, Shape
from qeff_zoo.tasks import TEXT2TEXT, named, speech_seq2seq, text_generation


def _texts(shape: Shape) -> list[dict[str, Any]]:
    """A text joins when a row is free, so that of several slots each is read alone."""
    rows = 1 if shape.full_batch_size else shape.batch_size
    return named("Encoder", [{"batch_size": rows, "seq_len": one} for one in shape.seq_lens])


def _specializations(shape: Shape) -> list[dict[str, Any]]:
    """As for text; the decoder asks of the longest text that the encoder reads."""
    found = text_generation.TASK.specializations(shape)
    for one in found:
        one["symbols"]["encoder_ctx_len"] = str(max(shape.seq_lens))
    return found


def _session() -> Any:
    from qeff_zoo.runtime.text2text_generation import Text2TextSession

    return Text2TextSession


_OF_SOUND = speech_seq2seq.TASK
TASK = replace(
    _OF_SOUND,
    name=TEXT2TEXT,
    reads="text",
    auto_classes=("AutoModelForSeq2SeqLM",),
    # Others end as those do that read pictures: there the recipe says which it is.
    suffixes=("T5ForConditionalGeneration", "MTModel"),
    shapes=SEQ2SEQ_SHAPES,
    before=tuple(replace(part, specializations=_texts) for part in _OF_SOUND.before),
    specializations=_specializations,
    problems=text_generation.not_alone("what is written of a text is short"),
    session=_session,
)
