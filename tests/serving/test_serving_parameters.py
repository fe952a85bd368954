# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of vLLM's API that OpenAI's lacks, as a client meets them; and defaults of the model."""

import argparse
import json
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from checkout import TINY_LLAMA
from fixtures_serving import (
    KEY,
    MODEL,
    PROMPT,
    QUESTION,
    TIMEOUT,
    chat,
    complete,
    connect,
    post,
    running,
)
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo.checkpoint import generation_settings
from qeff_zoo.contract.commands import SAMPLING
from qeff_zoo.package import Package
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import ChatOptions, Engine, Sampling, TextGenerationSession
from qeff_zoo.tasks.text_generation.verbs import configure, sampling_of


def more(client: openai.OpenAI, **body: Any) -> Any:
    return complete(client, logprobs=0, extra_body=body).choices[0]


def test_tokens_are_biased_allowed_and_excluded(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    (usual,) = alone.generate([PROMPT], generation_len=12)
    first, second = usual.token_ids[:2]
    assert more(client).text == usual.text
    biased = complete(client, logit_bias={str(first): -100}).choices[0].text
    expected = alone.generate(
        [PROMPT], generation_len=12, sampling=Sampling(logit_bias={first: -100.0})
    )
    assert biased == expected[0].text != usual.text
    only = more(client, allowed_token_ids=[second])
    assert only.logprobs.tokens == [alone.tokenizer.piece(second)] * 12
    word = usual.text.split()[0][:5]
    excluded = more(client, bad_words=[word])
    assert word in usual.text
    assert word not in excluded.text
    for wrong in ({"allowed_token_ids": [10**6]}, {"logit_bias": {"x": 1}}, {"bad_words": [""]}):
        with pytest.raises(openai.BadRequestError):
            more(client, **wrong)


def test_a_prompt_is_truncated(client: openai.OpenAI, url: str) -> None:
    """As in vLLM: the last tokens, or the first; -1 leaves room for the output in the context of 128."""
    ids = list(range(10, 210))
    for options, kept in (
        ({"truncate_prompt_tokens": 4}, ids[-4:]),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, ids[:4]),
        ({"truncate_prompt_tokens": -1}, ids[-126:]),
    ):
        body = {**options, "return_token_ids": True}
        answer = complete(client, ids, max_tokens=2, extra_body=body)
        assert answer.choices[0].prompt_token_ids == kept
    talk = {"messages": QUESTION, "truncate_prompt_tokens": 3, "max_tokens": 1}
    status, found = post(url, "chat/completions", json.dumps(talk).encode())
    assert (status, found["usage"]["prompt_tokens"]) == (200, 3)


