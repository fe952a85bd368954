# SPDX-License-Identifier: Apache-2.0
"""Sizes of a package: those of a profile, those requested, and the limits of the model's positions."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from qeff_zoo import contract
from qeff_zoo.checkpoint.config import LEAST_POSITIONS, POSITIONS, positions_of
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.rope import is_dynamic, rope_scalings
from qeff_zoo.contract import compute_contexts
from qeff_zoo.export import architectures
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.image_sizes import choose_image_sizes
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import PatchShape, Recipe, Shape
from qeff_zoo.targets.base import Target, Tuned

#: With rope_type dynamic: the reason why a context ends at the model's own positions.
_BEYOND = ", and beyond them its RoPE (rope_type 'dynamic') has another base for every length, unlike cached keys"


def decide_shape(
    checkpoint: Checkpoint,
    request: Request,
    recipe: Recipe,
    target: Target,
    profile: str | None,
    tuned: Tuned | None,
) -> Decisions:
    """Start from a profile, apply the requested sizes, and limit them to the model's positions and images."""
    decisions = Decisions()
    profile = profile or next(iter(recipe.shapes))
    if profile not in recipe.shapes:
        decisions.refuse(
            f"--profile is {profile!r}, but recipe {recipe.model_type!r} has {', '.join(recipe.shapes)}. Choose one."
        )
        profile = next(iter(recipe.shapes))
    base = recipe.shapes[profile]
    for item in fields(Shape):
        requested, default = getattr(request, item.name), getattr(base, item.name)
        decisions.set(
            item.name,
            *((default, f"recipe:{profile}") if requested is None else (requested, "user")),
        )
    if tuned and request.batch_size is None:
        decisions.set("batch_size", tuned.batch_size, tuned.by)
    if request.batch_size is not None and request.full_batch_size is None:
        decisions.set("full_batch_size", None, "user: --batch-size")
    patches = choose_image_sizes(checkpoint, recipe, target, decisions)
    for name in [item.name for item in fields(Shape) if not decisions.value[item.name]]:
        del decisions.why[name]  # no choice, since it does not apply
    _check_sizes(decisions, request)
    if decisions.value["max_num_images"] and not base.max_num_images:
        decisions.refuse(
            f"--max-num-images is for models that read images by cross-attention, and {recipe.model_type!r} is none: "
            "as many images fit into a prompt as the context has room for. Leave it out."
        )
    _fit(checkpoint, request, recipe, decisions)
    chosen = {item.name: decisions.value[item.name] for item in fields(Shape)}
    shape = PatchShape(**chosen, **patches) if patches else replace(base, **chosen)
    return decisions.provide(shape=shape)


def _fit(checkpoint: Checkpoint, request: Request, recipe: Recipe, decisions: Decisions) -> None:
    """Limit the sizes to the model's positions and to each other."""
    roles = {contract.part_of(component).role for component in contract.components_of(recipe)}
    config = checkpoint.text_config
    positions = _positions(config, recipe)
    few = f"{checkpoint.name!r} has {positions} positions{_BEYOND * is_dynamic(config)}"
    least = min(positions or 0, _stated_positions(config) or 0)  # not grown by a scaling
    if positions is not None and least < LEAST_POSITIONS:
        decisions.refuse(
            f"{checkpoint.name!r} has {least} positions; expected at least {LEAST_POSITIONS}. Correct "
            f"`max_position_embeddings` in its config.json."
        )
    of_text = contract.find(recipe.task).reads == "text" or recipe.image_prompt
    if "encoder" in roles and of_text:  # positions are of tokens
        _fit_lengths(positions, few, decisions)
    if "decoder" in roles:
        _fit_context(positions, few, decisions)
        _fit_compute_contexts(recipe, decisions)
        _fit_speculation(checkpoint, request, decisions)
        _check_apart(recipe, decisions)


def _check_sizes(decisions: Decisions, request: Request) -> None:
    for name in ("prefill_seq_len", "ctx_len", "batch_size", "full_batch_size", "max_num_images"):
        requested = getattr(request, name)
        if requested is not None and requested < 1:
            decisions.refuse(f"{OPTIONS[name].flag} is {requested}, expected at least 1.")
    if request.seq_lens is not None and (not request.seq_lens or min(request.seq_lens) < 1):
        decisions.refuse(f"--seq-lens is {list(request.seq_lens)}, expected lengths of at least 1.")
    if request.seq_lens:
        decisions.set("seq_lens", tuple(sorted(set(request.seq_lens))), "user")
    if request.batch_size is not None and request.full_batch_size is not None:
        decisions.refuse(
            f"--batch-size {request.batch_size} and --full-batch-size {request.full_batch_size} exclude each other: a "
            f"continuous-batching package takes its batch from its slots. Give one of them."
        )


def _fit_lengths(positions: int | None, few: str, decisions: Decisions) -> None:
    """Refuse requested encoder lengths beyond the model's positions; shorten those of a profile to them."""
    lengths = decisions.value["seq_lens"]
    if positions is None or max(lengths, default=0) <= positions:
        return
    if decisions.by_user("seq_lens"):
        decisions.refuse(f"--seq-lens has {max(lengths)}, but {few}. Choose less.")
    fitting = {min(length, positions) for length in lengths}
    decisions.set("seq_lens", tuple(sorted(fitting)), f"derived: {positions} positions")


