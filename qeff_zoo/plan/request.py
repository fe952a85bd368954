# SPDX-License-Identifier: Apache-2.0
"""The options of a build, each declared once: a field of `Request`, and all that follows from it.

What users may ask for (`Request`), the flags of the command line, where a plan's spec holds what was chosen, how
packages are compared and how their folders are named: all of it reads this table. A new option is one field here, or
among the options of the target that it is for, and the code that means it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from qeff_zoo import targets
from qeff_zoo.checkpoint.adapters import LORA_RANK
from qeff_zoo.graph import numerics
from qeff_zoo.plan.option import HARDEST, SOFT, Option, option

POOLINGS = ("mean", "cls", "max", "lasttoken")


def _size(name: str, text: str, short: str, **facts: Any) -> Any:
    return option(f"shape.{name}", text, short=short, distance=SOFT, **facts)


def _seen(calls: str, short: str) -> Any:
    text = f"rows of the cache that a {calls} call reads: the smallest that holds its tokens (default: all)"
    return _size(f"comp_ctx_lengths_{calls}", text, short, of="decoder", match="any")


def _either(values: tuple[Any, ...]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _default_weights() -> str:
    """Return the formats that targets store weights in by default: one, but for some targets."""
    usual = numerics.WEIGHTS[0]
    others = {name: targets.find(name).weights[0] for name in targets.NAMES}
    return "; ".join(
        [usual, *(f"of target {name} {own}" for name, own in others.items() if own != usual)]
    )


if TYPE_CHECKING:

    class _TargetOptions:
        def __getattr__(self, name: str) -> Any: ...

else:
    _TargetOptions = type("_TargetOptions", targets.options(), {})


@dataclass(frozen=True, kw_only=True)
class Request(_TargetOptions):
    """Options of a build, those of every target among them. None leaves one to the recipe; `help` describes it."""

    target: str | None = option(
        "target.name",
        f"what to compile for (default: {targets.NAMES[0]})",
        allowed=targets.NAMES,
        default=targets.NAMES[0],
        distance=HARDEST,
        short="",
    )
    task: str | None = option(
        "task.name", "Hub pipeline tag (default: what the checkpoint is for)", distance=HARDEST
    )
    weights: str | None = option(
        "quantization.weights",
        f"{_either(numerics.WEIGHTS)} (int8 by rows, activations too: fastest for prompts, less exact than int8), or "
        f"{numerics.STORED}: as a quantized checkpoint has them "
        f"(default: {numerics.STORED} of such a checkpoint, else {_default_weights()})",
        allowed=(*numerics.WEIGHTS, numerics.STORED),
        default=numerics.WEIGHTS[0],
        short="",
    )
    block_size: int | None = option(
        "quantization.block_size",
        f"columns that share a scale in int8 and int4: {_either(numerics.BLOCK_SIZES)} "
        f"(default: {numerics.BLOCK_SIZE}; larger is faster, less exact)",
        allowed=numerics.BLOCK_SIZES,
        default=numerics.BLOCK_SIZE,
    )
    format: tuple[str, ...] | None = option(
        "quantization.format",
        f"PATTERN={'|'.join(numerics.WEIGHTS)}, of matrices whose name fits: *.down_proj=int8; the first that "
        "fits counts, for all others --weights; may be given several times",
    )
    profile: str | None = option(None, "one of the recipe's shapes (default: latency)")
    prefill_seq_len: int | None = _size(
        "prefill_seq_len", "prompt tokens taken by one call", "pl", of="decoder", match="any"
    )
    ctx_len: int | None = _size(
        "ctx_len",
        "prompt and generated tokens together",
        "cl",
        of="decoder",
        match="at least",
    )
    seq_lens: tuple[int, ...] | None = _size(
        "seq_lens", "sequence lengths of an encoder", "sl", of="encoder", match="at least"
    )
    batch_size: int | None = _size("batch_size", "rows of one call", "bs", match="at least")
    full_batch_size: int | None = _size(
        "full_batch_size",
        "slots of continuous batching",
        "fbs",
        of="decoder",
        match="at least",
    )
    comp_ctx_lengths_prefill: tuple[int, ...] | None = _seen("prefill", "ccp")
    comp_ctx_lengths_decode: tuple[int, ...] | None = _seen("decode", "ccd")
    num_speculative_tokens: tuple[int, ...] | None = _size(
        "num_speculative_tokens",
        "drafted tokens that one decode call checks, one number or several (default: none)",
        "spd",
        of="decoder",
        match="any",
    )
    prefill_only: bool | None = option(
        "shape.prefill_only",
        "run prompts alone, for `serve --role prefill`: another package decodes",
        of="decoder",
    )
    decode_only: bool | None = option(
        "shape.decode_only",
        "run one token of a row a call, for `serve --role decode`: another package runs prompts",
        of="decoder",
    )
    image_size: tuple[str, ...] | None = option(
        "shape.image_size",
        "HEIGHTxWIDTH in pixels, of models that read pictures of any size: a program takes those of as many patches or "
        "fewer, of any shape; larger ones are made smaller; may be given several times (default: 1024 patches, or as "
        "many as processors make of every picture)",
        of="vision",
        fixed=True,
        short="is",
    )
    max_num_images: int | None = _size(
        "max_num_images",
        "pictures of a prompt at most, of a model that reads them by cross-attention (default: 1)",
        "mni",
        of="vision",
        match="at least",
    )
    pooling: str | None = option(
        "task.pooling",
        f"{_either(POOLINGS)} (default: as the checkpoint says)",
        of="embeddings",
        allowed=POOLINGS,
    )
    normalize: bool | None = option(
        "task.normalize", "scale embeddings to length 1", of="embeddings"
    )
    expanded_kv: bool | None = option(
        "task.expanded_kv",
        "of latent attention, retain every head's keys and values instead of the latents",
        of="decoder",
        default=False,
    )
    kv_heads: int | None = option(
        "task.kv_heads",
        "key/value heads: those of the model, repeated, so that more devices have some of their own",
        of="decoder",
        least=1,
        short="kv",
    )
    adapter: tuple[str, ...] | None = option(
        "sources.adapters",
        "adapter (LoRA) to merge into the weights: a folder or Hub id (org/name, org/name@revision), and perhaps "
        "=WEIGHT; may be given several times, for a weighted sum",
        distance=HARDEST,
        short="adapter",
    )
    draft_heads: str | None = option(
        "sources.speculator",
        "heads that draft tokens, for `run --draft heads`: a folder or Hub id (org/name, org/name@revision) with "
        "those of turbo, of Medusa, of an MLP speculator or of EAGLE-3, or an assistant of Gemma 4; "
        '"mtp" for the layer of the model\'s own checkpoint',
        of="decoder",
        match="any",
        short="heads",
    )
    max_loras: int | None = option(
        "task.max_loras",
        "adapters (LoRA) that a session holds at a time, to be loaded while it runs (default: none)",
        least=1,
        short="loras",
        match="at least",
    )
    max_lora_rank: int | None = option(
        "task.max_lora_rank",
        f"with --max-loras, the largest rank of an adapter (default: {LORA_RANK})",
        least=1,
        short="rank",
        match="at least",
    )
    lora_targets: tuple[str, ...] | None = option(
        "task.lora_targets",
        "with --max-loras, the layers that adapters may change, by their names or how these end: q_proj,v_proj "
        "(default: all linear layers)",
        short="lora",
        match="covering",
    )
    rope_factors: str | None = option(
        "task.rope_factors",
        "longrope's factors for all texts: short or long (default: long where the context exceeds the original one)",
        allowed=("short", "long"),
    )


_EVERY = (
    Option(name=item.name, kind=get_args(item.type)[0], **item.metadata)  # of `kind | None`
    for item in fields(Request)
)
#: Every option by its name, in the order in which people read them: those of one target last.
OPTIONS: Mapping[str, Option] = MappingProxyType(
    {option.name: option for option in sorted(_EVERY, key=lambda option: option.targets)}
)
