# SPDX-License-Identifier: Apache-2.0
"""Tokens that a card draws itself: the graph against the host's sampler and transformers, and packages of it."""

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled, emulated, home, hugging_face, prepare
from fixtures_sampling import SHARES, processed
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from qeff_zoo import cli
from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.states import State
from qeff_zoo.runtime import Grammar, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.device_sampling import DeviceSampler
from qeff_zoo.runtime.decoding.sampling import Sampler
from qeff_zoo.runtime.program import Tensor
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.targets.qaic import ops, sampler

pytestmark = pytest.mark.turns(3)

__all__ = ["home", "prepare", "rt"]
VOCAB, MOST, SLOTS, WIDTH = 40, 30, 3, 6
_DECODER = """
<ir_version: 9, opset_import: ["": 18]>
decoder (int64[batch_size, seq_len] input_ids, int64[batch_size, seq_len] position_ids{slots},
         float[batch_size, 1, VOCAB] given) => (float[batch_size, 1, VOCAB] logits)
{{ logits = Identity (given) }}
"""
_FLAGS = {"include_sampler": True, "max_top_k_ids": MOST, "return_pdfs": True}


def opened(*, slots: bool, **flags: Any) -> onnxruntime.InferenceSession:
    """Return a graph whose logits are given, with a sampler behind them."""
    text = _DECODER.format(slots=", int64[batch_size, 1] batch_index" if slots else "")
    model = ir.from_proto(onnx.parser.parse_model(text.replace("VOCAB", str(VOCAB))))
    sampler.attach(model, {**_FLAGS, **flags})
    ops.attach(model)
    proto = ir.to_proto(ops.with_host_bodies(model))
    onnx.checker.check_model(proto, full_check=True)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )


GRAPHS = {slots: opened(slots=slots) for slots in (False, True)}


def drawn_by(
    logits: Any, asked: Sampling, seen: set[int], said: set[int], numbers: Any
) -> tuple[int, Any, float]:
    """Draw as the host limits tokens: which one, how likely each was, and how clear it is."""
    host = Sampler(dataclasses.replace(asked, top_k=asked.top_k or MOST), [*seen])
    for one in said:
        host.take(one)
    scores = host._scores(logits)
    probs = np.zeros(VOCAB)
    tokens, shares = host._limited(scores)
    probs[tokens] = shares / shares.sum(dtype=np.float64)
    if not asked.temperature:
        first, second = np.sort(scores)[::-1][:2]
        return int(scores.argmax()), None, float(first - second)
    order = np.argsort(-shares, kind="stable")
    noise = -np.log(-np.log(numbers[::-1][: len(order)].astype(np.float64)))
    noisy = np.log(shares[order].astype(np.float64)) + noise
    clear = np.diff(np.sort(noisy)[-2:]) if len(noisy) > 1 else [np.inf]
    return int(tokens[order[noisy.argmax()]]), probs, float(clear[0])


@dataclass
class Row:
    """A text on its way through a slot."""

    asked: Sampling
    prompt: list[int]
    done: int = 0
    answer: list[int] = field(default_factory=list)


