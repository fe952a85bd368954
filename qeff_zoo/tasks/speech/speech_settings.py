# SPDX-License-Identifier: Apache-2.0
"""Settings of speech models in generation_config.json besides those of `generate`: values, errors and warnings.

Whisper's `generate` has settings of its own: tokens of languages and tasks, and defaults of its arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo.runtime.text.languages import code_of

#: Tokens of a window of Whisper without `max_length`, as in transformers.
LENGTH = 20
#: Settings of Whisper's `generate`, and the options of a transcription that they are.
_USUAL = {
    "language": "language",
    "task": "task",
    "return_timestamps": "timestamps",
    "condition_on_prev_tokens": "condition_on_previous",
}
#: Settings of `generate` without effect on a package of speech.
_UNCOMPUTED = ("stop_strings", "do_sample")
#: Thresholds by which Whisper's `generate` retries and drops windows.
_THRESHOLDS = ("logprob_threshold", "compression_ratio_threshold", "no_speech_threshold")


def usual_options(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a transcription that a checkpoint sets, by field of `TranscriptionOptions`."""
    options = {field: generation.get(name) for name, field in _USUAL.items()}
    # Long recordings always have timestamps.
    return {field: value for field, value in options.items() if value not in (None, False)}


def forced_tokens(config: Mapping[str, Any], generation: Mapping[str, Any]) -> list[int | None]:
    """Return the first tokens of an older Whisper's outputs, by position: None for a detected language, or a gap.

    Args:
        config: Content of config.json.
        generation: Generation settings, see `effective`.
    """
    ids = dict(_forced_ids(config, generation))
    return [ids.get(place) for place in range(1, max(ids) + 1)] if 1 in ids else []


def _forced_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> list[Any]:
    ids = generation.get("forced_decoder_ids")
    ids = config.get("forced_decoder_ids") if ids is None else ids
    pairs = ids if isinstance(ids, list) else []
    return [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]


def speech_problems(
    config: Mapping[str, Any], generation: Mapping[str, Any], windows: bool
) -> Iterator[str]:
    """Yield errors in the settings of a speech model, one sentence each.

    Args:
        config: Content of config.json.
        generation: Generation settings, see `effective`.
        windows: Whether the model takes windows, as Whisper does.
    """
    start = generation.get("decoder_start_token_id", generation.get("bos_token_id"))
    ends = generation.get("eos_token_id")
    if start is None or ends is None or (isinstance(ends, list) and len(ends) != 1):
        yield (
            f"decoder_start_token_id is {start!r} and eos_token_id {ends!r}; expected a token each, in "
            "generation_config.json. Add them to the checkpoint, and build again."
        )
    if not windows:
        return
    if None in forced_tokens(config, generation)[1:]:
        yield (
            f"forced_decoder_ids is {_forced_ids(config, generation)!r}; expected tokens of all positions from 1 on. "
            "Correct it in generation_config.json."
        )
    yield from _unknown_names(generation)


def _unknown_names(generation: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors about the language and the task that a checkpoint sets."""
    language, task = generation.get("language"), generation.get("task")
    codes = {name.strip("<|>") for name in generation.get("lang_to_id") or {}}
    if language is not None and code_of(str(language)) not in codes:
        yield (
            f"language is {language!r} in generation_config.json; expected a language of its lang_to_id"
            f"{'' if codes else ', which it lacks'}. Correct it, or remove the language."
        )
    tasks = sorted(generation.get("task_to_id") or {})
    if task is not None and task not in tasks:
        yield (
            f"task is {task!r} in generation_config.json; expected a task of its task_to_id"
            f"{'' if tasks else ', which it lacks'}. Correct it, or remove the task."
        )


def speech_warnings(generation: Mapping[str, Any], windows: bool) -> Iterator[str]:
    """Yield settings whose effect differs from that in `generate`, one sentence each.

    Args:
        generation: Generation settings, see `effective`.
        windows: Whether the model takes windows, as Whisper does.
    """
    names = (*_UNCOMPUTED, *(_THRESHOLDS if windows else ()))
    if present := [name for name in names if generation.get(name)]:
        yield (
            f"The checkpoint sets {', '.join(present)}, which packages of speech do not apply by themselves: options "
            "of a transcription replace them."
        )
    if windows and generation.get("max_length") is generation.get("max_new_tokens") is None:
        yield (
            f"The checkpoint sets no max_length: a window has at most {LENGTH} tokens, as in transformers' `generate`. "
            "Set it in generation_config.json, or generation_len (--generation-len) of a transcription."
        )
