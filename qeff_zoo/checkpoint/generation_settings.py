# SPDX-License-Identifier: Apache-2.0
"""Settings of transformers' `generate` in a checkpoint's files: values, errors, and settings that are not computed.

Every field of transformers' `GenerationConfig` is in `RULES`, `UNCOMPUTED` or `WITHOUT_EFFECT`. A value without effect
in `generate`, such as `top_k` without `do_sample`, has none here; a value that `generate` refuses is an error.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json

GENERATION_CONFIG = "generation_config.json"
#: Settings that determine where an output begins and ends, with and without the others.
STRUCTURE = frozenset(
    {"eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"}
)
#: `top_k` of transformers' sampling, if a checkpoint samples and sets none.
TOP_K = 50
#: Settings that change logits, besides those that are sampling parameters.
_LOGITS = (
    *("forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens", "top_h"),
    *("typical_p", "epsilon_cutoff", "eta_cutoff", "encoder_repetition_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "sequence_bias"),
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
    "remove_invalid_values",
)
#: Arguments of `generate` that make a file invalid.
_ARGUMENTS = frozenset(
    {
        *("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "synced_gpus"),
        *("assistant_model", "streamer", "negative_prompt_ids", "negative_prompt_attention_mask"),
    }
)
#: Settings of memory, speed, speculation (the tokens are the same) and returned values.
WITHOUT_EFFECT = frozenset(
    {
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
        *("prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config"),
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "use_mtp"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "speculation_type"),
        *("assistant_ensemble_weight", "output_attentions", "output_hidden_states"),
        *("output_scores", "output_logits", "return_dict_in_generate", "pad_token_id"),
        *("renormalize_logits", "transformers_version", "_from_model_config"),
    }
)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_token(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_bias(value: Any) -> bool:
    """Return whether a value is a sequence of tokens with its bias."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and _are(_is_token)(value[0])
        and isinstance(value[1], float)
    )


@dataclass(frozen=True)
class _Rule:
    """Rule of one setting.

    Args:
        expected: Description of the allowed values.
        allows: Whether `generate` accepts a value.
        applies: Whether a value has an effect; None is always without.
        read: Conversion to the field of `GenerationSettings`.
        samples: Whether it applies to sampling alone.
        keeps: Whether a value is kept for requests that sample, if the checkpoint does not; None for `allows`.
    """

    expected: str
    allows: Callable[[Any], bool]
    applies: Callable[[Any], bool] = lambda _: True
    read: Callable[[Any], Any] = lambda value: value
    samples: bool = False
    keeps: Callable[[Any], bool] | None = None


def _above(least: float) -> Callable[[Any], bool]:
    return lambda value: not _is_number(value) or value > least


def _within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high


