# SPDX-License-Identifier: Apache-2.0
"""Reference for text encoders: embeddings and logits of labels from transformers' models and sentence-transformers.

Only the reference process imports this.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qeff_zoo import contract
from qeff_zoo.validation.reference.runs import Answers, padded, tick
from qeff_zoo.validation.reference.sentence_modules import load_modules, run, witness

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class TextReference(Answers):
    """Outputs for whole texts, one call each: an embedding, or a classifier's logits.

    Args:
        model: Hugging Face model.
        request: Request with `checkpoint`, `task`, `sequences`, their `types` if the package takes token types,
            `prompts`, the number of their tokens that are a prompt, if the package excludes them, `attended`, the
            number of those attended to, if not all, and in `settings` the options that differ from the checkpoint's.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(request["sequences"], model)
        self._model = model
        self._embeds = contract.find(request["task"]).embeds
        self._types: list[list[int]] | None = request.get("types")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        self._scored = (
            _scored_tokens(Path(request["checkpoint"]))
            if request["task"] == contract.TEXT_RANKING
            else None
        )
        #: Output of the model that the modules read.
        self._states = (
            "logits" if request["task"] == contract.SPARSE_EMBEDDING else "last_hidden_state"
        )
        self._by_modules = request["task"] == contract.ENCODER_RANKING
        if self._embeds or self._by_modules:
            modules = load_modules(
                Path(request["checkpoint"]),
                request["settings"],
                model,
                sparse=self._states == "logits",
            )
            # Part of the model, so that all variants are of them too; `modules` is a method of torch's.
            model.sentence_modules = self._modules = modules
        self._skipped: list[int] | None = request.get("prompts")
        self._attended: list[int] | None = request.get("attended")
        if self._attended and getattr(model, "_supports_sdpa", False):
            # As the library: without a key, eager attention would return the mean of all.
            model.set_attn_implementation("sdpa")

    @property
    def witness(self) -> str | None:
        """Library that computes the modules after the encoder."""
        return witness(self._modules) if self._embeds or self._by_modules else None

    @property
    def reads_texts(self) -> bool:
        """Whether sentence-transformers reads texts for an embedding, or for scores."""
        return not self._embeds or super().reads_texts

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        sequences = [self._sequences[number][:length] for number in numbers]
        inputs = padded(sequences, self._padding)
        if self._attended is not None:
            for row, number in enumerate(numbers):
                inputs["attention_mask"][row, self._attended[number] :] = 0
        if self._types is not None:
            kinds = [self._types[number] for number in numbers]
            inputs["token_type_ids"] = padded(kinds, 0)["input_ids"]
        output = self._call(inputs)
        tick()
        if not (self._embeds or self._by_modules):
            logits = self._logits(output)
            if self._scored is not None:
                logits = _last_scores(logits, sequences, *self._scored)
            answers = [self._scores(*one) for one in zip(logits, sequences, strict=True)]
        else:
            states = getattr(output, self._states)
            answers = [
                self._embedding(*one) for one in zip(numbers, states, sequences, strict=True)
            ]
        return [answer.float().numpy() for answer in answers]

    def _call(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run the model on texts, (rows, tokens)."""
        return self._model(**inputs)

    def _logits(self, output: Any) -> Tensor:
        """Return the logits of texts, (rows, labels), or of their tokens, (rows, tokens, labels)."""
        logits: Tensor = output.logits
        return logits

    def _scores(self, logits: Tensor, sequence: list[int]) -> Tensor:
        """Return the logits of a text, or those of each of its tokens."""
        return logits[None] if logits.dim() == 1 else logits[: len(sequence)]

    def _embedding(self, number: int, states: Tensor, sequence: list[int]) -> Tensor:
        """Return what the modules make of the states of a text's own tokens."""
        features: dict[str, Any] = {
            "token_embeddings": states[None, : len(sequence)],
            "input_ids": torch.tensor([sequence]),
            "attention_mask": torch.ones(1, len(sequence), dtype=torch.long),
        }
        if self._skipped is not None:
            features["prompt_length"] = min(self._skipped[number], len(sequence) - 1)
        embedding = run(self._modules, features)
        return embedding[0] if embedding.dim() == 3 else embedding


class SpanReference(TextReference):
    """Logits of the start and the end of an answer, for every token of whole texts."""

    def _logits(self, output: Any) -> Tensor:
        return torch.stack([output.start_logits, output.end_logits], -1)


class ChoiceReference(TextReference):
    """Logits of whole texts, each of them the only choice."""

    def _call(self, inputs: Mapping[str, Tensor]) -> Any:
        return self._model(**{name: given[:, None] for name, given in inputs.items()})


def _last_scores(
    logits: Tensor, sequences: Sequence[Sequence[int]], true: int, false: int | None
) -> Tensor:
    """Return the scores of texts by the logits of their last tokens, (rows, 1)."""
    lasts = [len(sequence) - 1 for sequence in sequences]
    last = logits[range(len(lasts)), lasts]  # (rows, vocabulary)
    return (last[:, true] if false is None else last[:, true] - last[:, false])[:, None]


def _scored_tokens(folder: Path) -> tuple[int, int | None]:
    """Return the token ids of sentence-transformers' LogitScore."""
    modules = json.loads((folder / "modules.json").read_bytes())
    (path,) = (module["path"] for module in modules if module["type"].endswith(".LogitScore"))
    settings = json.loads((folder / PurePosixPath(path) / "config.json").read_bytes())
    return settings["true_token_id"], settings.get("false_token_id")
