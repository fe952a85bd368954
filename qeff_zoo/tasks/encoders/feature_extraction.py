# SPDX-License-Identifier: Apache-2.0
"""The `feature-extraction` contract: one embedding per text.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  output (batch_size, hidden)            pooled over the tokens, through the checkpoint's modules of
                                            sentence-transformers after the encoder, normalized on request
     output (batch_size, seq_len, hidden)   without pooling: last hidden states, normalized on request
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import FEATURE_EXTRACTION, Default, Tracing, lazy
from qeff_zoo.contract.comparison import EMBEDDINGS
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: File of sentence-transformers that describes the pooling of token states.
_MODULES = "modules.json"
#: Fields of a config with the number of tokens in a window of attention.
_WINDOWS = ("local_attention", "sliding_window")
#: Source of a pooling that nothing sets.
_ASSUMED = f"assumed: no {_MODULES}"


def _tracing(model: Any, **variant: Any) -> Tracing:
    from . import pooling

    return pooling.tracing(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    from qeff_zoo.checkpoint.sentence_transformers import modules

    settings = {name: chosen[name] for name in ("pooling", "normalize")}
    described = modules.described(modules.read_steps(checkpoint.companions, **settings))
    masks = {"masks_expansion": True} if _masks_beyond_window(checkpoint) else {}
    return {**settings, **({"modules": described} if described else {}), **masks}


def _masks_beyond_window(checkpoint: "Checkpoint") -> bool:
    """Return whether queries are expanded by tokens that none attends to, beyond the window of some layers."""
    from qeff_zoo.checkpoint.sentence_transformers import files, settings

    read = files.reader_of(checkpoint.companions)
    expansion = settings.read_settings(read).expansion
    windows = [size for name in _WINDOWS if type(size := read("config.json").get(name)) is int]
    if not expansion or expansion.get("attend") or not windows:
        return False
    return int(expansion.get("length", 0)) > min(windows) // 2


def _defaults(checkpoint: "Checkpoint") -> Mapping[str, Default]:
    from qeff_zoo.checkpoint.sentence_transformers.modules import read_pooling

    pooling = read_pooling(checkpoint.companions)
    if pooling is None:
        return {"pooling": ("mean", _ASSUMED), "normalize": (False, "default")}
    by = f"checkpoint: {_MODULES}"
    return {"pooling": (pooling[0], by), "normalize": (pooling[1], by)}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.checkpoint.sentence_transformers import colbert, files, modules, settings, steps

    joined = (request.pooling or "").split(steps.AND)
    if len(joined) > 1 and "none" in joined:
        return [f"--pooling is {request.pooling!r}, and 'none' joins no other. Leave it out."]
    declared = modules.read_steps(checkpoint.companions, request.pooling, request.normalize)
    several = any(isinstance(step, steps.MultiVectorMask) for step in declared)
    if several and (request.pooling not in (None, "none") or request.normalize is not None):
        return [
            f"{checkpoint.name!r} has an embedding for each token, and no pooling that --pooling or --normalize could "
            "replace. Leave them out."
        ]
    listed = modules.read_modules(checkpoint.companions)
    if listed and listed[0].kind == files.STATIC and request.pooling not in (None, "mean"):
        return [
            f"{checkpoint.name!r} has a {files.STATIC}, the mean of the vectors of tokens, which --pooling "
            f"{request.pooling} does not replace. Leave it out."
        ]
    read = files.reader_of(checkpoint.companions)
    kind = colbert.SEVERAL if several else settings.SINGLE
    return settings.problems_of(checkpoint.name, read, "last_hidden_state", kind=kind)


def _warnings(checkpoint: "Checkpoint", chosen: Mapping[str, Default]) -> list[str]:
    if chosen.get("pooling") != ("mean", _ASSUMED):
        return []
    return [
        f"{checkpoint.name!r} has no {_MODULES}, so pooling `mean` without a normalization is assumed. If the model "
        "was trained with another pooling, its embeddings are others: give --pooling and --normalize."
    ]


TASK = whole_texts.task_of(
    name=FEATURE_EXTRACTION,
    does="embed texts",
    guide="embeddings.md",
    noun="Embedding",
    verb="EmbedTexts",
    options=("prompt_name", "prompt_prefix", "dimensions"),
    comparison=EMBEDDINGS,
    # For T5 the text encoder alone, which AutoModel does not create.
    auto_classes=("AutoModelForTextEncoding", "AutoModel"),
    suffixes=("Model",),
    has_head=False,
    companion=_MODULES,
    tracing=_tracing,
    variant=_variant,
    defaults=_defaults,
    problems=_problems,
    warnings=_warnings,
    session=lazy("qeff_zoo.tasks.encoders.embedding_session:EmbeddingSession"),
    public=("qeff_zoo.tasks.encoders.embedding_session:EmbeddingSession",),
    vllm_task="embed",
)
