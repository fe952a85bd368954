# SPDX-License-Identifier: Apache-2.0
"""Generation: what Hugging Face says, for any number of prompts, in any shape, streamed or not."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_builds import Models
from fixtures_runtime import LENGTH, PROMPTS, SHAPES, reopen
from runnable_package import edit_json
from transformers import AutoModelForCausalLM, AutoTokenizer

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import Sampling, TextGenerationSession

pytestmark = pytest.mark.turns(2)


def cut(answers: Sequence[Sequence[int]], stops: Sequence[int]) -> list[list[int]]:
    """End each answer at its first stop."""
    return [
        list(
            answer[: next((i + 1 for i, token in enumerate(answer) if token in stops), len(answer))]
        )
        for answer in answers
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_generates_what_transformers_does(
    sessions: dict[str, TextGenerationSession], expected: list[list[int]], shape: str
) -> None:
    """Seven prompts are more than there are rows or slots, and longer than a prefill call."""
    session = sessions[shape]
    outputs = session.generate(PROMPTS, generation_len=LENGTH)

    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.token_ids for output in outputs] == cut(expected, [*session.eos_token_ids])
    assert {output.prompt_tokens > 8 for output in outputs} == {True, False}


@pytest.mark.parametrize("shape", SHAPES)
def test_together_as_one_at_a_time(sessions: dict[str, TextGenerationSession], shape: str) -> None:
    """Rows start, end and are given to others at different times, and none sees another's cache."""
    session = sessions[shape]
    alone = [session.generate([prompt])[0] for prompt in PROMPTS]
    assert session.generate(PROMPTS) == alone
    assert session.generate(PROMPTS[::-1]) == alone[::-1]


def test_token_ids_are_prompts_too(
    sessions: dict[str, TextGenerationSession], models: Models
) -> None:
    session = sessions["rows"]
    tokens = AutoTokenizer.from_pretrained(models.llama)(PROMPTS[0])["input_ids"]
    by_text, by_tokens = session.generate([PROMPTS[0], tokens], generation_len=4)
    assert by_tokens == by_text
    assert session.generate(PROMPTS[0], generation_len=4) == [by_text]


def test_no_prompts_no_answers(sessions: dict[str, TextGenerationSession]) -> None:
    assert sessions["slots"].generate([]) == []


def test_the_end_of_the_cache_ends_an_answer(
    sessions: dict[str, TextGenerationSession], folder: Path
) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[])
    (output,) = reopen(folder).generate([[5] * 40])
    assert (len(output.token_ids), output.finish_reason) == (8, "length")
    (output,) = reopen(folder).generate([[5] * 47], generation_len=5)
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


@pytest.mark.parametrize("listed", [True, False], ids=["list", "number"])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_any_eos_ends_an_answer(
    folder: Path, expected: list[list[int]], listed: bool, file: str
) -> None:
    stops = [expected[0][4], expected[2][2]] if listed else [expected[0][4]]
    (folder / "generation_config.json").unlink()
    edit_json(folder / file, eos_token_id=stops if listed else stops[0])
    session = reopen(folder)

    outputs = session.generate(PROMPTS, generation_len=LENGTH)

    assert [output.token_ids for output in outputs] == cut(expected, stops)
    assert outputs[0].finish_reason == "eos"
    assert session.tokenizer is not None
    assert outputs[0].text == session.tokenizer.decode(outputs[0].token_ids[:-1])
    ended = [output.token_ids[-1] in stops for output in outputs]
    assert [output.finish_reason == "eos" for output in outputs] == ended


