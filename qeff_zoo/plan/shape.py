# SPDX-License-Identifier: Apache-2.0
"""The sizes of a package: those of a profile, those asked for, and what fits the model's positions."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from qeff_zoo import tasks
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.rope import is_dynamic, rope_scalings
from qeff_zoo.export import architectures
from qeff_zoo.plan.decisions import Chosen
from qeff_zoo.plan.image_sizes import choose_pictures
from qeff_zoo.plan.request import CHOICES, Request
from qeff_zoo.recipe import PatchShape, Recipe, Shape
from qeff_zoo.targets import Target
from qeff_zoo.tasks import compute_contexts

#: Of rope_type dynamic: why a context ends at the model's own positions.
_BEYOND = ", and beyond them its RoPE (rope_type 'dynamic') has another base for every length, unlike cached keys"


def choose_shape(
    checkpoint: Checkpoint, recipe: Recipe, target: Target, request: Request, choices: Chosen
) -> Shape:
    """Start from a profile, take what the user asked for, and fit the rest to the model's positions and pictures."""
    profile = request.profile or next(iter(recipe.shapes))
    if profile not in recipe.shapes:
        choices.problems.append(
            f"--profile is {profile!r}, but recipe {recipe.model_type!r} has {', '.join(recipe.shapes)}. Choose one."
        )
        profile = next(iter(recipe.shapes))
    base = recipe.shapes[profile]
    for item in fields(Shape):
        asked, default = getattr(request, item.name), getattr(base, item.name)
        choices.set(
            item.name, *((default, f"recipe:{profile}") if asked is None else (asked, "user"))
        )
    if request.batch_size is not None and request.full_batch_size is None:
        choices.set("full_batch_size", None, "user: --batch-size")
    pictures = choose_pictures(checkpoint, recipe, target, choices)
    for name in [item.name for item in fields(Shape) if not choices.value[item.name]]:
        del choices.why[name]  # it does not apply, so nobody chose it
    _check_sizes(choices, request)
    if choices.value["max_num_images"] and not base.max_num_images:
        choices.problems.append(
            f"--max-num-images is for models that read pictures by cross-attention, and {recipe.model_type!r} is none: "
            "as many pictures fit into a prompt as the context has room for. Leave it out."
        )
    roles = {tasks.part_of(component).role for component in tasks.components_of(recipe)}
    config = checkpoint.text_config
    positions = _positions(config, recipe)
    few = f"{checkpoint.name!r} has {positions} positions{_BEYOND * is_dynamic(config)}"
    least = min(positions or 0, _stated_positions(config) or 0)  # not grown by a scaling
    if positions is not None and least < tasks.LEAST_POSITIONS:
        choices.problems.append(
            f"{checkpoint.name!r} has {least} positions; expected at least {tasks.LEAST_POSITIONS}. Correct "
            f"`max_position_embeddings` in its config.json."
        )
    of_text = tasks.find(recipe.task).reads == "text" or recipe.asked
    if "encoder" in roles and of_text:  # positions are of tokens
        _fit_lengths(positions, few, choices)
    if "decoder" in roles:
        _fit_context(positions, few, choices)
        _fit_compute_contexts(recipe, choices)
        _fit_speculation(checkpoint, request, choices)
        _check_apart(recipe, choices)
    chosen = {item.name: choices.value[item.name] for item in fields(Shape)}
    return PatchShape(**chosen, **pictures) if pictures else replace(base, **chosen)


def _check_sizes(choices: Chosen, request: Request) -> None:
    for name in ("prefill_seq_len", "ctx_len", "batch_size", "full_batch_size", "max_num_images"):
        asked = getattr(request, name)
        if asked is not None and asked < 1:
            choices.problems.append(f"{CHOICES[name].flag} is {asked}, expected at least 1.")
    if request.seq_lens is not None and (not request.seq_lens or min(request.seq_lens) < 1):
        choices.problems.append(
            f"--seq-lens is {list(request.seq_lens)}, expected lengths of at least 1."
        )
    if request.seq_lens:
        choices.set("seq_lens", tuple(sorted(set(request.seq_lens))), "user")
    if request.batch_size is not None and request.full_batch_size is not None:
        choices.problems.append(
            f"--batch-size {request.batch_size} and --full-batch-size {request.full_batch_size} exclude each other: a "
            f"continuous-batching package takes its batch from its slots. Give one of them."
        )


def _fit_lengths(positions: int | None, few: str, choices: Chosen) -> None:
    """Refuse an encoder's lengths beyond the model's positions where the user set them, else leave them out."""
    lengths = choices.value["seq_lens"]
    if positions is None or max(lengths, default=0) <= positions:
        return
    if choices.by_user("seq_lens"):
        choices.problems.append(f"--seq-lens has {max(lengths)}, but {few}. Choose less.")
    fitting = tuple(length for length in lengths if length <= positions) or (positions,)
    choices.set("seq_lens", fitting, f"derived: {positions} positions")


def _fit_context(positions: int | None, few: str, choices: Chosen) -> None:
    """Refuse a context beyond the model's positions where the user set it, else shorten it."""
    ctx_len, prefill = choices.value["ctx_len"], choices.value["prefill_seq_len"]
    if positions is not None and ctx_len > positions:
        if choices.by_user("ctx_len"):
            choices.problems.append(
                f"--ctx-len is {ctx_len}, but {few}. Choose at most {positions}."
            )
        ctx_len = positions
        choices.set("ctx_len", ctx_len, f"derived: {positions} positions")
    if prefill > ctx_len:
        if choices.by_user("prefill_seq_len"):
            choices.problems.append(
                f"--prefill-seq-len is {prefill}, more than the context of {ctx_len}. Choose at most {ctx_len}."
            )
        choices.set("prefill_seq_len", ctx_len, "derived: fits ctx_len")


