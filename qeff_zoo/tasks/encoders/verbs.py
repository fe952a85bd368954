# SPDX-License-Identifier: Apache-2.0
"""`run` of encoders: texts in, embeddings, scores or answers out."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.text_files import read_text
from qeff_zoo.errors import GenerationError
from qeff_zoo.terminal.printing import print_json, table


class EmbedTexts(Run):
    """Embeds texts, and compares them with one another."""

    def __call__(self, session: Any) -> None:
        """Embed and print."""
        given = self.arguments
        embeddings = session.embed(
            self.prompts,
            prompt=given.prompt_prefix,
            prompt_name=given.prompt_name,
            dimensions=given.dimensions,
            adapter=given.adapter,
        )
        name = session.settings.similarity
        print_embeddings(
            session, "text", self.prompts, embeddings, as_json=given.json, similarity=name
        )


class EmbedSparsely(Run):
    """Computes weights of the vocabulary's tokens for texts, and compares the texts with one another."""

    def __call__(self, session: Any) -> None:
        """Embed and print: one text by its weights, several by their similarities."""
        given = self.arguments
        embeddings = session.embed(
            self.prompts,
            prompt=given.prompt_prefix,
            prompt_name=given.prompt_name,
            adapter=given.adapter,
        )
        if given.json:
            outputs = [
                {
                    "text": text,
                    "weights": session.weights(embedding),
                    "indices": embedding.indices.tolist(),
                    "values": embedding.values.tolist(),
                }
                for text, embedding in zip(self.prompts, embeddings, strict=True)
            ]
            print_json({"outputs": outputs})
        elif len(embeddings) == 1:
            weights = session.weights(embeddings[0]).items()
            print(
                table([[token, f"{weight:.4f}"] for token, weight in weights], ["token", "weight"])
            )
        else:
            _print_similarities(session, self.prompts, embeddings, session.settings.similarity)


class ClassifyTexts(Run):
    """Scores the labels of texts, or of pairs of texts."""

    def __call__(self, session: Any) -> None:
        """Classify and print."""
        pairs = self.arguments.pair
        given = _pairs(self.prompts, pairs) if pairs else self.prompts
        scores = session.classify(
            given, adapter=self.arguments.adapter, prompt_name=self.arguments.prompt_name
        )
        if self.arguments.json:
            outputs = [
                {
                    "text": score.text,
                    "pair": score.pair,
                    "scores": [asdict(it) for it in score.scores],
                }
                for score in scores
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [score.text, *([score.pair] if pairs else []), score.label, f"{score.score:.4f}"]
            for score in scores
        ]
        print(table(rows, ["text", *(["pair"] if pairs else []), "label", "score"]))