def test_metrics_count_tokens_and_time(sessions: dict[str, TextGenerationSession]) -> None:
    session = sessions["slots"]
    outputs = session.generate(PROMPTS, generation_len=LENGTH)
    metrics = session.metrics
    assert metrics is not None
    assert metrics.prompt_tokens == sum(output.prompt_tokens for output in outputs)
    assert metrics.reused_tokens == sum(output.reused_tokens for output in outputs)
    assert metrics.generated_tokens == sum(len(output.token_ids) for output in outputs)
    assert 0 < metrics.ttft_s < metrics.total_s
    assert min(metrics.prefill_tokens_per_s, metrics.decode_tokens_per_s) > 0
    assert json.loads(json.dumps(metrics.as_dict()))["total_s"] == metrics.total_s
    assert f"{metrics.generated_tokens:,} tokens" in str(metrics)


# --- sampling, and what ends an answer ------------------------------------------------------------
def test_greedy_decoding_equals_generate_of_transformers(
    sessions: dict[str, TextGenerationSession], models: Models
) -> None:
    """Also with its penalty for repetition."""
    model = AutoModelForCausalLM.from_pretrained(models.llama).eval()
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    for penalty in (1.0, 1.4):
        sampling = Sampling(repetition_penalty=penalty)
        for prompt in PROMPTS[:3]:
            requested = tokenizer(prompt, return_tensors="pt")
            (tokens,) = model.generate(
                requested["input_ids"],
                attention_mask=requested["attention_mask"],
                do_sample=False,
                repetition_penalty=penalty,
                max_new_tokens=20,
            )
            (output,) = sessions["rows"].generate(prompt, generation_len=20, sampling=sampling)
            assert output.token_ids == tokens[requested["input_ids"].shape[1] :].tolist()


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(
    sessions: dict[str, TextGenerationSession],
) -> None:
    requested = Sampling(temperature=1.2, top_k=40, top_p=0.95, seed=11)
    choices: dict[str, Any] = {"generation_len": LENGTH, "sampling": requested, "ignore_eos": True}
    found = [
        [output.token_ids for output in session.generate(PROMPTS, **choices)]
        for session in sessions.values()
    ]
    alone = [sessions["rows"].generate(prompt, **choices)[0].token_ids for prompt in PROMPTS]
    assert found == [alone] * len(sessions)
    greedy = sessions["rows"].generate(PROMPTS, generation_len=LENGTH, ignore_eos=True)
    assert [output.token_ids for output in greedy] != alone


def test_each_request_has_choices_of_its_own(sessions: dict[str, TextGenerationSession]) -> None:
    session = sessions["slots"]
    requests = [
        session.request(PROMPTS[0], generation_len=3),
        session.request(PROMPTS[0], generation_len=5, sampling=Sampling(temperature=2, seed=1)),
        session.request(PROMPTS[2], generation_len=2, stop="a"),
    ]
    together = session.generate(requests)
    assert together == [session.generate([request])[0] for request in requests]
    assert [output.prompt for output in together] == [PROMPTS[0], PROMPTS[0], PROMPTS[2]]
    with pytest.raises(GenerationError, match="generation_len cannot change a Request, which has"):
        session.generate([PROMPTS[0], requests[0]], generation_len=8)
    assert session.generate([requests[0]], stop=(), ignore_eos=False)[0] == together[0]


def test_a_request_of_a_longer_context_is_refused(
    sessions: dict[str, TextGenerationSession], folder: Path
) -> None:
    request = reopen(folder, ctx_len="60").request(PROMPTS[0])
    with pytest.raises(GenerationError, match=r"more tokens does not fit; expected 48 in all"):
        sessions["rows"].generate([request])


