# SPDX-License-Identifier: Apache-2.0
"""The `text-generation` contract: tokens and positions in, the last valid position's logits and the states out.

See `qeff_zoo.export.tracing.decoder_tracing` for inputs and outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.config import bidirectional_by
from qeff_zoo.checkpoint.draft_heads import ASSISTANT, DRAFT, HEADS
from qeff_zoo.contract import TEXT_GENERATION, Part, Task, Tracing, find, lazy, named, tasks_of
from qeff_zoo.contract.commands import (
    BENCH_GENERATION,
    DECODER_CONVERSATION,
    DISAGGREGATED,
    GENERATION,
    GRAMMAR,
    PREFIX_CACHE,
    PROMPTS,
    SERVED_GENERATION,
    SPECULATION,
    Commands,
)
from qeff_zoo.contract.comparison import LOGITS
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Shape
from qeff_zoo.weights import kv_heads

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _probe(model: Any) -> Any:
    from qeff_zoo.export.tracing import decoder_tracing

    return decoder_tracing.probe(model)


def _tracing(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.export.tracing import decoder_tracing

    return decoder_tracing.tracing(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    flags = {
        "continuous_batching": shape.full_batch_size,
        "comp_ctx_lengths": shape.comp_ctx_lengths_decode,
        "num_logits_to_keep": shape.num_speculative_tokens,
        "expanded_kv": chosen.get("expanded_kv"),
    }
    heads = {"kv_heads": chosen["kv_heads"]} if "kv_heads" in chosen else {}
    drafts = checkpoint.speculator
    read = {"hidden_states": drafts.reads(checkpoint.text_config)} if drafts else {}
    flags["whole_windows"] = _has(checkpoint, ASSISTANT)
    return {**{name: True for name, value in flags.items() if value}, **read, **heads}


def _heads(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.export.tracing import draft_tracing

    return draft_tracing.tracing(model, **variant)


def _has(checkpoint: "Checkpoint", role: str) -> bool:
    return checkpoint.speculator is not None and checkpoint.speculator.role == role


def _heads_variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    assert checkpoint.speculator is not None
    return {"speculator": dict(checkpoint.speculator.settings)}


def _drafts(shape: Shape) -> list[dict[str, Any]]:
    return named("Draft", [{"batch_size": shape.full_batch_size or shape.batch_size}])


def _layer(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.export.tracing import draft_tracing

    return draft_tracing.tracing_of_layer(model, **variant)


def _layer_variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    slots = {"continuous_batching": True} if shape.full_batch_size else {}
    return {**_heads_variant(checkpoint, recipe, shape, chosen), **slots}


def _with_block(checkpoint: "Checkpoint", shape: Shape) -> Shape:
    """Return the sizes of a draft program: a drafted block lies behind the context."""
    block = checkpoint.speculator.settings.get("block_size", 0) if checkpoint.speculator else 0
    return replace(shape, ctx_len=shape.ctx_len + block)


def _assistant(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.export.tracing import assistant_tracing

    return assistant_tracing.tracing(model, **variant)


def _assistant_variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    heads = {"kv_heads": chosen["kv_heads"]} if "kv_heads" in chosen else {}
    return {**_heads_variant(checkpoint, recipe, shape, chosen), **heads}


def _assisted(shape: Shape) -> list[dict[str, Any]]:
    """Return the specialization of an assistant: one token of one row, whose KV states it reads."""
    return named("Draft", [{"batch_size": 1, "seq_len": 1, "ctx_len": shape.ctx_len}])


def _layer_specializations(shape: Shape) -> list[dict[str, Any]]:
    """Return the specializations of a draft layer: those of its target model, without verification and phases."""
    none: dict[str, Any] = {"comp_ctx_lengths_prefill": (), "comp_ctx_lengths_decode": ()}
    return _specializations(
        replace(shape, num_speculative_tokens=(), prefill_only=False, decode_only=False, **none)
    )


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = []
    if request.expanded_kv and not checkpoint.config.get("kv_lora_rank"):
        problems.append(
            f"--expanded-kv is for latent attention, which {checkpoint.model_type!r} does not have. Leave it out."
        )
    if checkpoint.speculator:
        problems += checkpoint.speculator.problems(checkpoint.name, checkpoint.text_config)
    if request.kv_heads is not None:
        problems += kv_heads.problems(checkpoint.name, checkpoint.config, recipe, request.kv_heads)
    if field := bidirectional_by(checkpoint.config):
        others = [one for one in tasks_of(recipe) if not find(one).has_head]
        advice = f"choose {' or '.join(others)} with --task" if others else "use another model"
        problems.append(
            f"{checkpoint.name!r} lets every token see those after it (`{field}` is {checkpoint.config[field]!r} in "
            f"config.json), so that no text can be generated token by token. Expected a causal model; {advice}."
        )
    return problems


def of_one_length(checkpoint: "Checkpoint", request: Request, what: str) -> list[str]:
    """Refuse options of lengths for inputs of a fixed length.

    Args:
        checkpoint: Checkpoint of the model.
        request: Request of the user.
        what: Kind of the inputs.
    """
    if not request.seq_lens:
        return []
    return [
        f"--seq-lens is {list(request.seq_lens)}, and {checkpoint.name!r} reads {what} of one length; expected none. "
        "Leave it out."
    ]


def not_alone(why: str) -> Callable[["Checkpoint", Recipe, Request], list[str]]:
    """Return a function that refuses options of decoders that read nothing but their own tokens.

    Args:
        why: Reason why they do not apply to a decoder with an encoder.
    """
    names = (
        "comp_ctx_lengths_prefill",
        "comp_ctx_lengths_decode",
        "num_speculative_tokens",
        "draft_heads",
        "expanded_kv",
        "kv_heads",
    )

    def problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
        return [
            f"{OPTIONS[name].flag} is for text generation; {why}. Leave it out."
            for name in names
            if getattr(request, name)
        ]

    return problems


def _specializations(shape: Shape) -> list[dict[str, Any]]:
    """Return prefill, then decode of one token and of each number of draft tokens, for every compute context.

    A prefill-only or decode-only package has one of the two.
    """
    slots = shape.full_batch_size
    common = {"ctx_len": shape.ctx_len, **({"full_batch_size": slots} if slots else {})}
    prefill = {
        "batch_size": 1 if slots else shape.batch_size,
        "seq_len": shape.prefill_seq_len,
        **common,
    }
    decode = {"batch_size": slots or shape.batch_size, "seq_len": 1, **common}
    drafted = shape.num_speculative_tokens
    if drafted:
        prefill, decode = ({**one, "num_logits_to_keep": 1} for one in (prefill, decode))
    checks = [
        {**decode, "seq_len": count + 1, "num_logits_to_keep": count + 1} for count in drafted
    ]
    prefills, decodes = shape.comp_ctx_lengths_prefill, shape.comp_ctx_lengths_decode
    if shape.prefill_only:
        return named("Prefill", _seeing([prefill], prefills))
    if shape.decode_only:
        return named("Decode", _seeing([decode, *checks], decodes))
    if prefill == decode:  # one program, which prefills too
        return named("Decode", _seeing([decode, *checks], tuple(sorted({*prefills, *decodes}))))
    return [
        *named("Prefill", _seeing([prefill], prefills)),
        *named("Decode", _seeing([decode, *checks], decodes)),
    ]


def _seeing(every: list[dict[str, int]], lengths: tuple[int, ...]) -> list[dict[str, int]]:
    if not lengths:
        return every
    return [{**symbols, "comp_ctx_lengths": length} for symbols in every for length in lengths]


TASK = Task(
    name=TEXT_GENERATION,
    does="generate text",
    guide="generation.md",
    role="decoder",
    beside=(
        Part(
            role=HEADS,
            probe=None,
            tracing=_heads,
            wanted=partial(_has, role=HEADS),
            variant=_heads_variant,
            specializations=_drafts,
        ),
        Part(
            role=DRAFT,
            probe=None,
            tracing=_layer,
            wanted=partial(_has, role=DRAFT),
            variant=_layer_variant,
            specializations=_layer_specializations,
            sized=_with_block,
        ),
        Part(
            role=ASSISTANT,
            probe=None,
            tracing=_assistant,
            wanted=partial(_has, role=ASSISTANT),
            variant=_assistant_variant,
            specializations=_assisted,
        ),
    ),
    comparison=LOGITS,
    auto_classes=("AutoModelForCausalLM",),
    suffixes=("ForCausalLM", "LMHeadModel"),
    shapes=DECODER_SHAPES,
    probe=_probe,
    tracing=_tracing,
    variant=_variant,
    specializations=_specializations,
    problems=_problems,
    session=lazy("qeff_zoo.runtime.engine.text_generation:TextGenerationSession"),
    public=("qeff_zoo.runtime.engine.text_generation:TextGenerationSession",),
    trial=lazy("qeff_zoo.tasks.text_generation.trial:DecoderTrial"),
    reference=lazy("qeff_zoo.tasks.text_generation.reference:DecoderReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.text_generation.verbs:Generate"),
        run_options=(
            *PROMPTS,
            *GENERATION,
            *GRAMMAR,
            *SPECULATION,
            *PREFIX_CACHE,
            "adapter",
            "document",
        ),
        chat_options=DECODER_CONVERSATION,
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=(*SERVED_GENERATION, *DISAGGREGATED, "block_attention"),
        bench="generation",
        bench_options=BENCH_GENERATION,
    ),
    stages=lazy("qeff_zoo.validation.trial.cases:decoder_stages"),
)