def test_stop_tokens_and_strings_and_the_least_length(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    (usual,) = alone.generate([PROMPT], generation_len=12)
    stop = usual.token_ids[3]
    first = usual.token_ids.index(stop)
    ended = more(client, stop_token_ids=[stop])
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)
    assert ended.text == alone.tokenizer.decode(usual.token_ids[:first])
    longer = complete(
        client, extra_body={"stop_token_ids": [stop], "min_tokens": first + 3, "ignore_eos": True}
    )
    assert longer.usage.completion_tokens >= first + 3
    string = usual.text[4:6]
    kept = complete(client, stop=string, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == usual.text[: usual.text.index(string) + len(string)]
    assert (kept.finish_reason, kept.stop_reason) == ("stop", string)
    chunks = complete(client, stop=[string, "never"], stream=True)
    assert [*chunks][-1].choices[0].stop_reason == string
    assert more(client).stop_reason is None
    late = complete(client, stop=string, extra_body={"min_tokens": 12, "ignore_eos": True})
    assert late.usage.completion_tokens == 12


def test_neutral_values_of_other_servers_change_nothing(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    (usual,) = alone.generate([PROMPT], generation_len=12)
    neutral = {
        "top_k": -1, "length_penalty": 1.0, "use_beam_search": False, "priority": 0, "detokenize": True,
        "spaces_between_special_tokens": True, "skip_special_tokens": True, "typical_p": 1.0, "cache_prompt": True,
        "request_id": "mine", "mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0, "n_probs": 0, "num_beams": 1,
        "repeat_penalty": 1.0, "n_predict": -1,
    }  # fmt: skip
    assert more(client, **neutral).text == usual.text
    with pytest.raises(openai.BadRequestError, match="length_penalty"):
        more(client, length_penalty=2.0)
    named = client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, extra_body={"n_predict": 3}
    )
    assert named.usage is not None
    assert named.usage.completion_tokens == 3
    both: Any = [PROMPT, alone.encode(PROMPT)]
    assert [choice.text for choice in complete(client, both).choices] == [usual.text] * 2


def test_a_request_is_named_by_its_client_or_by_the_server(url: str) -> None:
    names = []
    for given in ("mine-1", None, "two words"):
        headers = {"Content-Type": "application/json"} | ({"X-Request-Id": given} if given else {})
        body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{url}/completions", body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            names.append(answer.headers["X-Request-Id"])
    assert names[0] == "mine-1"
    assert len({*names}) == 3
    assert all(name and " " not in name for name in names)


def test_every_path_but_those_of_the_operator_requires_the_key(engine: Engine) -> None:
    with running(engine, api_keys=[KEY]) as url:
        root = url.removesuffix("/v1")
        for path in ("tokenize", "detokenize", "v1/tokenize", "version", "none"):
            assert post(root, path, b"{}")[0] == 401
        named = {"Authorization": f"Bearer {KEY}"}
        body = json.dumps({"model": MODEL, "messages": QUESTION}).encode()
        status, found = post(root, "tokenize", body, **named)
        assert status == 200
        assert found["tokens"] == engine.session.encode_chat(QUESTION)
        with urllib.request.urlopen(f"{root}/health", timeout=TIMEOUT) as answer:
            assert answer.status == 200


def test_defaults_are_those_of_generation_config(
    trained: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests without parameters have the file's; Python and `run` only if the checkpoint samples by default."""
    settings, more_settings = {"temperature": 0.7, "top_k": 3, "top_p": 0.9}, {"do_sample": True}

    def read(path: Path) -> dict[str, Any]:
        return read_json(path) | (
            settings | more_settings if path.name == "generation_config.json" else {}
        )

    monkeypatch.setattr(generation_settings, "read_json", read)
    session: Any = qeff_zoo.load(trained, threads=1)
    assert session.default_sampling == Sampling(**settings)
    flags = dict.fromkeys(SAMPLING) | {"generation_config": "auto", "seed": 5}
    requested = sampling_of(session, argparse.Namespace(**flags))
    assert requested.over(session.settings)[0] == Sampling(**settings, seed=5)
    (expected,) = session.generate([PROMPT], generation_len=12, sampling=requested)
    question = QUESTION[0]["content"]
    (plain,) = session.generate(
        [question], chat=True, generation_len=16, sampling=Sampling(temperature=0)
    )
    with Engine(session) as engine, running(engine) as url, connect(url) as client:
        found = complete(client, temperature=openai.omit, seed=5)
        other = chat(client, temperature=0, extra_body={"top_k": 0}, top_p=1)
    assert found.choices[0].text == expected.text
    assert other.choices[0].message.content == plain.text
    more_settings.clear()
    session = qeff_zoo.load(trained, threads=1)
    assert session.default_sampling == Sampling(top_k=3, top_p=0.9)
    assert session.settings.temperature == settings["temperature"]
    flags |= {"generation_config": "none", "seed": None}
    configure(session, argparse.Namespace(**flags))
    assert (
        sampling_of(session, argparse.Namespace(**flags)) == session.default_sampling == Sampling()
    )


@pytest.mark.parametrize("form", ["text", "tokens"])
def test_echo_scores_the_prompt_as_transformers(
    client: openai.OpenAI, alone: TextGenerationSession, form: str
) -> None:
    """What lm-evaluation-harness asks for: log-probabilities of the prompt's own tokens."""
    ids = alone.encode(PROMPT)
    prompt: Any = PROMPT if form == "text" else ids
    whole = complete(client, prompt, echo=True, logprobs=2, max_tokens=1).choices[0]
    alone_scored = complete(client, prompt, echo=True, logprobs=2, max_tokens=0)
    model = AutoModelForCausalLM.from_pretrained(TINY_LLAMA, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    expected = torch.log_softmax(logits, -1)
    found = alone_scored.choices[0]
    assert (found.text, found.finish_reason) == (PROMPT, "length")
    assert alone_scored.usage.completion_tokens == 0
    assert alone_scored.usage.prompt_tokens == len(ids)
    assert found.logprobs.tokens == [alone.tokenizer.piece(token) for token in ids]
    assert found.logprobs.token_logprobs[0] is None
    assert found.logprobs.token_logprobs[1:] == pytest.approx(
        [float(expected[at, token]) for at, token in enumerate(ids[1:])], abs=1e-3
    )
    best = [max(logprob.values()) for logprob in found.logprobs.top_logprobs[1:]]
    assert best == pytest.approx(expected[:-1].max(-1).values.tolist(), abs=1e-3)
    (usual,) = alone.generate([PROMPT], generation_len=1)
    assert whole.text == PROMPT + usual.text
    assert whole.logprobs.token_logprobs[: len(ids)] == found.logprobs.token_logprobs
    assert whole.logprobs.token_logprobs[-1] == pytest.approx(float(expected[-1].max()), abs=1e-3)
    assert whole.logprobs.text_offset[-1] == len(PROMPT)


def test_log_probabilities_of_a_prompt_are_by_token(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    found = chat(client, max_tokens=2, extra_body={"prompt_logprobs": 1})
    ids = alone.encode_chat(QUESTION)
    first, *rest = found.model_extra["prompt_logprobs"]
    assert first is None
    assert len(rest) == len(ids) - 1
    for token, entries in zip(ids[1:], rest, strict=True):
        own = entries[str(token)]
        assert own["decoded_token"] == alone.tokenizer.piece(token)
        best = next(entry for entry in entries.values() if entry["rank"] == 1)
        assert best["logprob"] >= own["logprob"]
        assert (best is own) == (len(entries) == 1)
    assert chat(client, max_tokens=2).choices[0].message == found.choices[0].message
    several = complete(client, [PROMPT, "class a."], n=2, extra_body={"prompt_logprobs": 0})
    assert len(several.choices) == 4
    for body in ({"stream": True}, {"documents": ["a"]}):
        with pytest.raises(openai.BadRequestError):
            complete(client, extra_body={"prompt_logprobs": 1, **body})
    streamed = complete(client, echo=True, stream=True)
    (usual,) = alone.generate([PROMPT], generation_len=12)
    assert "".join(chunk.choices[0].text for chunk in streamed) == PROMPT + usual.text


def test_each_chunk_may_have_the_usage_so_far(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [*complete(client, stream=True, stream_options=options)]
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] > 1
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1
    first, *_ = chat(client, stream=True, stream_options=options)
    assert (first.usage.completion_tokens, first.usage.prompt_tokens > 0) == (0, True)


def test_token_ids_are_returned_on_request(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    (expected,) = alone.generate([PROMPT], generation_len=12)
    options: Any = {"extra_body": {"return_token_ids": True}}
    (choice,) = complete(client, **options).choices
    assert choice.token_ids == expected.token_ids
    assert choice.prompt_token_ids == alone.encode(PROMPT)
    streamed = [one.choices[0].token_ids for one in complete(client, stream=True, **options)]
    assert [token for ids in streamed for token in ids] == expected.token_ids
    found = chat(client, **options)
    assert found.prompt_token_ids == alone.encode_chat(QUESTION)
    assert len(found.choices[0].token_ids) == found.usage.completion_tokens


def test_tokens_are_named_by_their_ids_on_request(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    requested: Any = {"extra_body": {"return_tokens_as_token_ids": True}}
    ids = alone.encode(PROMPT)
    usual = complete(client, echo=True, logprobs=1, max_tokens=2).choices[0].logprobs
    found = complete(client, echo=True, logprobs=1, max_tokens=2, **requested).choices[0].logprobs
    assert found.tokens[: len(ids)] == [f"token_id:{token}" for token in ids]
    assert (found.token_logprobs, found.text_offset) == (usual.token_logprobs, usual.text_offset)
    first, *_ = chat(client, logprobs=True, top_logprobs=1, **requested).choices[0].logprobs.content
    assert first.token == first.top_logprobs[0].token
    assert first.token.startswith("token_id:")


def test_a_chat_may_repeat_the_message_that_it_continues(client: openai.OpenAI) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "A class"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    usual = chat(client, messages=begun, extra_body=options).choices[0].message.content
    requested: Any = {"messages": begun, "extra_body": {**options, "echo": True}}
    assert chat(client, **requested).choices[0].message.content == "A class" + usual
    chunks = [one.choices[0].delta.content or "" for one in chat(client, stream=True, **requested)]
    assert (chunks[0], "".join(chunks)) == ("A class", "A class" + usual)
    unanswered = chat(client, extra_body={"echo": True}).choices[0].message.content
    assert unanswered == chat(client).choices[0].message.content


def test_the_tokens_of_a_chat_are_counted(client: openai.OpenAI, url: str) -> None:
    expected = chat(client, max_tokens=1).usage.prompt_tokens
    body = json.dumps({"messages": QUESTION}).encode()
    counted = {"object": "response.input_tokens", "input_tokens": expected}
    assert post(url, "chat/completions/input_tokens", body)[1] == counted
    assert client.responses.input_tokens.count(model=MODEL, input=QUESTION).input_tokens == expected


def test_a_chat_template_is_applied_alone(url: str, alone: TextGenerationSession) -> None:
    root = url.removesuffix("/v1")
    begun = [*QUESTION, {"role": "assistant", "content": "A class"}]
    for messages, options in (
        (QUESTION, {"add_generation_prompt": False}),
        (begun, {"add_generation_prompt": False, "continue_final_message": True}),
    ):
        body = json.dumps({"messages": messages, **options}).encode()
        expected = alone.encode_chat(messages, ChatOptions(**options))
        assert post(root, "tokenize", body)[1]["tokens"] == expected
    body = json.dumps({"messages": QUESTION, "add_special_tokens": True}).encode()
    expected = [alone.tokenizer.token_id("<|begin|>"), *alone.encode_chat(QUESTION)]
    assert post(root, "tokenize", body)[1]["tokens"] == expected
    status, found = post(root, "apply-template", json.dumps({"messages": QUESTION}).encode())
    assert (status, found) == (200, {"prompt": alone.render_chat(QUESTION)})
    body = {"messages": [{"role": "user", "content": {"a": 1}}]}
    assert post(root, "apply-template", json.dumps(body).encode())[0] == 400