def test_logprobs_are_those_of_the_model(
    sessions: dict[str, TextGenerationSession], models: Models
) -> None:
    session = sessions["rows"]
    sampling = Sampling(temperature=1, seed=4, logprobs=3)
    (output,) = session.generate(PROMPTS[2], generation_len=5, sampling=sampling)
    assert output.logprobs is not None
    assert [one.token_id for one in output.logprobs] == output.token_ids

    model = AutoModelForCausalLM.from_pretrained(models.llama).eval()
    tokens = session.encode(PROMPTS[2])
    with torch.no_grad():
        message = model(torch.tensor([tokens + output.token_ids])).logits[0].log_softmax(-1)
    for place, logprob in enumerate(output.logprobs, len(tokens) - 1):
        assert logprob.logprob == pytest.approx(float(message[place, logprob.token_id]), abs=1e-4)
        best = message[place].topk(3)
        assert [token for token, _ in logprob.top] == best.indices.tolist()
        assert [value for _, value in logprob.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert session.generate(PROMPTS[2], generation_len=5)[0].logprobs is None


def test_a_reranker_s_score_is_read_from_log_probabilities(
    sessions: dict[str, TextGenerationSession], models: Models
) -> None:
    """As docs/vision-language.md describes for Qwen3-VL Reranker."""
    session, sampling = sessions["rows"], Sampling(logprobs=200_000)
    (output,) = session.generate(PROMPTS[2], generation_len=1, sampling=sampling)
    assert output.logprobs is not None
    found = dict(output.logprobs[0].top)
    score = 1 / (1 + math.exp(found[7] - found[9]))
    model = AutoModelForCausalLM.from_pretrained(models.llama).eval()
    with torch.no_grad():
        logits = model(torch.tensor([session.encode(PROMPTS[2])])).logits[0, -1]
    assert score == pytest.approx(float((logits[9] - logits[7]).sigmoid()), abs=1e-4)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_an_answer_ends_before_a_stop_string(
    sessions: dict[str, TextGenerationSession], length: int
) -> None:
    """Tokens are bytes here, so that most stop strings are spelled by several."""
    session = sessions["slots"]
    whole = session.generate(PROMPTS, ignore_eos=True)
    for prompt, full in zip(PROMPTS, whole, strict=True):
        at = len(full.text) // 2
        stop = full.text[at : at + length]
        audio: list[str] = []
        (output,) = session.generate(
            [prompt],
            stop=[stop, "never there"],
            ignore_eos=True,
            stream=lambda _, piece, audio=audio: audio.append(piece),  # type: ignore[misc]
        )
        assert output.finish_reason == "stop"
        assert output.text == full.text[: full.text.index(stop)] == "".join(audio)
        assert output.token_ids == full.token_ids[: len(output.token_ids)]
        assert len(output.token_ids) < len(full.token_ids)


def test_eos_is_ignored_on_request(folder: Path, expected: list[list[int]]) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=expected[0][2])
    session = reopen(folder)
    assert session.generate(PROMPTS[0], generation_len=LENGTH)[0].finish_reason == "eos"
    (output,) = session.generate(PROMPTS[0], generation_len=LENGTH, ignore_eos=True)
    assert (output.token_ids, output.finish_reason) == (expected[0], "length")


# --- streams --------------------------------------------------------------------------------------
def test_a_stream_gives_each_token_as_it_comes(sessions: dict[str, TextGenerationSession]) -> None:
    session = sessions["rows"]
    request = session.request(PROMPTS[2], generation_len=6, sampling=Sampling(logprobs=0))
    (whole,) = session.generate([request])
    deltas = list(session.stream(request))
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [logprob for delta in deltas for logprob in delta.logprobs] == whole.logprobs
    assert [delta.finish_reason for delta in deltas] == [None] * 5 + [whole.finish_reason]
    assert [delta.text for delta in session.stream(PROMPTS[2])][:3] == [
        delta.text for delta in deltas[:3]
    ]


def test_a_session_does_one_thing_at_a_time(sessions: dict[str, TextGenerationSession]) -> None:
    session = sessions["rows"]
    stream = session.stream(PROMPTS[0])
    next(stream)
    with pytest.raises(GenerationError, match="is generating already; expected one"):
        session.generate(PROMPTS[1])
    stream.close()  # type: ignore[attr-defined]
    alone = session.generate(PROMPTS[1], generation_len=3)

    def again(_: int, __: str) -> None:
        session.generate(PROMPTS[1])

    with pytest.raises(GenerationError, match="is generating already"):
        session.generate(PROMPTS, stream=again)
    assert session.generate(PROMPTS[1], generation_len=3) == alone