class Rows:
    """A card with a sampler: states that begin as anything, and what is expected of every call."""

    def __init__(self, rng: np.random.Generator, *, slots: bool) -> None:
        self.rng, self.slots, self.session = rng, slots, GRAPHS[slots]
        self.states = {name: np.ones((SLOTS, VOCAB), bool) for name in sampler._BUFFERS}
        self.rows: dict[int, Row] = {}

    def call(self, slots: list[int], width: int) -> None:
        """Run the next tokens of some slots, and compare what is drawn after them."""
        count = len(slots) if self.slots and width > 1 else SLOTS
        places = [*range(len(slots))] if self.slots else slots
        fed: dict[str, Any] = {
            name: np.full((count, width), -1)
            for name in ("input_ids", "position_ids", "last_accepted_output_tokens")
        }
        settings = {name: np.zeros((count, 1), np.float32) for name in sampler._OF_ROWS}
        fed |= {**settings, "top_ks": np.zeros((count, 1), np.int32)}
        fed["given"] = self.rng.normal(0, 2, (count, 1, VOCAB)).astype(np.float32)
        fed["random_numbers"] = self.rng.random((count, MOST), np.float32).clip(1e-4, 0.9995)
        if self.slots:
            fed["batch_index"] = np.full((count, 1), -1)
            fed["batch_index"][places, 0] = slots
        for place, slot in zip(places, slots, strict=True):
            row = self.rows[slot]
            text = [*row.prompt, *row.answer]
            tokens = text[row.done : row.done + width]
            if row.done < len(row.prompt):
                tokens = tokens[: len(row.prompt) - row.done]
            positions = np.arange(row.done, row.done + len(tokens))
            fed["input_ids"][place, : len(tokens)] = tokens
            fed["position_ids"][place, : len(tokens)] = positions
            fed["last_accepted_output_tokens"][place, : len(tokens)] = np.where(
                positions >= len(row.prompt), tokens, -1
            )
            requested = row.asked
            fed["repetition_penalties"][place] = requested.repetition_penalty
            fed["presence_penalties"][place] = requested.presence_penalty
            fed["temperatures"][place], fed["min_ps"][place] = (
                requested.temperature,
                requested.min_p,
            )
            fed["top_ks"][place], fed["top_ps"][place] = requested.top_k or MOST, requested.top_p
            row.done += len(tokens)
        names = [output.name for output in self.session.get_outputs()]
        made = dict(zip(names, self.session.run(None, {**fed, **self.states}), strict=True))
        self.states = {name: made[f"{name}_RetainedState"] for name in self.states}
        assert made["next_tokens"].dtype == np.int64
        assert made["next_tokens"].shape == (count, 1, 1)
        assert made["probs"].shape == (count, 1, VOCAB)
        for place, slot in zip(places, slots, strict=True):
            row, logits = self.rows[slot], fed["given"][place, 0]
            content, recorded = {*row.answer}, {*[*row.prompt, *row.answer][: row.done]}
            kept = [{*np.flatnonzero(self.states[name][slot])} for name in sampler._BUFFERS]
            assert kept == [recorded, content]
            token, probs, clear = drawn_by(
                logits, row.asked, recorded, content, fed["random_numbers"][place]
            )
            drawn = int(made["next_tokens"][place, 0, 0])
            assert drawn == token or clear < 1e-4
            if probs is not None:
                np.testing.assert_allclose(made["probs"][place, 0], probs, atol=2e-5)
            if row.done >= len(row.prompt):
                row.answer.append(drawn)


@settings(max_examples=example_count(25))
@given(seed=st.integers(0, 10_000), slots=st.booleans())
def test_a_graph_draws_as_the_host_does_whatever_runs_beside(seed: int, slots: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = Rows(rng, slots=slots)
    for _ in range(6):
        slot = int(rng.integers(SLOTS))
        rows.rows[slot] = Row(
            Sampling(
                temperature=float(rng.choice([0, 0.3, 1, 1.7])),
                top_k=int(rng.choice([0, 1, 5, 29])),
                top_p=float(rng.choice([1, 0.9, 0.5, 0.01])),
                min_p=float(rng.choice([0, 0.05, 0.3])),
                repetition_penalty=float(rng.choice([1, 1.4, 0.7])),
                presence_penalty=float(rng.choice([0, 0.8, -0.5])),
            ),
            rng.integers(VOCAB, size=rng.integers(1, 2 * WIDTH)).tolist(),
        )
        while (left := len(rows.rows[slot].prompt) - rows.rows[slot].done) > 0:
            rows.call([slot], WIDTH if left > 1 else 1)
        for _ in range(3):
            some = rng.permutation([*rows.rows])[: rng.integers(1, len(rows.rows) + 1)]
            rows.call(sorted(map(int, some)), 1)


@settings(max_examples=example_count(30))
@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.2, 1.0, 1.7]),
    top_k=st.sampled_from([1, 5, MOST]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=SHARES,
    penalty=st.sampled_from([1.0, 1.3, 0.7]),
)
def test_probabilities_are_those_of_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (1, 1, VOCAB)).astype(np.float32)
    prompt = rng.integers(VOCAB, size=(1, WIDTH))
    requested = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
    )
    of_rows = {
        "repetition_penalties": penalty,
        "presence_penalties": 0,
        "temperatures": temperature,
        "top_ps": top_p,
        "min_ps": min_p,
    }
    fed = {name: np.full((1, 1), value, np.float32) for name, value in of_rows.items()} | {
        "given": logits,
        "input_ids": prompt,
        "last_accepted_output_tokens": prompt,  # as QEfficient gives them, of prompts too
        "position_ids": np.arange(WIDTH)[None],
        "top_ks": np.full((1, 1), top_k, np.int32),
        "random_numbers": rng.random((1, MOST), np.float32).clip(1e-4, 0.9995),
        **{name: rng.random((1, VOCAB)) < 0.5 for name in sampler._BUFFERS},
    }
    token, probs = GRAPHS[False].run(["next_tokens", "probs"], fed)
    expected = processed(logits[0, 0], requested, prompt[0].tolist())
    np.testing.assert_allclose(probs[0, 0], expected, atol=2e-5)
    assert expected[token.item()] > 0


