# SPDX-License-Identifier: Apache-2.0
"""Choices for target `qaic` that do not go together, or not with the model."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.config import HEADS, kv_heads_of, size_of
from qeff_zoo.targets.qaic.configs import MX_BLOCK
from qeff_zoo.targets.qaic.options import SAMPLER, bad_flags
from qeff_zoo.weights.kv_heads import counts

if TYPE_CHECKING:
    from qeff_zoo.recipe import Shape

#: What configs call the same.
_HEAD_SIZES = ("head_dim", "d_kv")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def problems(config: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """List the reasons why a build is impossible, one sentence each.

    Args:
        config: Raw config.json of the checkpoint.
        options: Target options that are on, by name.
    """
    return [
        *_of_devices(config, options),
        *_of_cache(config, options),
        *_of_depth_first(options),
        *_of_patterns(options.get("node_precision_info", ())),
        *bad_flags(tuple(options.get("compiler_flag", ()))),
    ]


def warnings(config: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    """List possible problems of a build, one sentence each.

    Args:
        config: Config of `problems`, with the chosen number of key/value heads.
        options: See `problems`.
    """
    return (*_of_states(options), *_of_kv_heads(config, options))


def _of_states(options: Mapping[str, Any]) -> Iterator[str]:
    if "mdts_mos" in options:
        yield (
            "--mdts-mos leaves retained states without their pairs, as was seen on four cards: states then pass "
            "through the host at every call. Compare its speed with --mos."
        )


def _of_kv_heads(config: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    heads, each = kv_heads_of(config), _devices_of_a_stage(options)
    if not heads or heads % each == 0:
        return
    count = next((count for count in counts(config) if count % each == 0), None)
    repeats = (
        f" --kv-heads {count} repeats them for each, where the model's weights allow it."
        if count
        else ""
    )
    yield (
        f"{each} devices cannot share the model's {heads} key/value heads evenly, so that some of them need the same."
        f"{repeats}"
    )


def _devices_of_a_stage(options: Mapping[str, Any]) -> int:
    return int(options.get("num_devices", 1)) // int(options.get("mdp_num_partitions", 1))


def _of_devices(config: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    devices, stages = options["num_devices"], options.get("mdp_num_partitions", 1)
    if devices < 1 or stages < 1:
        return  # has been said
    if devices % stages:
        yield (
            f"--mdp-num-partitions is {stages}, and --num-devices is {devices}; expected equally many devices for each "
            f"stage. Choose a multiple of {stages} devices."
        )
        return
    layers = size_of(config, _LAYERS)
    if layers and stages > layers:
        yield f"--mdp-num-partitions is {stages}, more than the model's {layers} layers. Choose at most {layers}."
    heads, each = size_of(config, HEADS), _devices_of_a_stage(options)
    if heads and heads % each:
        fitting = [count * stages for count in range(1, heads + 1) if heads % count == 0]
        yield (
            f"--num-devices is {devices}, which cannot share the model's {heads} heads evenly. Choose one of "
            f"{', '.join(map(str, fitting))}."
        )


def _of_cache(config: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    if not options.get("mxint8_kv_cache") or size_of(config, ("kv_lora_rank",)):
        return  # of latents, the graph shows it
    heads, width = size_of(config, HEADS), size_of(config, _WIDTH)
    size = size_of(config, _HEAD_SIZES) or (width // heads if width and heads else None)
    if size and size % MX_BLOCK:
        yield (
            f"--mxint8-kv-cache needs heads of a multiple of {MX_BLOCK}, and the model's have {size}. Leave it out."
        )


def _of_depth_first(options: Mapping[str, Any]) -> Iterator[str]:
    if "aic_depth_first_mem" in options and not options.get("aic_enable_depth_first"):
        yield "--aic-depth-first-mem is for --aic-enable-depth-first, which is off. Choose both, or leave it out."


def of_blocks(
    config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
) -> Iterator[str]:
    """List the reasons why blocked attention is impossible, one sentence each.

    Args:
        config: See `problems`.
        shape: Compiled shape.
        options: See `problems`.
    """
    mode = options.get("blocking_mode", "")
    if config.get("is_encoder_decoder") and mode not in ("", "h"):
        yield (
            f"--blocking-mode is {mode!r}, and the model has an encoder, whose attention reads no cache; expected 'h' "
            "of such models. Choose that, or leave it out."
        )
    for letters, name in (("kv", "num_kv_blocks"), ("q", "num_q_blocks"), ("h", "head_block_size")):
        cut = letters in mode.replace("qkv", "q kv")
        if cut != (name in options):
            flag = "--" + name.replace("_", "-")
            yield (
                f"--blocking-mode is {mode or None!r}, and {flag} is {options.get(name)!r}; expected both, or neither. "
                f"{'Give' if cut else 'Leave out'} {flag}, or change the mode."
            )
    rows = min([shape.ctx_len, *shape.comp_ctx_lengths_prefill, *shape.comp_ctx_lengths_decode])
    if options.get("num_kv_blocks", 0) > rows:
        yield (
            f"--num-kv-blocks is {options['num_kv_blocks']}, and calls read as few as {rows} rows of the cache; "
            "expected at most as many. Choose fewer."
        )
    heads, shared, size = (
        size_of(config, HEADS),
        kv_heads_of(config),
        options.get("head_block_size"),
    )
    if heads and shared and size and size % (each := heads // shared) and each % size:
        yield (
            f"--head-block-size is {size}, and {each} heads share a key/value head; expected a multiple or a divisor "
            f"of {each}. Change it."
        )
    tokens = shape.prefill_seq_len if shape.prefill_only else 1
    if options.get("num_q_blocks", 0) > tokens:
        yield (
            f"--num-q-blocks is {options['num_q_blocks']}, and some calls have {tokens} token; expected calls of at "
            "least as many. Build with --prefill-only and a longer --prefill-seq-len, or leave q out of "
            "--blocking-mode."
        )


def of_sampler(
    config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
) -> Iterator[str]:
    """List the reasons why sampling on a card is impossible, one sentence each.

    Args:
        config: See `problems`.
        shape: Compiled shape.
        options: See `problems`.
    """
    if not options.get("include_sampler"):
        for name in SAMPLER:
            if name in options:
                yield (
                    f"--{name.replace('_', '-')} is for --include-sampler, which is off. Choose both, or leave it out."
                )
        return
    if shape.num_speculative_tokens:
        yield (
            f"--num-speculative-tokens is {', '.join(map(str, shape.num_speculative_tokens))}, and --include-sampler "
            "returns one token a call, with nothing to check drafts by. Leave one of them out, and --draft-heads too."
        )
    if shape.apart:
        yield (
            "--include-sampler is for one program that runs prompts and decodes: which tokens a text has is handed "
            "over by no name that is known. Leave it out, or --prefill-only and --decode-only."
        )
    vocab, most = size_of(config, ("vocab_size",)), options.get("max_top_k_ids", 0)
    if vocab and most > vocab:
        yield f"--max-top-k-ids is {most}, more than the model's {vocab} tokens. Choose at most {vocab}."


def _of_patterns(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        if not pattern or re.match(r"[/~]|[A-Za-z]:[/\\]", pattern) or "\\" in pattern:
            yield (
                f"--node-precision-info is {pattern!r}, expected operators or names of nodes, such as RMSNorm or "
                "model.layers.0*; the compiler's file is made from them. Begin with * where a name begins with /."
            )
