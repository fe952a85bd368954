# SPDX-License-Identifier: Apache-2.0
"""Prompts of embedded texts: by name, by the kinds of input of several APIs, or as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qeff_zoo.checkpoint.sentence_transformers.settings import (
    DOCUMENT,
    QUERY,
    SentenceSettings,
)
from qeff_zoo.serving.errors import ApiError, invalid
from qeff_zoo.serving.requests.encoder_schemas import PromptedRequest, PromptRequest
from qeff_zoo.serving.requests.schemas import RequestBody
from qeff_zoo.tasks.encoders.session import EncoderSession

#: Kinds of input in the APIs of Cohere, NVIDIA, Voyage and Jina: kind of text, and names of prompts for it. The first
#: prompt with a text counts.
_KINDS: Mapping[str, tuple[str | None, tuple[str, ...]]] = MappingProxyType(
    {
        "query": (QUERY, (QUERY,)),
        "document": (DOCUMENT, (DOCUMENT,)),
        **{name: (QUERY, (name, QUERY)) for name in ("search_query", "retrieval.query", "code.query")},
        **{
            name: (DOCUMENT, (name, DOCUMENT, "passage", "corpus"))
            for name in ("passage", "search_document", "retrieval.passage", "code.passage")
        },
        **{name: (None, (name,)) for name in ("classification", "clustering", "separation", "text-matching")},
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """How the texts of a request are read.

    Args:
        prompt: Text that precedes each of them.
        max_length: Number of tokens to which they are truncated.
        kind: Kind of the texts, "query" or "document"; None for neither.
    """

    prompt: str
    max_length: int
    kind: str | None


def selectors(body: RequestBody | None) -> dict[str, str]:
    """Return the parameters of a body that select a prompt, with their values."""
    by_task = ("task",) if isinstance(body, PromptedRequest) else ()  # else the task is vLLM's
    return {
        name: value
        for name in ("prompt", "prompt_name", "input_type", *by_task)
        if (value := getattr(body, name, None)) is not None
    }


def prompted(session: EncoderSession, body: PromptRequest | None = None) -> Prompted:
    """Return how the texts of a request are read, by the prompt or kind of input that it names, or by default.

    Raises:
        ApiError: The request names several, or one that the model does not have.
    """
    names = selectors(body)
    if len(names) > 1:
        raise ApiError(
            400,
            f"The parameters {', '.join(map(repr, names))} each set the prompt; expected one of them. Leave out "
            "the others.",
            param=[*names][-1],
            code="invalid_value",
        )
    settings = session.settings
    if "prompt" in names:
        return _reading(session, names["prompt"], None)
    if (name := names.get("prompt_name")) is not None:
        if name not in settings.prompts:
            known = ", ".join(map(repr, settings.prompts)) or "none: the model has no prompts"
            raise invalid("prompt_name", name, f"one of {known}", "Change it")
        return _reading(session, settings.prompts[name], None)
    for param in ("input_type", "task"):
        if param in names:
            return of_kind(session, names[param], param)
    return _reading(session, settings.prompt(None, None), None)


def of_kind(session: EncoderSession, name: str, param: str = "input_type") -> Prompted:
    """Return how texts of a kind are read: by its prompt if the model has one, else by the default prompt.

    Args:
        session: Session of the package.
        name: Name of the kind in one of the APIs, or of a prompt of the model.
        param: Parameter with it.

    Raises:
        ApiError: The kind is unknown.
    """
    settings = session.settings
    if name not in _KINDS and name not in settings.prompts:
        known = ", ".join(sorted({*_KINDS, *settings.prompts}))
        raise invalid(param, name, f"one of {known}", "Change it")
    kind, names = _KINDS.get(name, (None, (name,)))
    return _reading(session, _prompt(settings, names), kind)


def _prompt(settings: SentenceSettings, names: tuple[str, ...]) -> str:
    texts = [settings.prompts[name] for name in names if name in settings.prompts]
    return next(filter(None, texts), "") if texts else settings.prompt(None, None)


def _reading(session: EncoderSession, prompt: str, kind: str | None) -> Prompted:
    most = min(session.settings.length_of(kind), session.sizes.seq_lens[-1])
    return Prompted(prompt=prompt, max_length=most, kind=kind)
