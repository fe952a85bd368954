# SPDX-License-Identifier: Apache-2.0
"""Request bodies of encoders: the parameters of OpenAI's, vLLM's, Cohere's and Text Embeddings Inference's APIs."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.schemas import (
    MAX_TOKENS,
    ChatMessage,
    ChatRequest,
    Part,
    RequestBody,
    TemplateRequest,
    TextPart,
    Texts,
    Truncation,
)

#: Maximum number of characters of a prompt.
MAX_PROMPT = 1 << 16


class EncoderRequest(RequestBody):
    """Fields of all requests to a text encoder; OpenAI's API has none of them."""

    truncate: Literal["START", "END", "NONE"] | None = None  # as at Cohere and NVIDIA
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = None  # as in vLLM

    @property
    def cut_on(self) -> Literal["left", "right"] | None:
        """Side on which long texts are truncated; None for the tokenizer's."""
        by_name: dict[str, Literal["left", "right"]] = {"START": "left", "END": "right"}
        return self.truncation_side or by_name.get(self.truncate or "")


class _TextsOrChat(TemplateRequest):
    """Fields of requests with texts, or with a chat, as in vLLM's API."""

    input: Texts | None = None

    @model_validator(mode="after")
    def _given(self) -> "_TextsOrChat":
        if self.input is not None and self.messages is not None:
            raise ValueError("one of input and messages is expected")
        if self.input is None and self.messages is None:
            raise ApiError(
                400,
                "Parameter 'input' is missing; expected texts, or a chat in 'messages'. Add one.",
                param="input",
                code="missing_required_parameter",
            )
        return self


class InputRequest(EncoderRequest, _TextsOrChat):
    """Fields of requests to a text encoder, for which the chat template renders a chat as one text."""

    add_generation_prompt: bool = False

    @property
    def chat(self) -> ChatRequest:
        """Chat of the messages."""
        ends = {"add_generation_prompt": self.add_generation_prompt}
        return super().chat.model_copy(update=ends)


class PromptRequest(RequestBody):
    """Fields of requests for embeddings that select a prompt; several APIs have one of them each."""

    prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    prompt_name: Annotated[str, Field(max_length=64)] | None = None  # Text Embeddings Inference
    input_type: Annotated[str, Field(max_length=64)] | None = None  # Cohere, NVIDIA, Voyage


class PromptedRequest(PromptRequest):
    """Fields of requests for embeddings that select a prompt, by Jina's `task` as well."""

    task: Annotated[str, Field(max_length=64)] | None = None


class EmbeddingRequest(PromptedRequest, InputRequest):
    """Body of /v1/embeddings."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    normalized: bool | None = None  # as at Jina; None for the model's own


class Truncated(RequestBody):
    """Truncation of texts, as in Text Embeddings Inference."""

    truncate: bool = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"

    @property
    def truncation(self) -> EncoderRequest:
        """Truncation of the texts."""
        side: Literal["START", "END"] = (
            "START" if self.truncation_direction in ("left", "Left") else "END"
        )
        return EncoderRequest(truncate=side if self.truncate else "NONE")


class InputsRequest(PromptedRequest, Truncated):
    """Body of /embed, as in Text Embeddings Inference."""

    inputs: Texts
    normalize: bool = True
    dimensions: int | None = Field(None, ge=1)


class PlainInputsRequest(PromptedRequest, Truncated):
    """Body of /embed_sparse and /embed_all, as in Text Embeddings Inference."""

    inputs: Texts


class SimilarInputs(BaseModel):
    """Texts of /similarity."""

    model_config = ConfigDict(strict=True, extra="forbid")

    source_sentence: str
    sentences: list[str] = Field(min_length=1, fail_fast=True)


class SimilarityParameters(PromptedRequest, Truncated):
    """Parameters of /similarity."""


class SimilarityRequest(RequestBody):
    """Body of /similarity, as in Text Embeddings Inference."""

    inputs: SimilarInputs
    parameters: SimilarityParameters = SimilarityParameters()


#: One text, or two of a pair.
_OneOrTwo: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=2)]


class PredictRequest(Truncated):
    """Body of /predict, as in Text Embeddings Inference: a text, a pair, or a list of lists of one or two texts."""

    inputs: str | _OneOrTwo | Annotated[list[_OneOrTwo], Field(min_length=1, fail_fast=True)]
    raw_scores: bool = False

    @property
    def is_single(self) -> bool:
        """Whether the response is that of one text or pair."""
        return isinstance(self.inputs, str) or isinstance(self.inputs[0], str)

    @property
    def texts(self) -> list[str | tuple[str, str]]:
        """Texts and pairs."""
        given = [self.inputs] if self.is_single else self.inputs
        found: list[str | tuple[str, str]] = []
        for one in given:
            if isinstance(one, str):
                found.append(one)
            else:
                found.append((str(one[0]), str(one[1])) if len(one) == 2 else str(one[0]))
        return found


class ScoringRequest(EncoderRequest):
    """Fields of requests to classifiers and rerankers, as in vLLM's API."""

    use_activation: bool = True  # else scores are logits
    prompt_name: Annotated[str, Field(max_length=64)] | None = None  # as in sentence-transformers


