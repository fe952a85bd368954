# SPDX-License-Identifier: Apache-2.0
"""Flows of the client `cohere`: embeddings and ranks. Its chats have a form that no other server has."""

from typing import Any

from flows import flow
from flows_openai import KEY

_DOCUMENTS = ["a kitten", "interest rates", "a cat"]


def _options(url: str) -> dict[str, Any]:
    return {"api_key": KEY, "base_url": url.removesuffix("/v1")}


@flow("cohere")
def cohere_rerank(urls: Any) -> None:
    import cohere

    asked: Any = {"model": "reranker", "query": "a cat", "documents": _DOCUMENTS}
    answer = cohere.ClientV2(**_options(urls.reranker)).rerank(**asked, top_n=2)
    scores = [result.relevance_score for result in answer.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    old = cohere.Client(**_options(urls.reranker)).rerank(**asked, return_documents=True)
    assert [result.index for result in old.results[:2]] == [
        result.index for result in answer.results
    ]
    assert [result.document.text for result in old.results] == [
        _DOCUMENTS[result.index] for result in old.results
    ]


@flow("cohere")
def cohere_embed(urls: Any) -> None:
    import cohere

    client = cohere.ClientV2(**_options(urls.embeddings))
    answer = client.embed(
        model="embeddings",
        input_type="search_document",
        texts=_DOCUMENTS,
        embedding_types=["float", "binary"],
        truncate="END",
    )
    assert [len(one) for one in answer.embeddings.float_] == [384] * 3
    assert [len(one) for one in answer.embeddings.binary] == [48] * 3
    assert answer.meta.billed_units.input_tokens > 0


@flow("cohere")
def cohere_embed_by_the_first_api(urls: Any) -> None:
    import cohere

    client = cohere.Client(**_options(urls.embeddings))
    asked: Any = {"model": "embeddings", "input_type": "search_query", "texts": _DOCUMENTS}
    plain = client.embed(**asked).embeddings
    assert [len(one) for one in plain] == [384] * 3
    assert client.embed(**asked, embedding_types=["float"]).embeddings.float_ == plain


@flow("cohere")
async def cohere_async(urls: Any) -> None:
    import cohere

    client = cohere.AsyncClientV2(**_options(urls.reranker))
    answer = await client.rerank(model="reranker", query="a cat", documents=_DOCUMENTS)
    assert len(answer.results) == 3


@flow("cohere")
def cohere_errors(urls: Any) -> None:
    import cohere

    client = cohere.ClientV2(**_options(urls.reranker))
    try:
        client.rerank(model="another", query="a cat", documents=_DOCUMENTS)
    except cohere.NotFoundError:
        return
    raise AssertionError("An unknown model is accepted.")
