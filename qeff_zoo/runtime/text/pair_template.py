# SPDX-License-Identifier: Apache-2.0
"""Texts and pairs of a CrossEncoder as its chat template writes them, with the token ids of sentence-transformers.

A pair is two messages of the roles `query` and `document`, a text is a message of the user, and a prompt is a message
of the system before them. A truncated prompt keeps the end of the template, which a language model's score depends on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import FLAT, CrossEncoder
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.template_source import Message, TemplateSource
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer

_Text: TypeAlias = str | tuple[str, str]
_ROLES = ("query", "document")
#: Texts whose tokens differ from each other in number and in content.
_FILLERS = ("0", "1 2 3 4")
#: Pairs that differ in the query, or in the document.
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))


@dataclass(frozen=True, kw_only=True)
class PairTemplate:
    """Chat template of a CrossEncoder.

    Args:
        source: Chat template of the package.
        form: Form of a message's content, of `cross_encoder.FORMS`.
        values: Variables of the template.
        restores_ends: Whether a truncated text keeps the end of the template.
    """

    source: TemplateSource
    form: str
    values: Mapping[str, Any] = field(default_factory=dict)
    restores_ends: bool = True

    @classmethod
    def of(cls, encoder: CrossEncoder, template: ChatTemplate | None) -> "PairTemplate":
        """Return the template of a CrossEncoder.

        Args:
            encoder: Settings of the CrossEncoder.
            template: Chat template of the package; None without one.

        Raises:
            GenerationError: There is no template, or it does not write both texts of a pair.
        """
        pair_template = None
        if template is not None:
            source = template.source()
            pair_template = cls(
                source=source,
                form=encoder.form,
                values=encoder.template_values,
                restores_ends=encoder.restores_ends,
            )
        if pair_template is None or not pair_template.writes_pairs:
            raise GenerationError(
                "The CrossEncoder writes pairs by its chat template, and "
                f"{'the package has none' if pair_template is None else 'that does not write both texts'}. Expected a "
                f"template for messages of the roles {' and '.join(_ROLES)}. Add it to the checkpoint, and build again."
            )
        return pair_template

    @property
    def writes_pairs(self) -> bool:
        """Whether both texts of a pair are in what the template writes."""
        try:
            base, *others = (self.render(pair, "") for pair in _PROBES)
        except GenerationError:
            return False
        return base not in others

    def messages(self, text: _Text, prompt: str) -> list[Message]:
        """Return the messages of a text or a pair, after the prompt."""
        spoken = [("user", text)] if isinstance(text, str) else zip(_ROLES, text, strict=True)
        before = [("system", prompt)] if prompt else []
        return [{"role": role, "content": self._content(one)} for role, one in (*before, *spoken)]

    def render(self, text: _Text, prompt: str) -> str:
        """Render a text or a pair, after the prompt."""
        values = {"add_generation_prompt": False, **self.values}
        return self.source.render_unchanged(self.messages(text, prompt), **values)

    def encode(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[_Text],
        prompt: str,
        max_length: int,
        side: Literal["left", "right"] | None,
    ) -> list[Encoded]:
        """Return the tokens of texts and pairs.

        Args:
            tokenizer: Tokenizer of the package.
            texts: Texts and pairs.
            prompt: Prompt of every text; empty for none.
            max_length: Maximum number of tokens of each.
            side: Side on which they are truncated; None for the tokenizer's.
        """
        written = [self.render(text, prompt) for text in texts]
        encoded = tokenizer.encode_all(written, max_length, side, special_tokens=False)
        ends: dict[bool, list[int]] = {}
        for number, (text, one) in enumerate(zip(texts, encoded, strict=True)):
            if one.cut and self.restores_ends:
                pair = not isinstance(text, str)
                if pair not in ends:
                    ends[pair] = self._end(tokenizer, prompt, pair=pair)
                encoded[number] = _with_end(one, ends[pair])
        return encoded

    def _content(self, text: str) -> Any:
        return text if self.form == FLAT else [{"type": "text", "text": text}]

    def _end(self, tokenizer: Tokenizer, prompt: str, *, pair: bool) -> list[int]:
        """Return the last tokens of every text or pair: those that two different ones share."""
        make: Callable[[str], _Text] = (lambda one: (one, one)) if pair else (lambda one: one)
        first, second = (
            tokenizer.encode(self.render(make(filler), prompt), special_tokens=False)
            for filler in _FILLERS
        )
        shortest = min(len(first), len(second))
        differs = (n for n in range(1, shortest + 1) if first[-n] != second[-n])
        same = next(differs, shortest + 1) - 1
        return first[len(first) - same :] if 0 < same < shortest else []


def _with_end(text: Encoded, end: Sequence[int]) -> Encoded:
    kept = min(len(end), len(text.ids))
    return replace(text, ids=[*text.ids[: len(text.ids) - kept], *end[len(end) - kept :]])