def test_only_tokens_that_are_allowed_are_drawn() -> None:
    session = opened(slots=False, include_guided_decoding=True, max_top_k_ids=512)
    shapes = {one.name: one.shape for one in session.get_inputs()}
    assert shapes["random_numbers"] == ["batch_size", VOCAB]  # there are no more
    assert shapes["token_bitmasks"] == ["batch_size", VOCAB]
    rng = np.random.default_rng(0)
    allowed = np.zeros((40, VOCAB), bool)
    allowed[np.arange(40), rng.integers(VOCAB, size=40)] = True
    allowed[:, 7] |= rng.random(40) < 0.5
    fed = {
        name: np.full((40, 1), value, np.float32)
        for name, value in {**dict.fromkeys(sampler._OF_ROWS, 0), "top_ps": 1}.items()
    }
    fed["repetition_penalties"][:] = 1
    fed["temperatures"][::2] = 5
    (token,) = session.run(
        ["next_tokens"],
        {
            **fed,
            "top_ks": np.full((40, 1), VOCAB, np.int32),
            "given": rng.normal(0, 9, (40, 1, VOCAB)).astype(np.float32),
            **dict.fromkeys(
                ("input_ids", "position_ids", "last_accepted_output_tokens"),
                np.zeros((40, 1), np.int64),
            ),
            "random_numbers": np.ones((40, VOCAB), np.float32),  # which float16 makes of some
            "token_bitmasks": allowed,
            **{name: np.zeros((40, VOCAB), bool) for name in sampler._BUFFERS},
        },
    )
    assert allowed[np.arange(40), token.ravel()].all()