_PENALTY = _Rule(
    "a float above 0, such as 1.1",
    lambda value: isinstance(value, float) and value > 0,
    lambda value: value != 1,
)
_COUNT = _Rule("an integer", _is_int, _above(0))
_TOKENS = _Rule("a list of tokens", _are(_is_int), read=tuple)
_CUTOFF = _Rule(
    "a number", _is_number, lambda value: not _is_number(value) or 0 < value < 1, samples=True
)
#: Computed settings by their names in transformers.
RULES: Mapping[str, _Rule] = {
    "eos_token_id": _Rule(
        "a token or a list of tokens", lambda value: _are(_is_int)([*_listed(value)]), read=_listed
    ),
    "decoder_start_token_id": _Rule(
        "a token", lambda value: _are(_is_token)([*_listed(value)]) and len(_listed(value)) == 1,
        read=lambda value: _listed(value)[0],
    ),
    "bos_token_id": _Rule("a token", _is_int),
    "forced_bos_token_id": _Rule("a token", _is_token),
    "forced_eos_token_id": _Rule(
        "a token or a list of tokens",
        lambda value: bool(_listed(value)) and _are(_is_token)([*_listed(value)]),
        read=_listed,
    ),
    "max_length": _Rule("an integer", _is_int),
    "max_new_tokens": _Rule("an integer above 0", lambda value: _is_int(value) and value > 0),
    "min_length": _COUNT,
    "min_new_tokens": _Rule("an integer", _is_int),
    "stop_strings": _Rule(
        "a text or a list of texts",
        lambda value: bool(_listed(value))
        and all(isinstance(one, str) and one for one in _listed(value)),
        read=_listed,
    ),
    "do_sample": _Rule("true or false", lambda _: True, bool, bool),
    "temperature": _Rule(
        "a float above 0, such as 0.7",
        lambda value: isinstance(value, float) and value > 0,
        lambda value: value != 1,
        samples=True,
        keeps=lambda value: _is_number(value) and value >= 0,
    ),
    "top_h": _Rule(
        "a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1,
        samples=True,
    ),
    "top_k": _Rule(
        "an integer above 0, or 0 for all tokens", lambda value: _is_int(value) and value >= 0,
        samples=True,
    ),
    "top_p": _Rule(
        "a number of 0 to 1", _within(0, 1), lambda value: not _is_number(value) or value < 1,
        samples=True,
    ),
    "min_p": _Rule("a number of 0 to 1", _within(0, 1), samples=True),
    "typical_p": _Rule(
        "a number above 0, below 1, or 1 for all tokens",
        lambda value: _is_number(value) and 0 < value < 1,
        lambda value: not _is_number(value) or value < 1,
        samples=True,
    ),
    "epsilon_cutoff": _CUTOFF,
    "eta_cutoff": _CUTOFF,
    "repetition_penalty": _PENALTY,
    "encoder_repetition_penalty": _PENALTY,
    "no_repeat_ngram_size": _COUNT,
    "encoder_no_repeat_ngram_size": _COUNT,
    "bad_words_ids": _Rule(
        "a list of at least one list of tokens",
        lambda value: bool(value) and _are(_are(_is_token))(value),
        read=lambda value: tuple(map(tuple, value)),
    ),
    "sequence_bias": _Rule(
        "a list of pairs, such as [[[15, 3], -2.0]]: tokens and a float",
        lambda value: bool(value) and _are(_is_bias)(value),
        read=lambda value: tuple({tuple(item[0]): item[1] for item in value}.items()),
    ),
    "exponential_decay_length_penalty": _Rule(
        "two numbers: a start and a factor",
        lambda value: _are(_is_number)(value) and len(value) == 2,
        read=tuple,
    ),
    "suppress_tokens": _TOKENS,
    "begin_suppress_tokens": _TOKENS,
    "remove_invalid_values": _Rule(
        "true or false", lambda _: True, lambda value: value is True, bool
    ),
}  # fmt: skip

