# SPDX-License-Identifier: Apache-2.0
"""Options of a build, each declared once as a field of `Request`.

This table defines the options of users (`Request`), the flags of the command line, the paths of options in a plan's
spec, the comparison of packages and the names of their folders. A new option is one field here, or among the options
of its target, and the code that implements it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from qeff_zoo import targets
from qeff_zoo.checkpoint.adapters import LORA_RANK
from qeff_zoo.checkpoint.sentence_transformers import steps
from qeff_zoo.graph import numerics
from qeff_zoo.package.option import HARDEST, SOFT, Option, option

#: Bits a weight between which a mixture of int4 and int8 can be asked for; a model's own bounds are narrower.
LEAST_BITS, MOST_BITS = 4.5, 8.5
#: Poolings, of which several may be joined, and "none" for the states of tokens.
POOLINGS = (*steps.POOLINGS, "none")


def _size(name: str, text: str, short: str, **facts: Any) -> Any:
    return option(f"shape.{name}", text, short=short, distance=SOFT, **facts)


def _comp_ctx(calls: str, short: str) -> Any:
    text = f"KV cache positions that a {calls} call reads: the smallest number that covers its tokens (default: all)"
    return _size(f"comp_ctx_lengths_{calls}", text, short, of="decoder", match="any")


def _either(values: tuple[Any, ...]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _default_weights() -> str:
    """Return the default storage format of weights, with the targets whose default differs."""
    usual = numerics.WEIGHTS[0]
    others = {name: targets.find(name).weights[0] for name in targets.NAMES}
    return "; ".join(
        [usual, *(f"{own} for target {name}" for name, own in others.items() if own != usual)]
    )


def _objectives() -> str:
    """Return the objectives, and the targets that have measured settings for them."""
    found = targets.objectives()
    of = _either(tuple(dict.fromkeys(name for names in found.values() for name in names)))
    return f"; {_either(tuple(found))} for target {of}: measured settings of the nearest model"


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
        f"target to compile for (default: {targets.NAMES[0]})",
        allowed=targets.NAMES,
        default=targets.NAMES[0],
        distance=HARDEST,
        short="",
    )
    task: str | None = option(
        "task.name", "Hub pipeline tag (default: the checkpoint's task)", distance=HARDEST
    )
    weights: str | None = option(
        "quantization.weights",
        f"weight format: {_either(numerics.WEIGHTS)} (per-channel int8, and per-token int8 activations: fastest "
        f"prefill, less exact than int8), or {numerics.STORED}: as in a quantized checkpoint (default: "
        f"{numerics.STORED} for such a checkpoint, else {_default_weights()})",
        allowed=(*numerics.WEIGHTS, numerics.STORED),
        default=numerics.WEIGHTS[0],
        short="",
    )
    block_size: int | None = option(
        "quantization.block_size",
        f"group size of int8 and int4: {_either(numerics.BLOCK_SIZES)} columns (default: {numerics.BLOCK_SIZE}; in a "
        "mixture the one that costs each matrix least; larger is faster, less exact)",
        allowed=numerics.BLOCK_SIZES,
        default=numerics.BLOCK_SIZE,
    )
    bits: float | None = option(
        "quantization.bits",
        "bits a weight, scales and zero points included: each matrix becomes int4 or int8, in the blocks that cost "
        f"least (default: {numerics.MIXED_BITS:g} with --weights {numerics.MIXED[0]})",
        least=LEAST_BITS,
        most=MOST_BITS,
    )
    format: tuple[str, ...] | None = option(
        "quantization.format",
        f"PATTERN={'|'.join(numerics.WEIGHTS)}: weight format of matrices by name, such as *.down_proj=int8; the "
        "first match applies, --weights to all others; repeatable",
    )
    profile: str | None = option(
        None, f"shape profile of the recipe (default: latency){_objectives()}"
    )
    prefill_seq_len: int | None = _size(
        "prefill_seq_len", "prompt tokens per prefill call", "pl", of="decoder", match="any"
    )
    ctx_len: int | None = _size(
        "ctx_len",
        "context length: prompt and generated tokens",
        "cl",
        of="decoder",
        match="at least",
    )
    seq_lens: tuple[int, ...] | None = _size(
        "seq_lens", "sequence lengths of an encoder", "sl", of="encoder", match="at least"
    )
    batch_size: int | None = _size("batch_size", "sequences per call", "bs", match="at least")
    full_batch_size: int | None = _size(
        "full_batch_size",
        "batch slots for continuous batching",
        "fbs",
        of="decoder",
        match="at least",
    )
    comp_ctx_lengths_prefill: tuple[int, ...] | None = _comp_ctx("prefill", "ccp")
    comp_ctx_lengths_decode: tuple[int, ...] | None = _comp_ctx("decode", "ccd")
    num_speculative_tokens: tuple[int, ...] | None = _size(
        "num_speculative_tokens",
        "draft tokens that one decode call verifies: one number or several (default: none)",
        "spd",
        of="decoder",
        match="any",
    )
    prefill_only: bool | None = option(
        "shape.prefill_only",
        "prefill only, for `serve --role prefill` (disaggregated serving)",
        of="decoder",
    )
    decode_only: bool | None = option(
        "shape.decode_only",
        "decode only, one token per slot and call, for `serve --role decode` (disaggregated serving)",
        of="decoder",
    )
    image_size: tuple[str, ...] | None = option(
        "shape.image_size",
        "HEIGHTxWIDTH in pixels: largest image of a program, for models with images of any size. Images of any shape "
        "with as many patches or fewer fit; larger ones are scaled down; repeatable (default: 1024 patches, or the "
        "processor's fixed number)",
        of="vision",
        fixed=True,
        short="is",
    )
    max_num_images: int | None = _size(
        "max_num_images",
        "largest number of images per prompt (default: 1), for models with cross-attention to images",
        "mni",
        of="vision",
        match="at least",
    )
    pooling: str | None = option(
        "task.pooling",
        f"pooling: {_either(POOLINGS)}, or several joined by {steps.AND!r} (default: the checkpoint's)",
        of="embeddings",
        allowed=POOLINGS,
        joint=steps.AND,
    )
    normalize: bool | None = option(
        "task.normalize", "normalize embeddings to length 1", of="embeddings"
    )
    expanded_kv: bool | None = option(
        "task.expanded_kv",
        "KV cache of every head's keys and values instead of latents (latent attention)",
        of="decoder",
        default=False,
    )
    kv_heads: int | None = option(
        "task.kv_heads",
        "number of key/value heads after replication, for slicing over more devices",
        of="decoder",
        least=1,
        short="kv",
    )
    adapter: tuple[str, ...] | None = option(
        "sources.adapters",
        "LoRA adapter to merge into the weights: folder or Hub id (org/name, org/name@revision), optionally with "
        "=WEIGHT; repeatable, for a weighted sum",
        distance=HARDEST,
        short="adapter",
    )
    draft_heads: str | None = option(
        "sources.speculator",
        "draft heads for `run --draft heads`: folder or Hub id (org/name, org/name@revision) of turbo or Medusa heads, "
        "of an MLP speculator, of EAGLE-3, DFlash or a Gemma 4 assistant; mtp for the checkpoint's own MTP layer",
        of="decoder",
        match="any",
        short="heads",
    )
    max_loras: int | None = option(
        "task.max_loras",
        "adapter slots: number of LoRA adapters that a session holds, loaded while it runs (default: none)",
        least=1,
        short="loras",
        match="at least",
    )
    max_lora_rank: int | None = option(
        "task.max_lora_rank",
        f"largest rank of a LoRA adapter (default: {LORA_RANK}), with --max-loras",
        least=1,
        short="rank",
        match="at least",
    )
    lora_targets: tuple[str, ...] | None = option(
        "task.lora_targets",
        "layers that LoRA adapters may change, by name or its end: q_proj,v_proj (default: all linear layers), with "
        "--max-loras",
        short="lora",
        match="covering",
    )
    rope_factors: str | None = option(
        "task.rope_factors",
        "LongRoPE factors for all texts: short or long (default: long if the context exceeds the original one)",
        allowed=("short", "long"),
    )


_EVERY = (
    Option(name=item.name, kind=get_args(item.type)[0], **item.metadata)  # of `kind | None`
    for item in fields(Request)
)
#: Every option by its name, in the order of the documentation: options of a single target last.
OPTIONS: Mapping[str, Option] = MappingProxyType(
    {option.name: option for option in sorted(_EVERY, key=lambda option: option.targets)}
)
