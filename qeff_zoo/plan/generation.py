# SPDX-License-Identifier: Apache-2.0
"""Generation settings of a checkpoint in a plan: refused values, and settings that are not computed."""

from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo import contract
from qeff_zoo.checkpoint import generation_settings as settings
from qeff_zoo.checkpoint.generation_settings import GENERATION_CONFIG, GenerationSettings
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.recipe import Recipe


def check_generation(checkpoint: Checkpoint, recipe: Recipe) -> Decisions:
    """Refuse settings that transformers' `generate` refuses; the fact `generation` has those of the checkpoint."""
    decisions = Decisions()
    if not contract.find(recipe.task).generates:
        return decisions.provide(generation={})
    values, source = checkpoint.generation, settings.source_of(checkpoint.generation_file)
    vocab_size = checkpoint.text_config.get("vocab_size")
    for problem in settings.problems(values, vocab_size if isinstance(vocab_size, int) else None):
        decisions.refuse(f"{checkpoint.name!r}, {source}: {problem}")
    return decisions.provide(generation=values)


def shown_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a checkpoint that change `generate`, for people."""
    missing = settings.uncomputed(values)
    computed = {
        name: settings.shown(value)
        for name, value in settings.applied(values).items()
        if name not in ("bos_token_id",)
    }
    return computed | {
        name: f"{settings.shown(values[name])} (not computed: {effect})"
        for name, effect in missing.items()
    }


def generation_warnings(
    checkpoint: Checkpoint, recipe: Recipe, values: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return warnings about settings whose effect differs from that in `generate`.

    Args:
        checkpoint: Opened checkpoint.
        recipe: Recipe of the chosen task.
        values: The fact `generation`.
        options: Options of the target.
    """
    return tuple(_warnings(checkpoint, recipe, values, options)) if values else ()


def _warnings(
    checkpoint: Checkpoint, recipe: Recipe, values: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[str]:
    source = settings.source_of(checkpoint.generation_file)
    missing = settings.uncomputed(values)
    if missing:
        named = ", ".join(
            f"{name} {settings.shown(values[name])} ({effect})" for name, effect in missing.items()
        )
        yield (
            f"{source} of {checkpoint.name!r} sets {named}, which packages do not compute: outputs are those of "
            "transformers' `generate` without it."
        )
    file = checkpoint.generation_file
    if "eos_token_id" in values and file is not None and file.get("eos_token_id") is None:
        yield (
            f"{GENERATION_CONFIG} of {checkpoint.name!r} sets no eos_token_id, so transformers' `generate` goes on to "
            f"the maximum length. The package ends outputs at {values['eos_token_id']!r}, which config.json sets. Set "
            '"eos_token_id": [] to go on.'
        )
    if options.get("include_sampler"):
        on_host = GenerationSettings.of(values).on_host(samples=bool(values.get("do_sample")))
        if on_host:
            yield (
                f"{source} of {checkpoint.name!r} sets {', '.join(on_host)}, which a sampler on the device cannot "
                "apply: requests are refused unless they ignore that file (--generation-config none). Without "
                "--include-sampler they are applied."
            )
    for text in contract.find(recipe.task).generation_warnings(values, recipe):
        yield f"{checkpoint.name!r}: {text}"