def _fit_context(positions: int | None, few: str, decisions: Decisions) -> None:
    """Refuse a requested context beyond the model's positions; shorten a default one."""
    ctx_len, prefill = decisions.value["ctx_len"], decisions.value["prefill_seq_len"]
    if positions is not None and ctx_len > positions:
        if decisions.by_user("ctx_len"):
            decisions.refuse(f"--ctx-len is {ctx_len}, but {few}. Choose at most {positions}.")
        ctx_len = positions
        decisions.set("ctx_len", ctx_len, f"derived: {positions} positions")
    if prefill > ctx_len:
        if decisions.by_user("prefill_seq_len"):
            decisions.refuse(
                f"--prefill-seq-len is {prefill}, more than the context of {ctx_len}. Choose at most {ctx_len}."
            )
        decisions.set("prefill_seq_len", ctx_len, "derived: fits ctx_len")


def _fit_compute_contexts(recipe: Recipe, decisions: Decisions) -> None:
    """Refuse requested compute contexts that do not fit; drop those of a recipe."""
    ctx_len, prefill = decisions.value["ctx_len"], decisions.value["prefill_seq_len"]
    leasts = {"comp_ctx_lengths_prefill": max(2, prefill), "comp_ctx_lengths_decode": 2}
    given = {name: tuple(decisions.value[name]) for name in leasts}
    for name, least in leasts.items() if any(given.values()) else ():
        if decisions.by_user(name):
            flag = OPTIONS[name].flag
            decisions.problems += compute_contexts.misfits(flag, given[name], least, ctx_len)
            if not recipe.retains_context:
                decisions.refuse(
                    f"{flag} is for a cache that grows with the context, but {recipe.model_type!r} keeps windows and "
                    f"recurrent states only, which it would not change. Leave it out."
                )
        fitting = compute_contexts.fit(given[name], least, ctx_len)
        decisions.set(name, fitting, decisions.why.get(name, "derived: fits ctx_len"))


def _fit_speculation(checkpoint: Checkpoint, request: Request, decisions: Decisions) -> None:
    """Refuse numbers of draft tokens that no decode call can verify; draft heads get one call that verifies all."""
    if checkpoint.speculator:
        drafts = checkpoint.speculator
        decisions.set("draft_heads", request.draft_heads, "user")
        if not decisions.value["num_speculative_tokens"]:
            by = (
                f"derived: {drafts.count} heads"
                if drafts.role == HEADS
                else f"derived: {drafts.role}"
            )
            decisions.set("num_speculative_tokens", (drafts.count,), by)
    drafted, most = decisions.value["num_speculative_tokens"], decisions.value["ctx_len"] - 2
    if not drafted:
        return
    if not 1 <= min(drafted) <= max(drafted) <= most:
        decisions.refuse(
            f"--num-speculative-tokens is {list(drafted)}; expected 1 to {most}: a call checks them behind the newest "
            f"token, in a context of {decisions.value['ctx_len']}. Choose such numbers."
        )
    decisions.set(
        "num_speculative_tokens",
        tuple(sorted({*drafted})),
        decisions.why["num_speculative_tokens"],
    )


def _check_apart(recipe: Recipe, decisions: Decisions) -> None:
    """Refuse a prefill-only or decode-only package with options of the other phase."""
    others = {
        "prefill_only": ("num_speculative_tokens", "comp_ctx_lengths_decode"),
        "decode_only": ("prefill_seq_len", "comp_ctx_lengths_prefill"),
    }
    if all(decisions.value[name] for name in others):
        decisions.refuse(
            "--prefill-only and --decode-only exclude each other: without them a package does both. Give one, or none."
        )
    for name, foreign in others.items():
        if not decisions.value[name]:
            continue
        before = [
            part
            for one in contract.components_of(recipe)
            for part in contract.find(one.task).before
        ]
        if any(part.role not in ("vision", "tiles") for part in before) or (
            recipe.images and recipe.images.by_cross_attention
        ):
            decisions.refuse(
                f"{OPTIONS[name].flag} is for models that read text, and images among it: encoded audio and "
                "other texts, and images that are read by cross-attention, are not handed over. Leave it out."
            )
        for one in foreign:
            if decisions.value[one] not in (0, 1, ()) and decisions.by_user(one):
                decisions.refuse(
                    f"{OPTIONS[one].flag} is about calls that a package of {OPTIONS[name].flag} has not. Leave one of "
                    "them out."
                )


def _stated_positions(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions that a config sets, or the default of its class; None if unlimited."""
    stated = positions_of(config)
    return _default_positions(config) if stated is None else stated


def _default_positions(config: Mapping[str, Any]) -> int | None:
    """Return the default positions of a config's class; None for RoPE, which has no limit."""
    from transformers import CONFIG_MAPPING

    model_type = config.get("model_type", "")  # in older files a part has none
    architectures.register(model_type)
    if model_type not in CONFIG_MAPPING:
        return None
    kind = CONFIG_MAPPING[model_type]
    if hasattr(kind, "rope_parameters") and not is_dynamic(config):
        return None
    return positions_of({name: getattr(kind, name, None) for name in POSITIONS})


def _positions(config: Mapping[str, Any], recipe: Recipe) -> int | None:
    """Return the number of trained positions of a model, extended by the RoPE scaling of its config."""
    positions = _stated_positions(config)
    if positions is None:
        return None
    for scaling in rope_scalings(config) if not is_dynamic(config) else ():
        original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
        if original and factor:
            positions = max(positions, int(original * factor))
    counted = recipe.submodels.after_padding if recipe.submodels else ()
    behind = recipe.positions_after_padding or config.get("model_type") in counted
    learned = config.get("position_embedding_type") != "rotary"  # RoPE has no table of them
    return positions - (int(config.get("pad_token_id", 1)) + 1 if behind and learned else 0)