class ClassifyTokens(Run):
    """Scores the labels of every token of texts."""

    def __call__(self, session: Any) -> None:
        """Classify and print; with an aggregation, entities."""
        if self.arguments.aggregation is not None:
            self._print_entities(session)
            return
        labels = session.classify(self.prompts, adapter=self.arguments.adapter)
        if self.arguments.json:
            outputs = [
                {"text": text, "tokens": [asdict(token) for token in tokens]}
                for text, tokens in zip(self.prompts, labels, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [token.text, f"{token.start}-{token.end}", token.label, f"{token.score:.4f}"]
            for tokens in labels
            for token in tokens
        ]
        print(table(rows, ["token", "at", "label", "score"]))

    def _print_entities(self, session: Any) -> None:
        aggregation, adapter = self.arguments.aggregation, self.arguments.adapter
        of_texts = session.entities(self.prompts, aggregation, adapter=adapter)
        if self.arguments.json:
            outputs = [
                {"text": text, "entities": [asdict(entity) for entity in entities]}
                for text, entities in zip(self.prompts, of_texts, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [entity.text, f"{entity.start}-{entity.end}", entity.label, f"{entity.score:.4f}"]
            for entities in of_texts
            for entity in entities
        ]
        print(table(rows, ["entity", "at", "label", "score"]))


class FillMasks(Run):
    """Fills the masks of texts."""

    def __call__(self, session: Any) -> None:
        """Fill and print."""
        given = self.arguments
        of_texts = session.fill(
            self.prompts, given.top_k, targets=given.targets, adapter=given.adapter
        )
        if given.json:
            outputs = [
                {"text": text, "masks": [[asdict(fill) for fill in fills] for fills in masks]}
                for text, masks in zip(self.prompts, of_texts, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        several = any(len(masks) > 1 for masks in of_texts)
        rows = [
            [*([number] if several else []), fill.text, f"{fill.score:.4f}", fill.sequence]
            for masks in of_texts
            for number, fills in enumerate(masks, 1)
            for fill in fills
        ]
        print(table(rows, [*(["mask"] if several else []), "token", "score", "text"]))


class AnswerQuestions(Run):
    """Finds the answers to questions in contexts."""

    def __init__(self, task: str, prompts: list[str], arguments: Namespace) -> None:
        super().__init__(task, prompts, arguments)
        if not (self.arguments.context or self.arguments.context_file):
            raise GenerationError(
                f"The questions {self.prompts!r} have no context; expected a text with their answers. Add --context "
                "TEXT or --context-file FILE."
            )

    def __call__(self, session: Any) -> None:
        """Find and print."""
        given = self.arguments
        of_texts = session.find_answers(
            self.prompts,
            [*given.context, *map(read_text, given.context_file)],
            1 if given.top_k is None else given.top_k,
            doc_stride=given.doc_stride,
            max_answer_len=given.max_answer_len,
            impossible=given.impossible,
            adapter=given.adapter,
        )
        if given.json:
            outputs = [
                {"question": question, "answers": [asdict(answer) for answer in answers]}
                for question, answers in zip(self.prompts, of_texts, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [question, answer.text, f"{answer.start}-{answer.end}", f"{answer.score:.4f}"]
            for question, answers in zip(self.prompts, of_texts, strict=True)
            for answer in answers
        ]
        print(table(rows, ["question", "answer", "at", "score"]))


class ChooseTexts(Run):
    """Scores the choices of a prompt."""

    def __init__(self, task: str, prompts: list[str], arguments: Namespace) -> None:
        super().__init__(task, prompts, arguments)
        choices = self.arguments.choice or []
        if len(choices) < 2:
            raise GenerationError(
                f"The prompts {self.prompts!r} have the choices {choices!r}; expected at least two. Add --choice TEXT, "
                "once for each."
            )

    def __call__(self, session: Any) -> None:
        """Score and print, in the order of the choices."""
        choices = self.arguments.choice
        scores = [
            session.choose(prompt, choices, adapter=self.arguments.adapter)
            for prompt in self.prompts
        ]
        if self.arguments.json:
            outputs = [
                {
                    "prompt": prompt,
                    "choices": [
                        {"text": choice, "score": score}
                        for choice, score in zip(choices, found, strict=True)
                    ],
                }
                for prompt, found in zip(self.prompts, scores, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [prompt, choice, f"{score:.4f}"]
            for prompt, found in zip(self.prompts, scores, strict=True)
            for choice, score in zip(choices, found, strict=True)
        ]
        print(table(rows, ["prompt", "choice", "score"]))


def print_embeddings(
    session: Any,
    kind: str,
    inputs: list[str],
    embeddings: Any,
    *,
    as_json: bool,
    similarity: str = "cosine",
) -> None:
    """Print embeddings: one by its values, several by their similarities.

    Args:
        session: Session of the package.
        kind: Kind of the inputs, "text" or "image".
        inputs: Embedded inputs.
        embeddings: Embeddings of the inputs, (inputs, hidden).
        as_json: Whether to print JSON.
        similarity: Name of the similarity.
    """
    if as_json:
        outputs = [
            {kind: given, "embedding": row.tolist()}
            for given, row in zip(inputs, embeddings, strict=True)
        ]
        print_json({"outputs": outputs})
    elif len(inputs) == 1:
        print(" ".join(f"{value:.6f}" for value in embeddings[0]))
    else:
        _print_similarities(session, inputs, embeddings, similarity)


def _print_similarities(session: Any, inputs: list[str], embeddings: Any, similarity: str) -> None:
    """Print the similarity of every input with every other."""
    rows = [
        [given, *(f"{value:.3f}" for value in row)]
        for given, row in zip(inputs, session.similarity(embeddings), strict=True)
    ]
    print(table(rows, [similarity, *(str(number) for number in range(1, len(inputs) + 1))]))


def _pairs(texts: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Pair each prompt with its text, or a single prompt with all of them."""
    if len(texts) == 1:
        texts = texts * len(others)
    if len(texts) != len(others):
        raise GenerationError(
            f"There are {len(texts)} prompts and {len(others)} texts to pair them with; expected as many of both, or "
            f"one prompt. Give --pair once for each --prompt."
        )
    return list(zip(texts, others, strict=True))