class ClassifyRequest(ScoringRequest, InputRequest):
    """Body of /v1/classify, as in vLLM's API."""


class PoolingRequest(PromptRequest, ClassifyRequest):
    """Body of /v1/pooling, as in vLLM's API; prompts and kinds of texts are those of the endpoints of embeddings."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    encoding_format: Literal["float", "base64"] = "float"


class TextContent(BaseModel):
    """Text in parts, as in vLLM's and Cohere's APIs."""

    model_config = ConfigDict(strict=True, extra="forbid")

    content: Annotated[list[Part], Field(min_length=1, max_length=1024, fail_fast=True)]

    @model_validator(mode="after")
    def _texts(self) -> "TextContent":
        if not all(isinstance(part, TextPart) for part in self.content):
            raise ValueError("parts of type 'text' are expected")
        return self

    @property
    def text(self) -> str:
        """Whole text."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


_Scored: TypeAlias = str | TextContent
_Several: TypeAlias = _Scored | Annotated[list[_Scored], Field(min_length=1, fail_fast=True)]


def _texts(given: _Several) -> list[str]:
    several = given if isinstance(given, list) else [given]
    return [one if isinstance(one, str) else one.text for one in several]


class ScoreRequest(ScoringRequest):
    """Body of /v1/score, as in vLLM's API: one text and several others, or as many of both."""

    queries: _Several
    documents: _Several

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        """Give `queries` and `documents` for the other names of vLLM's API."""
        names = {
            f"{kind}_{number}": name
            for kind in ("text", "data")
            for number, name in ((1, "queries"), (2, "documents"))
        }
        names["items"] = "documents"
        if not isinstance(values, dict):
            return values
        return {names.get(name, name): value for name, value in values.items()}

    @model_validator(mode="after")
    def _paired(self) -> "ScoreRequest":
        queries, documents = len(_texts(self.queries)), len(_texts(self.documents))
        if queries not in (1, documents):
            raise ValueError(
                f"there are {queries:,} queries and {documents:,} documents; one query, or as many as documents are "
                "expected"
            )
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs to score."""
        queries, documents = _texts(self.queries), _texts(self.documents)
        queries = queries * (len(documents) if len(queries) == 1 else 1)
        return [*zip(queries, documents, strict=True)]


class RerankDocument(BaseModel):
    """Document of a rerank request."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str


class RerankRequest(ScoringRequest):
    """Body of /v1/rerank, as in Jina's, Cohere's and vLLM's APIs; with `texts`, as in Text Embeddings Inference."""

    query: _Scored
    documents: list[str | RerankDocument | TextContent] = Field([], min_length=1, fail_fast=True)
    texts: list[str] = Field([], min_length=1, fail_fast=True)
    return_text: bool = False
    raw_scores: bool = False
    top_n: int = Field(0, ge=0)  # 0 for all
    return_documents: bool = True
    max_tokens_per_doc: int = Field(0, ge=0, le=MAX_TOKENS)  # 0 for whole documents

    @model_validator(mode="after")
    def _one(self) -> "RerankRequest":
        if bool(self.documents) == bool(self.texts):
            raise ValueError("one of documents and texts is expected")
        self.use_activation = self.use_activation and not self.raw_scores
        return self

    @property
    def query_text(self) -> str:
        """Text of the query."""
        return _texts(self.query)[0]

    @property
    def contents(self) -> list[str]:
        """Texts of the documents."""
        given = (one if isinstance(one, str) else one.text for one in self.documents)
        return self.texts or [*given]


class CohereEmbedRequest(PromptedRequest, EncoderRequest):
    """Body of /v2/embed and /v1/embed, as in Cohere's API."""

    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    inputs: Annotated[list[TextContent], Field(min_length=1, fail_fast=True)] | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] = Field(
        ["float"], min_length=1, max_length=4
    )
    output_dimension: int | None = Field(None, ge=1)
    max_tokens: Truncation = None

    @model_validator(mode="after")
    def _one(self) -> "CohereEmbedRequest":
        if (self.texts is None) == (self.inputs is None):
            raise ValueError("one of texts and inputs is expected")
        if self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = self.max_tokens
        return self

    @property
    def given(self) -> list[str]:
        """Texts to embed."""
        return self.texts or [one.text for one in self.inputs or ()]


class PromptEmbeddingRequest(_TextsOrChat):
    """Body of /v1/embeddings for a model that embeds chats with images; each text is a user's message."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)


class ImageEmbeddingRequest(RequestBody):
    """Body of /v1/embeddings for a model that reads images."""

    input: Texts | None = None
    messages: (
        Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=1)] | None
    ) = None
    encoding_format: Literal["float", "base64"] = "float"