# --- packages -------------------------------------------------------------------------------------
def test_a_package_draws_its_tokens(
    prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    source, folder = prepare(
        "llama",
        ctx_len=48,
        prefill_seq_len=8,
        full_batch_size=3,
        include_sampler=True,
        include_guided_decoding=True,
        return_pdfs=True,
        max_top_k_ids=64,
    )
    manifest = emulated(folder)
    drawn = [check for check in manifest["validation"] if check["metric"] == "drawn_tokens"]
    assert {one["stage"] for one in drawn} >= {"prefill", "decode", "continuous_batching"}
    assert any("canary" in one for one in drawn)
    (program,) = manifest["programs"]
    assert [output["name"] for output in program["outputs"]] == ["next_tokens", "probs"]
    kept = [state for state in program["states"] if state["kind"] == "penalty"]
    assert [(one["dtype"], one["axes"][0]) for one in kept] == [("bool", "full_batch_size")] * 2
    types = {one["name"]: (one["dtype"], one["shape"]) for one in program["inputs"]}
    assert types["top_ks"] == ("int32", ["batch_size", 1])
    assert types["random_numbers"] == ("float32", ["batch_size", 64])
    assert types["last_accepted_output_tokens"] == ("int64", ["batch_size", "seq_len"])

    session = open_session(adopt(folder, compiled(folder, tmp_path), Store()))
    assert isinstance(session, TextGenerationSession)
    texts = [[int(7 * at * (row + 2) % 250) + 3 for at in range(9 + 4 * row)] for row in range(3)]
    prompts = [*texts, texts[0][:5], texts[1][:1]]
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager").eval()
    for prompt, answer in zip(prompts, greedy(session, prompts), strict=True):
        after = torch.tensor(hugging_face(model, [*prompt, *answer])[len(prompt) - 1 : -1])
        chosen = after.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (after.max(1).values - chosen).max() <= 0.01 * after.std()  # half precision

    requested = Sampling(temperature=1.5, top_p=0.95, repetition_penalty=1.2, seed=4, logprobs=2)
    alone = [session.generate([text], generation_len=6, sampling=requested)[0] for text in prompts]
    assert session.generate(prompts, generation_len=6, sampling=requested) == alone
    other = dataclasses.replace(requested, seed=5)
    assert session.generate(prompts, generation_len=6, sampling=other) != alone
    for answer in alone:
        assert answer.logprobs is not None
        for one in answer.logprobs:
            assert -20 < one.logprob <= one.top[0][1] <= 0
            assert one.token_id in answer.token_ids
    form = Grammar.regex("[ab]{3}")
    hot = Sampling(temperature=5, seed=1)
    for one in session.generate(prompts, sampling=hot, grammar=form, generation_len=9):
        assert re.fullmatch("[ab]{3}", one.text)
        assert one.finish_reason in ("stop", "eos")
    some = dataclasses.replace(hot, allowed_token_ids=(5, 9, 70))
    for one in session.generate(prompts, sampling=some, generation_len=6, ignore_eos=True):
        assert {*one.token_ids} <= {5, 9, 70}
    with pytest.raises(GenerationError, match="allowed_token_ids exclude every next token"):
        session.generate(prompts[:1], sampling=some, grammar=form)
    with pytest.raises(GenerationError, match="frequency_penalty 1, which it cannot count"):
        session.request([1], sampling=Sampling(frequency_penalty=1))
    with pytest.raises(GenerationError, match=r"top_k 65; expected at most 64, or 0"):
        session.request([1], sampling=Sampling(top_k=65))
    with pytest.raises(GenerationError, match=r"no logits; expected these for a text"):
        session.decoder.require_logits("a text")


def greedy(session: TextGenerationSession, prompts: list[list[int]]) -> list[list[int]]:
    """Return answers of requests that share the rows, which are those of each by itself."""
    alone = [session.generate([prompt], generation_len=6)[0].token_ids for prompt in prompts]
    together = session.generate(prompts, generation_len=6)
    assert [one.token_ids for one in together] == alone
    return alone


def test_sampling_beyond_the_program_is_refused_by_name() -> None:
    inputs = {
        name: Tensor(dtype=np.dtype(np.float32), shape=("batch_size", 1))
        for name in (*sampler._OF_ROWS, "last_accepted_output_tokens")
    }
    inputs["random_numbers"] = Tensor(dtype=np.dtype(np.float32), shape=("batch_size", 8))
    token = Tensor(dtype=np.dtype(np.int64), shape=("batch_size", 1, 1))
    axes = ("batch_size", VOCAB)
    state = State(name="past_presence_penalty_buffer", kind="penalty", layer=0, axes=axes)
    program: Any = SimpleNamespace(inputs=inputs, outputs={"next_tokens": token}, states=[state])
    device = DeviceSampler.of(program)
    assert device is not None
    assert (device.most, device.vocab_size) == (8, VOCAB)
    with pytest.raises(GenerationError) as caught:
        device.check(Sampling(logprobs=0), Grammar.regex("a"))
    lines = str(caught.value).splitlines()
    assert "logprobs 0, which it does not return" in lines[0]
    assert "--include-guided-decoding" in lines[1]
    device.check(Sampling(temperature=1, top_k=8, presence_penalty=1), None)
    with pytest.raises(GenerationError, match=r"drew token 40; expected 0 to 39\. It computes"):
        device.sampled({"next_tokens": np.full((1, 1, 1), VOCAB)}, 0)
    cold = device.given([None], np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64))
    assert cold["temperatures"].tolist() == [[0]]
    assert all(np.isfinite(np.log(-np.log(cold["random_numbers"].astype(np.float16)))).ravel())
    assert not math.isnan(cold["top_ps"][0, 0])


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--max-top-k-ids", "8"], "--max-top-k-ids is for --include-sampler, which is off"),
        (["--include-sampler", "--num-speculative-tokens", "3"], "one token a call, with nothing"),
        (["--include-sampler", "--prefill-only"], "for one program that runs prompts and decodes"),
        (["--include-sampler", "--max-top-k-ids", "999999"], "tokens. Choose at most"),
    ],
)
def test_a_plan_refuses_what_does_not_go_together(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "examples/tiny-llama", "--target", "qaic", "--ctx-len", "64", *flags]
    assert cli.main(argv) == 1
    assert problem in capsys.readouterr().err
