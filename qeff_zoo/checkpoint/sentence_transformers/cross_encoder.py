# SPDX-License-Identifier: Apache-2.0
"""Settings of a CrossEncoder of sentence-transformers: how a pair is written, and how its logits become scores.

The files are beside a checkpoint and, unchanged, in its packages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.files import SETTINGS, read_modules, reader_of
from qeff_zoo.checkpoint.sentence_transformers.settings import encoder_settings

#: Forms of a message's content: a text, or a list of parts.
FLAT, STRUCTURED = FORMS = ("flat", "structured")

_KIND = "CrossEncoder"
_RANKS = ["Transformer", "LogitScore"]
_CLASSIFIES = ["Transformer"]
_POOLS = ["Transformer", "Pooling"]
#: Classes of torch have no other prefix, and code of others is not run.
_TRUSTED = "torch."
#: Arguments of a tokenizer's call, other than `max_length`, and the values that change nothing here.
_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "truncation": lambda value: value in (True, False, None, "longest_first", "do_not_truncate"),
    "padding": lambda value: True,  # padding is masked
    "padding_side": lambda value: True,
    "pad_to_multiple_of": lambda value: True,
    "return_tensors": lambda value: True,
    "return_attention_mask": lambda value: True,
    "return_token_type_ids": lambda value: value is not False,
    "add_special_tokens": lambda value: value in (True, None),
    "logits_to_keep": lambda value: True,  # the last token has a logit in any case
}


@dataclass(frozen=True, kw_only=True)
class ScoredTokens:
    """Tokens whose logits are the score of a pair.

    Args:
        true: Token id whose logit counts for relevance.
        false: Token id whose logit is subtracted; None for none.
    """

    true: int
    false: int | None = None


@dataclass(frozen=True, kw_only=True)
class CrossEncoder:
    """Settings of a CrossEncoder.

    Args:
        activation: Class of torch from logits to scores; empty for the default of the number of labels.
        foreign: Saved activation that is no class of torch, which sentence-transformers ignores; empty for none.
        modules: Kinds of the modules in modules.json; empty without the file.
        settings: Content of the configuration of the Transformer module.
        scored: Configuration of the LogitScore module; empty without one.
    """

    activation: str = ""
    foreign: str = ""
    modules: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    scored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks_by_tokens(self) -> bool:
        """Whether the score is a logit of a language model."""
        return "LogitScore" in self.modules

    @property
    def ranks_by_modules(self) -> bool:
        """Whether modules after a pooling compute the score."""
        return [*self.modules[:2]] == _POOLS

    @property
    def tokens(self) -> ScoredTokens:
        """Tokens of a score, see `problems` for invalid ones."""
        return ScoredTokens(
            true=int(self.scored["true_token_id"]), false=self.scored.get("false_token_id")
        )

    @property
    def writes_messages(self) -> bool:
        """Whether the chat template writes texts and pairs."""
        return "message" in (self.settings.get("modality_config") or {})

    @property
    def form(self) -> str:
        """Form of a message's content, one of `FORMS`; see `problems` for others."""
        message = (self.settings.get("modality_config") or {}).get("message") or {}
        return str(message.get("format"))

    @property
    def template_values(self) -> Mapping[str, Any]:
        """Variables of the chat template."""
        given = self._processing("chat_template")
        return {name: value for name, value in given.items() if name not in _SIZES}

    @property
    def restores_ends(self) -> bool:
        """Whether the end of the chat template replaces the end of a truncated text."""
        return self._processing("chat_template").get("restore_suffix", True) is not False

    @property
    def truncates(self) -> bool:
        """Whether long texts are truncated."""
        return self._argument("truncation") not in (False, "do_not_truncate")

    @property
    def max_length(self) -> int | None:
        """Number of tokens to which a call of the tokenizer truncates; None for the tokenizer's own."""
        length = self._argument("max_length")
        return int(length) if length else None

    def problems(self, vocab_size: int, output: str) -> list[str]:
        """Return why the model cannot be built as it is, one clause each.

        Args:
            vocab_size: Number of token ids of the model.
            output: `transformer_task` of the scores that are computed.
        """
        if not self.modules:
            return []
        kinds = [*self.modules]
        if kinds not in (_RANKS, _CLASSIFIES) and not self.ranks_by_modules:
            return [
                f"modules.json of its CrossEncoder lists {kinds}; expected {_CLASSIFIES}, {_RANKS}, or {_POOLS} and "
                "dense layers. The scores of other modules are not computed"
            ]
        reasons = []
        if (task := self.settings.get("transformer_task", output)) != output:
            reasons.append(
                f"`transformer_task` of its CrossEncoder is {task!r}; expected {output!r}. The scores of others are "
                "not computed"
            )
        if self.writes_messages and self.form not in FORMS:
            reasons.append(
                f"`modality_config.message.format` of its CrossEncoder is {self.form!r}; expected "
                f"{' or '.join(map(repr, FORMS))}"
            )
        return reasons + self._problems_of_tokens(vocab_size) + self._problems_of_arguments()

    def _problems_of_tokens(self, vocab_size: int) -> list[str]:
        if not self.ranks_by_tokens:
            return []
        true, false = (self.scored.get(f"{kind}_token_id") for kind in ("true", "false"))
        valid = [
            type(one) is int and 0 <= one < vocab_size for one in (true, false) if one is not None
        ]
        read = self.scored.get("module_input_name", "causal_logits")
        written = self.settings.get("module_output_name", "causal_logits")
        if true is not None and all(valid) and read == written == "causal_logits":
            return []
        return [
            f"its LogitScore is {dict(self.scored)}; expected `true_token_id`, and perhaps `false_token_id`, of 0 to "
            f"{vocab_size - 1:,}, on the `causal_logits` of the model"
        ]

    def _problems_of_arguments(self) -> list[str]:
        processing = self.settings.get("processing_kwargs") or {}
        reasons = []
        if "chat_template" in self._processing("chat_template"):
            reasons.append(
                "`processing_kwargs` of its CrossEncoder sets a chat template; expected it in chat_template.jinja"
            )
        for kind in ("common", "text"):
            for name, value in (processing.get(kind) or {}).items():
                if name != "max_length" and not _NEUTRAL.get(name, _never)(value):
                    reasons.append(
                        f"`processing_kwargs` of its CrossEncoder sets {kind}.{name} to {value!r}, which is not "
                        f"computed; expected {', '.join(['max_length', *_NEUTRAL])} with their usual values"
                    )
        return reasons

    def _processing(self, kind: str) -> Mapping[str, Any]:
        return (self.settings.get("processing_kwargs") or {}).get(kind) or {}

    def _argument(self, name: str) -> Any:
        """Return an argument of the tokenizer's call, which several groups may set."""
        order = ("chat_template", "text", "common") if self.writes_messages else ("common", "text")
        return next((group[name] for group in map(self._processing, order) if name in group), None)


