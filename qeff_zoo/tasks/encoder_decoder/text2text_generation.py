# SPDX-License-Identifier: Apache-2.0
"""The `text2text-generation` contract: a text in, and tokens of a generated text out.

Two programs: `encoder` encodes a text once, `decoder` generates from its states. See
`qeff_zoo.export.tracing.encoder_decoder_tracing` for inputs and outputs. The Hub also has tags for translations and
summaries, with the same computation.
"""

from dataclasses import replace

from qeff_zoo.contract import TEXT2TEXT, lazy
from qeff_zoo.contract.commands import BENCH_GENERATION, CONVERSATION, GENERATION, PROMPTS, Commands
from qeff_zoo.recipe import SEQ2SEQ_SHAPES
from qeff_zoo.tasks.speech import seq2seq
from qeff_zoo.tasks.text_generation import task

_OF_AUDIO = seq2seq.TASK
TASK = replace(
    _OF_AUDIO,
    name=TEXT2TEXT,
    does="translate and summarize",
    guide="text2text.md",
    reads="text",
    generation_warnings=lambda generation, recipe: (),
    auto_classes=("AutoModelForSeq2SeqLM",),
    # Other suffixes equal those of vision-language models; for these the recipe sets the task.
    suffixes=("T5ForConditionalGeneration", "MTModel"),
    shapes=SEQ2SEQ_SHAPES,
    problems=task.not_alone("what is written of a text is short"),
    session=lazy("qeff_zoo.tasks.encoder_decoder.text2text_session:Text2TextSession"),
    public=("qeff_zoo.tasks.encoder_decoder.text2text_session:Text2TextSession",),
    trial=lazy("qeff_zoo.tasks.encoder_decoder.trial:Text2TextTrial"),
    reference=lazy("qeff_zoo.tasks.encoder_decoder.reference:Text2TextReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.encoder_decoder.verbs:GenerateFromText"),
        run_options=(*PROMPTS, *GENERATION, "adapter", "language", "source_language"),
        chat_options=CONVERSATION,
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=("lora_modules", "allow_adapters"),
        bench="generation",
        bench_options=BENCH_GENERATION,
    ),
)
