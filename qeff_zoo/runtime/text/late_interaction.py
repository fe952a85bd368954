# SPDX-License-Identifier: Apache-2.0
"""Late interaction (ColBERT): which tokens of queries and documents are compared, and their scores.

Input: settings of a `MultiVectorEncoder` of sentence-transformers, and tokens of texts. Output: tokens with the
expansion of queries, and the tokens whose states are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.files import files_of
from qeff_zoo.checkpoint.sentence_transformers.modules import read_steps
from qeff_zoo.checkpoint.sentence_transformers.settings import QUERY, SentenceSettings
from qeff_zoo.checkpoint.sentence_transformers.steps import MultiVectorMask
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer

_NOTHING = -1e9  # score of a document without a compared token, as in sentence-transformers


@dataclass(frozen=True, kw_only=True)
class LateInteraction:
    """Tokens of queries and documents that are compared.

    Args:
        length: Number of tokens to which queries are expanded; 0 for no expansion.
        fixed: Whether longer queries are truncated to it.
        attends: Whether tokens attend to the expansion.
        token: Token of the expansion.
        skipped: Tokens that are not compared.
        kinds: Kinds of texts whose tokens are skipped.
    """

    length: int
    fixed: bool
    attends: bool
    token: int
    skipped: frozenset[int]
    kinds: tuple[str, ...]

    @classmethod
    def of_package(
        cls, folder: Path, settings: SentenceSettings, tokenizer: Tokenizer
    ) -> "LateInteraction | None":
        """Return the late interaction of a package, and register its prefixes as tokens; None for other packages.

        Args:
            folder: Folder of the package.
            settings: The package's settings of sentence-transformers.
            tokenizer: Tokenizer of the package.
        """
        spec = read_json(folder / "manifest.json").get("spec") or {}
        kinds = {step["kind"] for step in (spec.get("task") or {}).get("modules") or ()}
        if MultiVectorMask.__name__ not in kinds:
            return None
        steps = read_steps(files_of(folder))
        mask = next(step for step in steps if isinstance(step, MultiVectorMask))
        for marker in settings.markers:
            tokenizer.register(marker)
        return cls.of(settings.expansion or {}, mask, tokenizer)

    @classmethod
    def of(
        cls, expansion: Mapping[str, Any], mask: MultiVectorMask, tokenizer: Tokenizer
    ) -> "LateInteraction":
        """Return the late interaction of a model.

        Args:
            expansion: Expansion of queries; empty for none.
            mask: Skipped words and kinds.
            tokenizer: Tokenizer of the package.

        Raises:
            GenerationError: The expansion has no token.
        """
        token = tokenizer.token_named(expansion.get("token"), ("mask_token", "eos_token"))
        if expansion and token is None:
            raise GenerationError(
                f"The expansion of queries by {expansion.get('token')!r} has no token in the vocabulary; expected one, "
                "or a mask token in tokenizer_config.json. Add it."
            )
        unknown = tokenizer.token_named(None, ("unk_token",))
        ids = (tokenizer.token_id(word) for word in mask.skipped)
        return cls(
            length=int(expansion.get("length", 0)),
            fixed=expansion.get("strategy") == "fixed",
            attends=bool(expansion.get("attend")),
            token=token or 0,
            skipped=frozenset(one for one in ids if one not in (None, unknown)),
            kinds=mask.kinds,
        )

    def max_length(self, kind: str | None, length: int) -> int:
        """Return the number of tokens to which texts of a kind are truncated.

        Args:
            kind: Kind of the texts, "query" or "document"; None for neither.
            length: Number without an expansion.
        """
        if kind != QUERY or not self.length:
            return length
        return self.length if self.fixed else max(length, self.length)

    def expanded(self, text: Encoded, kind: str | None) -> Encoded:
        """Return the tokens of a text, expanded if it is a query."""
        further = max(0, self.length - len(text.ids)) if kind == QUERY else 0
        if not further:
            return text
        end = text.offsets[-1][1] if text.offsets else 0
        return replace(
            text,
            ids=[*text.ids, *[self.token] * further],
            type_ids=[*text.type_ids, *[0] * further],
            offsets=[*text.offsets, *[(end, end)] * further],
            special=[*text.special, *[True] * further],
            attended=None if self.attends else len(text.ids),
        )

    def places(self, text: Encoded, kind: str | None) -> list[int]:
        """Return the indices of the tokens that are compared.

        Args:
            text: The text, expanded.
            kind: Kind of the text; None counts as a document.
        """
        skipped = self.skipped if (kind or "document") in self.kinds else ()
        return [place for place, token in enumerate(text.ids) if token not in skipped]


def max_similarities(queries: Sequence[Array], documents: Sequence[Array]) -> Array:
    """Return the sum over the states of each query of the largest product with a state of each document.

    Args:
        queries: States of each query, (tokens, hidden).
        documents: States of each document.

    Returns:
        float32, (queries, documents).
    """
    rows = [
        [
            float((query @ document.T).max(1).sum()) if len(document) else _NOTHING
            for document in documents
        ]
        for query in queries
    ]
    return np.array(rows, np.float32)