def _fit_compute_contexts(recipe: Recipe, choices: Chosen) -> None:
    """Refuse compute contexts that do not fit where the user set them; drop a recipe's that do not."""
    ctx_len, prefill = choices.value["ctx_len"], choices.value["prefill_seq_len"]
    leasts = {"comp_ctx_lengths_prefill": max(2, prefill), "comp_ctx_lengths_decode": 2}
    given = {name: tuple(choices.value[name]) for name in leasts}
    for name, least in leasts.items() if any(given.values()) else ():
        if choices.by_user(name):
            flag = CHOICES[name].flag
            choices.problems += compute_contexts.misfits(flag, given[name], least, ctx_len)
            if not recipe.retains_context:
                choices.problems.append(
                    f"{flag} is for a cache that grows with the context, but {recipe.model_type!r} keeps windows and "
                    f"recurrent states only, which it would not change. Leave it out."
                )
        fitting = compute_contexts.fit(given[name], least, ctx_len)
        choices.set(name, fitting, choices.why.get(name, "derived: fits ctx_len"))


def _fit_speculation(checkpoint: Checkpoint, request: Request, choices: Chosen) -> None:
    """Refuse numbers of drafted tokens that no decode call can check; with heads, let one check those of all."""
    if checkpoint.speculator:
        drafts = checkpoint.speculator
        choices.set("speculator", request.speculator, "user")
        if not choices.value["num_speculative_tokens"]:
            by = (
                f"derived: {drafts.count} heads"
                if drafts.role == HEADS
                else f"derived: {drafts.role}"
            )
            choices.set("num_speculative_tokens", (drafts.count,), by)
    drafted, most = choices.value["num_speculative_tokens"], choices.value["ctx_len"] - 2
    if not drafted:
        return
    if not 1 <= min(drafted) <= max(drafted) <= most:
        choices.problems.append(
            f"--num-speculative-tokens is {list(drafted)}; expected 1 to {most}: a call checks them behind the newest "
            f"token, in a context of {choices.value['ctx_len']}. Choose such numbers."
        )
    choices.set(
        "num_speculative_tokens",
        tuple(sorted({*drafted})),
        choices.why["num_speculative_tokens"],
    )


def _check_apart(recipe: Recipe, choices: Chosen) -> None:
    """Refuse a package for prompts alone, or for answers alone, that is to do what the other does."""
    others = {
        "prefill_only": ("num_speculative_tokens", "comp_ctx_lengths_decode"),
        "decode_only": ("prefill_seq_len", "comp_ctx_lengths_prefill"),
    }
    if all(choices.value[name] for name in others):
        choices.problems.append(
            "--prefill-only and --decode-only exclude each other: without them a package does both. Give one, or none."
        )
    for name, foreign in others.items():
        if not choices.value[name]:
            continue
        before = [
            part for one in tasks.components_of(recipe) for part in tasks.find(one.task).before
        ]
        if any(part.role not in ("vision", "tiles") for part in before) or (
            recipe.images and recipe.images.by_cross_attention
        ):
            choices.problems.append(
                f"{CHOICES[name].flag} is for models that read text, and pictures among it: what came of sounds and "
                "other texts, and pictures that are read by cross-attention, are not handed over. Leave it out."
            )
        for one in foreign:
            if choices.value[one] not in (0, 1, ()) and choices.by_user(one):
                choices.problems.append(
                    f"{CHOICES[one].flag} is about calls that a package of {CHOICES[name].flag} has not. Leave one of "
                    "them out."
                )


def _stated_positions(config: Mapping[str, Any]) -> int | None:
    """Return a config's number of positions, or the default of its class; None if any number of tokens fits."""
    stated = tasks.positions_of(config)
    return _default_positions(config) if stated is None else stated


def _default_positions(config: Mapping[str, Any]) -> int | None:
    """Return the positions of a class whose config leaves their number out; None for RoPE, which rotates any."""
    from transformers import CONFIG_MAPPING

    model_type = config.get("model_type", "")  # in older files a part has none
    architectures.register(model_type)
    if model_type not in CONFIG_MAPPING:
        return None
    kind = CONFIG_MAPPING[model_type]
    if hasattr(kind, "rope_parameters") and not is_dynamic(config):
        return None
    return tasks.positions_of({name: getattr(kind, name, None) for name in tasks.POSITIONS})


def _positions(config: Mapping[str, Any], recipe: Recipe) -> int | None:
    """Return the number of positions a model was made for, with the growth that its RoPE scaling states."""
    positions = _stated_positions(config)
    if positions is None:
        return None
    for scaling in rope_scalings(config) if not is_dynamic(config) else ():
        original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
        if original and factor:
            positions = max(positions, int(original * factor))
    counted = recipe.halves.after_padding if recipe.halves else ()
    behind = recipe.positions_after_padding or config.get("model_type") in counted
    learned = config.get("position_embedding_type") != "rotary"  # RoPE has no table of them
    return positions - (int(config.get("pad_token_id", 1)) + 1 if behind and learned else 0)