#: Settings that change `generate`, and that are not computed: the condition, and the effect that is missing.
UNCOMPUTED: Mapping[str, tuple[Callable[[Any, Mapping[str, Any]], bool], str]] = {
    "num_beams": (lambda value, _: _is_number(value) and value > 1, "beam search"),
    "num_beam_groups": (lambda value, _: _is_number(value) and value > 1, "diverse beam search"),
    "diversity_penalty": (lambda value, _: bool(value), "diverse beam search"),
    "length_penalty": (
        lambda value, others: value != 1 and (others.get("num_beams") or 1) > 1,
        "a penalty for the length of beams",
    ),
    "early_stopping": (
        lambda value, others: value is not False and (others.get("num_beams") or 1) > 1,
        "the end of beam search",
    ),
    "constraints": (lambda _, __: True, "constrained beam search"),
    "force_words_ids": (lambda _, __: True, "constrained beam search"),
    "penalty_alpha": (
        lambda value, others: (
            bool(value)
            and not others.get("do_sample")
            and (TOP_K if others.get("top_k") is None else others["top_k"]) > 1
        ),
        "contrastive search",
    ),
    "dola_layers": (lambda _, __: True, "decoding by contrasting layers"),
    "guidance_scale": (lambda value, _: value != 1, "classifier-free guidance"),
    "watermarking_config": (lambda _, __: True, "a watermark"),
    "token_healing": (lambda value, _: bool(value), "healing of the prompt's last token"),
    "max_time": (lambda _, __: True, "a limit of seconds"),
    "num_return_sequences": (
        lambda value, _: _is_number(value) and value > 1,
        "several outputs of one prompt",
    ),
}
#: Every field of transformers' `GenerationConfig`.
FIELDS = RULES.keys() | UNCOMPUTED.keys() | WITHOUT_EFFECT


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Computed settings of `generate`, by their names in transformers; each default is without effect."""

    eos_token_id: tuple[int, ...] = ()
    decoder_start_token_id: int | None = None
    bos_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_h: float | None = None
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    exponential_decay_length_penalty: tuple[float, float] | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    remove_invalid_values: bool = False

    @classmethod
    def of(
        cls, values: Mapping[str, Any], names: Collection[str] = RULES.keys()
    ) -> "GenerationSettings":
        """Return settings of given values.

        Args:
            values: Values by transformers' names, such as those of `effective`; others are ignored.
            names: Names of the settings to read.

        Raises:
            GenerationError: If `generate` would refuse a value; the message lists all of them.
        """
        chosen = {name: value for name, value in values.items() if name in names}
        if faults := [*problems(chosen)]:
            raise GenerationError("\n".join(faults))
        return cls(
            **{
                name: RULES[name].read(value)
                for name, value in chosen.items()
                if value is not None and RULES[name].applies(value) and _keeps(name, value)
            }
        )

    def updated(self, **values: Any) -> "GenerationSettings":
        """Return these settings with others in place of some; None is without effect.

        Args:
            **values: Values by transformers' names, as in the file.

        Raises:
            GenerationError: If a setting is unknown, or `generate` would refuse its value.
        """
        if unknown := sorted(values.keys() - RULES.keys()):
            raise GenerationError(
                f"There is no generation setting {unknown[0]!r}; expected some of {', '.join(sorted(RULES))}."
            )
        sampled = {"do_sample": values.get("do_sample", self.do_sample)}
        changed = GenerationSettings.of({**values, **sampled})
        names = {field.name for field in fields(self)} & values.keys()
        return replace(self, **{name: getattr(changed, name) for name in names})

    @property
    def sampling(self) -> dict[str, Any]:
        """Values of fields of `Sampling` that the settings determine, by name; without `temperature` if greedy."""
        values = {
            name: value
            for name in ("top_k", "top_p", "min_p")
            if (value := getattr(self, name)) != getattr(_NONE, name)
        }
        if self.do_sample:
            values = {"temperature": self.temperature, "top_k": TOP_K, **values}
        if self.repetition_penalty != 1:
            values["repetition_penalty"] = self.repetition_penalty
        return values

    def on_host(self, *, samples: bool) -> list[str]:
        """Return the settings with an effect that change logits, and that no sampler of a device applies.

        Args:
            samples: Whether tokens are sampled, and not the most likely ones.
        """
        return [
            name
            for name in _LOGITS
            if getattr(self, name) != getattr(_NONE, name) and (samples or not RULES[name].samples)
        ]

    def limit(self, begun: int) -> int | None:
        """Return the maximum number of tokens after `begun` ones; None for the rest of the context.

        Raises:
            GenerationError: If the beginning exceeds `max_length`.
        """
        if self.max_new_tokens is not None or self.max_length is None:
            return self.max_new_tokens
        if begun >= self.max_length:
            raise GenerationError(
                f"The input has {begun:,} tokens, and the package's max_length is {self.max_length:,}, input included; "
                "expected fewer. Set the number of new tokens (generation_len, --generation-len, max_tokens)."
            )
        return self.max_length - begun

    def least(self, begun: int) -> int:
        """Return the number of tokens after `begun` ones before which no EOS token is generated."""
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return self.min_length - begun


_NONE = GenerationSettings()


def _keeps(name: str, value: Any) -> bool:
    """Return whether a value is kept; one out of range is without effect, since nothing samples."""
    rule = RULES[name]
    return (rule.keeps or rule.allows)(value)


def source_of(generation: Mapping[str, Any] | None) -> str:
    """Return the name of the file with the settings.

    Args:
        generation: Content of generation_config.json; None without the file.
    """
    return "config.json" if generation is None else GENERATION_CONFIG


def effective(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the values that transformers' `from_pretrained` gives a model, without null.

    Args:
        config: Content of config.json, which has the settings of older checkpoints.
        generation: Content of generation_config.json; None without the file.

    Returns:
        Values by name. EOS and start token that generation_config.json lacks are those of config.json.
    """
    parts = (config.get(name) for name in ("decoder", "generator", "text_config"))
    inner = next((part for part in parts if isinstance(part, Mapping)), {})
    known = {
        name: value
        for part in (model_config(config), inner, config)
        for name, value in part.items()
        if value is not None and name in FIELDS
    }
    if config.get("force_bos_token_to_be_generated"):
        known["forced_bos_token_id"] = known.get("bos_token_id")
    if generation is None:
        return known
    values = {name: value for name, value in generation.items() if value is not None}
    fallback = {"eos_token_id"}
    if "bos_token_id" not in values:
        fallback |= {"decoder_start_token_id", "bos_token_id"}
    return {name: known[name] for name in fallback & known.keys()} | values


