# SPDX-License-Identifier: Apache-2.0
"""The `feature-extraction` contract: one embedding per text.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  output (batch_size, hidden)            pooled over the tokens, through the checkpoint's dense layers after the
                                            encoder, normalized on request
     output (batch_size, seq_len, hidden)   without pooling: last hidden states, normalized on request
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.recipe import ENCODER_SHAPES, Recipe, Shape
from qeff_zoo.tasks import FEATURE_EXTRACTION, Default, Task, Tracing, lazy
from qeff_zoo.tasks.commands import PROMPTS, Commands

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: File of sentence-transformers that describes the pooling of token states.
_MODULES = "modules.json"


def _tracing(model: Any, **variant: Any) -> Tracing:
    from . import pooling

    return pooling.tracing(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    from qeff_zoo.checkpoint.sentence_transformers import read_pooling

    found = read_pooling(checkpoint.companions)
    dense = [
        {name: value for name, value in asdict(layer).items() if name != "folder"}
        for layer in (found.dense if found else ())
    ]
    settings = {name: chosen[name] for name in ("pooling", "normalize")}
    return {**settings, "dense": dense} if dense and settings["pooling"] != "none" else settings


def _defaults(checkpoint: "Checkpoint") -> Mapping[str, Default]:
    from qeff_zoo.checkpoint.sentence_transformers import read_pooling

    found = read_pooling(checkpoint.companions)
    if found is None:
        return {"pooling": ("mean", "default"), "normalize": (False, "default")}
    by = f"checkpoint: {_MODULES}"
    return {"pooling": (found.pooling, by), "normalize": (found.normalize, by)}


TASK = Task(
    name=FEATURE_EXTRACTION,
    role="encoder",
    answers="embeddings",
    # For T5 the text encoder alone, which AutoModel does not create.
    auto_classes=("AutoModelForTextEncoding", "AutoModel"),
    suffixes=("Model",),
    has_head=False,
    companion=_MODULES,
    shapes=ENCODER_SHAPES,
    probe=whole_texts.run_once,
    tracing=_tracing,
    variant=_variant,
    specializations=whole_texts.specializations("Embedding"),
    defaults=_defaults,
    session=lazy("qeff_zoo.tasks.encoders.embedding_session:EmbeddingSession"),
    trial=lazy("qeff_zoo.tasks.encoders.trial:EncoderTrial"),
    reference=lazy("qeff_zoo.tasks.encoders.reference:TextReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.encoders.verbs:EmbedTexts"),
        run_options=(*PROMPTS, "adapter"),
        serve=lazy("qeff_zoo.serving.services:TextEncoding"),
    ),
    stages=whole_texts.stages,
    vllm_task="embed",
)