#: Arguments of a chat template that are those of the tokenizer's call.
_SIZES = ("padding", "truncation", "max_length", "return_tensors", "restore_suffix")


def _never(value: Any) -> bool:
    return False


def read_cross_encoder(files: Mapping[str, Path]) -> CrossEncoder | None:
    """Read the settings of a CrossEncoder; None if the files are not of one.

    Args:
        files: Files of a checkpoint or a package, by relative path.
    """
    read, modules = reader_of(files), read_modules(files)
    config, own = read("config.json"), read(SETTINGS)
    whole = bool(modules) and own.get("model_type") == _KIND
    marked = isinstance(config.get("sentence_transformers"), Mapping) or bool(
        config.get("sbert_ce_default_activation_function")
    )
    if not (whole or marked):
        return None
    activation, foreign = _activation(own if whole else {}, config)
    if not whole:
        return CrossEncoder(activation=activation, foreign=foreign)
    scored = [module.config for module in modules if module.kind == "LogitScore"]
    return CrossEncoder(
        activation=activation,
        foreign=foreign,
        modules=tuple(module.described for module in modules),
        settings=encoder_settings(read),
        scored=scored[0] if scored else {},
    )


def _activation(own: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the saved activation that counts, and one that is ignored as it is no class of torch."""
    foreign = ""
    if saved := own.get("activation_fn"):
        if str(saved).startswith(_TRUSTED):
            return str(saved), ""
        foreign = str(saved)
    written = config.get("sentence_transformers") or {}
    saved = (
        written.get("activation_fn")
        if isinstance(written, Mapping) and "activation_fn" in written
        else config.get("sbert_ce_default_activation_function")
    )
    if saved and str(saved).startswith(_TRUSTED):
        return str(saved), foreign
    return "", foreign or str(saved or "")