def effective_of(folder: Path) -> Mapping[str, Any]:
    """Return the values of a folder with config.json, see `effective`."""
    path = folder / GENERATION_CONFIG
    return effective(read_json(folder / "config.json"), read_json(path) if path.is_file() else None)


def problems(values: Mapping[str, Any], vocab_size: int | None = None) -> Iterator[str]:
    """Yield errors in values that `generate` would refuse, one sentence each.

    Args:
        values: Values by name.
        vocab_size: Size of the vocabulary; None if unknown.
    """
    samples = bool(values.get("do_sample"))
    for name, rule in RULES.items():
        value = values.get(name)
        if value is None or not rule.applies(value) or (rule.samples and not samples):
            continue
        if not rule.allows(value):
            yield _refusal(name, value, rule.expected)
    yield from _conflicts(values, samples)
    if vocab_size is not None:
        yield from _foreign(values, vocab_size)


def _refusal(name: str, value: Any, expected: str) -> str:
    return f"The generation setting {name} is {shown(value)}; transformers' `generate` takes {expected}. Correct it."


def _conflicts(values: Mapping[str, Any], samples: bool) -> Iterator[str]:
    """Yield errors in several settings together."""
    for name in sorted(_ARGUMENTS & values.keys()):
        yield f"The generation setting {name} is an argument of `generate`, and none of its settings. Remove it."
    early = values.get("early_stopping")
    if early is not None and not isinstance(early, bool) and early != "never":
        yield _refusal("early_stopping", early, "true, false or 'never'")
    outputs, beams = values.get("num_return_sequences") or 1, values.get("num_beams") or 1
    if _is_number(outputs) and _is_number(beams) and outputs > 1:
        most = beams if beams > 1 else outputs if samples else 1
        if outputs > most:
            yield _refusal("num_return_sequences", outputs, f"at most {most} without more beams")
    ends = values.get("eos_token_id")
    if values.get("exponential_decay_length_penalty") is not None and ends is None:
        yield "The generation setting exponential_decay_length_penalty requires an eos_token_id. Add it."
    suppressed = values.get("suppress_tokens")
    if isinstance(suppressed, list):
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = values.get(name)
            if forced is not None and {*_listed(forced)} <= {*suppressed}:
                yield _refusal(name, forced, "a token outside suppress_tokens")


def _foreign(values: Mapping[str, Any], vocab_size: int) -> Iterator[str]:
    """Yield errors about tokens outside of the vocabulary, which `generate` ignores in `suppress_tokens` alone."""
    bad = values.get("bad_words_ids") or ()
    biased = values.get("sequence_bias") or ()
    tokens: dict[str, Iterable[Any]] = {
        "bad_words_ids": (token for word in bad if isinstance(word, list) for token in word),
        "sequence_bias": (token for one in biased if _is_bias(one) for token in one[0]),
        **{
            name: _listed(values[name])
            for name in ("forced_bos_token_id", "forced_eos_token_id")
            if values.get(name) is not None
        },
    }
    if values.get("exponential_decay_length_penalty") is not None:
        tokens["eos_token_id"] = _listed(values.get("eos_token_id"))
    for name, some in tokens.items():
        foreign = next((one for one in some if _is_int(one) and not 0 <= one < vocab_size), None)
        if foreign is not None:
            yield _refusal(name, foreign, f"tokens of 0 to {vocab_size - 1:,}")


def uncomputed(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that change `generate` and are not computed: the missing effect of each by name."""
    return {
        name: effect
        for name, (applies, effect) in UNCOMPUTED.items()
        if values.get(name) is not None and applies(values[name], values)
    }


def applied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the computed settings with an effect, by name."""
    samples = bool(values.get("do_sample"))
    return {
        name: values[name]
        for name, rule in RULES.items()
        if values.get(name) is not None
        and rule.applies(values[name])
        and (samples or not rule.samples)
    }


def shown(value: Any) -> str:
    """Return a value for people: long lists end in their number of entries."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:48]}…" + (f" ({len(value):,} entries)" if isinstance(value, list) else "")
