# SPDX-License-Identifier: Apache-2.0
"""Block attention: passages that are computed by themselves give what the paper's mask gives in transformers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from checkout import ROOT
from fixtures_serving import MODEL, post, running
from toy_decoder import ToyProgram

import qeff_zoo
from qeff_zoo.cli import main
from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, PrefixCacheOptions, Sampling, TextGenerationSession
from qeff_zoo.runtime.caches.rope_shift import Turn, _learn
from qeff_zoo.runtime.program import Memory
from qeff_zoo.targets.ort.session import OrtProgram

SYMBOLS = {"batch_size": "2", "ctx_len": str(parity.CTX_LEN)}
SIZES = [
    {"name": "Prefill", "symbols": {**SYMBOLS, "seq_len": "8"}},
    {"name": "Decode", "symbols": {**SYMBOLS, "seq_len": "1"}},
]
TOP = Sampling(logprobs=20)


def session_of(folder: Path, program: Any, **config: Any) -> TextGenerationSession:
    """Open a session without a package."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return TextGenerationSession(folder, program)


def of_tiny(name: str, folder: Path) -> TextGenerationSession:
    session = parity.subject(name).lowered("fp32")
    config = json.loads((parity.subject(name).folder / "checkpoint" / "config.json").read_text())
    return session_of(folder, OrtProgram(session, session.states, SIZES), **config)


def mask_of(lengths: Sequence[int]) -> torch.Tensor:
    """Make the paper's mask: each block sees itself, the last one everything."""
    allowed = torch.block_diag(*(torch.ones(length, length) for length in lengths)).bool()
    allowed[-lengths[-1] :] = True
    hidden = torch.finfo(torch.float32).min
    return torch.where(allowed.tril(), 0.0, hidden)[None, None]


def by_transformers(name: str, parts: Sequence[Sequence[int]], *, documents: bool) -> torch.Tensor:
    """Return the log-probabilities after the last token, by the unpatched model."""
    ids = torch.tensor([[token for part in parts for token in part]])
    mask = mask_of([len(part) for part in parts]) if documents else None
    positions = torch.arange(ids.shape[1])[None]
    model = parity.subject(name).hf
    logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[0, -1].log_softmax(-1)


def drawn(seed: int, *lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 250, length).tolist() for length in lengths]


# Pairs in halves; interleaved; some numbers of a head only.
@pytest.mark.parametrize("name", [parity.STATES["growing"], "cohere-base", "gpt_neox-base"])
@pytest.mark.sampled(2)
def test_answers_are_those_of_the_papers_mask(name: str, tmp_path: Path) -> None:
    session = of_tiny(name, tmp_path / "package")
    session.allow_documents()
    parts = drawn(0, 9, 5, 11, 6)
    for reused, order in ((0, [0, 1, 2]), (25, [2, 0, 1]), (14, [1, 0, 1])):
        requested = [*(parts[place] for place in order), parts[-1]]
        request = session.request(
            requested[-1], documents=requested[:-1], generation_len=1, sampling=TOP
        )
        (found,) = session.generate([request])
        assert found.reused_tokens == reused
        expected, plain = (
            by_transformers(name, requested, documents=documents) for documents in (True, False)
        )
        top = dict(found.logprobs[0].top)  # type: ignore[index]
        assert [expected[token].item() for token in top] == pytest.approx([*top.values()], abs=5e-5)
        assert max(abs(plain[token].item() - value) for token, value in top.items()) > 0.05


@pytest.fixture
def session(tmp_path: Path) -> TextGenerationSession:
    opened = of_tiny(parity.STATES["growing"], tmp_path / "package")
    opened.allow_documents()
    return opened


def test_requests_together_get_what_they_get_alone(session: TextGenerationSession) -> None:
    """Those with passages beside those without, in more rows than there are, by an engine too."""
    parts = drawn(1, 9, 5, 7, 3, 17)
    requests = [
        session.request(parts[3], documents=parts[:3], generation_len=6),
        session.request(parts[4], generation_len=6),
        session.request(parts[2], documents=[parts[0], parts[0]], generation_len=6),
        session.request(parts[3], documents=parts[2::-1], generation_len=6),
        session.request(parts[4], documents=parts[:1], generation_len=6),
    ]
    assert [request.documents for request in requests[:3]] == [(9, 5, 7), (), (9, 9)]
    alone = []
    for request in requests:
        session._prefixes.kept._kept.clear()
        session._prefixes.kept.used = 0
        alone += session.generate([request])
    assert [one.reused_tokens for one in alone] == [0] * 5
    for _ in range(2):
        assert session.generate(requests) == alone
    with Engine(session) as engine:
        assert [one.result(60) for one in engine.submit_together(requests)] == alone
    assert session.metrics is not None
    # All that is known: passages, and one block of 16 of the long prompt.
    assert session.metrics.reused_tokens == 21 + 16 + 9 + 21 + 9


def test_passages_are_computed_again_where_nothing_may_be_kept(tmp_path: Path) -> None:
    plain = of_tiny(parity.STATES["growing"], tmp_path / "package")
    none = TextGenerationSession(
        plain.folder, plain.decoder.program, prefixes=PrefixCacheOptions(bytes=0)
    )
    parts, answers = drawn(2, 9, 5, 4), []
    for one in (plain, none):
        one.allow_documents()
        request = one.request(parts[-1], documents=parts[:-1], generation_len=4, sampling=TOP)
        answers += [one.generate([request])[0] for _ in range(2)]
    assert answers == answers[:1] * 4
    assert [answer.reused_tokens for answer in answers] == [0, 14, 0, 0]


# --- how keys turn --------------------------------------------------------------------------------
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("size", "whole"), [(16, 16), (8, 16), (0, 16)])
def test_turning_is_learnt_from_keys(interleaved: bool, size: int, whole: int) -> None:
    frequencies = 10000.0 ** (-np.arange(size // 2) / max(size // 2, 1))
    turn = Turn(interleaved, frequencies)
    keys = np.random.default_rng(0).standard_normal((4, 2, whole)).astype(np.float32)
    recorded = {at: turn(keys, at) for at in (0, 1, 2, 4, 8, 16, 32, 64, 77)}
    found = _learn(recorded)
    assert found.frequencies == pytest.approx(frequencies, abs=1e-6)
    assert found.explains(recorded)
    np.testing.assert_allclose(found(turn(keys, 5), 40), turn(keys, 45), atol=1e-4)
    mixed = {**recorded, 77: turn(keys, 78)}
    assert found.explains(mixed) == (size == 0)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemma3_text-base", "it has window states"),
        ("qwen3-base", "see a window of the text alone"),  # by a mask on the whole cache
        ("qwen3_next-base", "it has growing and recurrent states|it has recurrent states"),
        ("falcon-alibi", "do not turn with the position"),
        ("gpt2-base", "does not turn with the position by plain RoPE"),
        ("deepseek_v2-base", "depends on more than a token and those before it|does not turn"),
    ],
)
@pytest.mark.sampled(3)
def test_models_whose_keys_do_not_turn_are_refused(name: str, problem: str, tmp_path: Path) -> None:
    session = of_tiny(name, tmp_path / "package")
    with pytest.raises(GenerationError, match=f"cannot combine documents: .*({problem})"):
        session.allow_documents()
    assert session.document_cache is None


def test_faults_of_config_or_states_are_refused_at_once(tmp_path: Path) -> None:
    program = of_tiny(parity.STATES["growing"], tmp_path / "one").decoder.program
    scaled = session_of(tmp_path / "two", program, text_config={"llama_4_scaling_beta": 0.1})
    with pytest.raises(GenerationError, match=r"scaled by their position \(llama_4_scaling_beta\)"):
        scaled.allow_documents()
    halves = session_of(tmp_path / "three", ToyProgram(1, 64, 8))
    halves.decoder.program.states = halves.decoder.program.states[:1]
    halves.decoder.program.memory = Memory({"past_key.0": np.zeros((1, 1, 64, 1), np.float16)})
    with pytest.raises(GenerationError, match="retains keys and values in float16"):
        halves.allow_documents()


# --- requests -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("documents", "error", "problem"),
    [
        ([[5] * 30, [6] * 9], ContextLengthError, "A prompt and its 2 documents have 42 tokens"),
        ([[5], []], GenerationError, r"The block \[\] has no tokens; expected at least one"),
        ([[5, 9999]], GenerationError, "Token id 9999 is not of this model"),
    ],
)
def test_invalid_documents_are_rejected(
    documents: Any, error: type[Exception], problem: str, session: TextGenerationSession
) -> None:
    with pytest.raises(error, match=problem):
        session.request([1, 2, 3], documents=documents)


def test_documents_require_block_attention(tmp_path: Path) -> None:
    plain = of_tiny(parity.STATES["growing"], tmp_path / "package")
    with pytest.raises(GenerationError, match=r"takes none; expected .* block_attention=True"):
        plain.request([1, 2], documents=[[3]])


def test_documents_begin_the_prompt_or_the_last_message(trained: Package) -> None:
    opened: Any = qeff_zoo.load(trained, threads=1, block_attention=True)
    documents = ["class socket", "class deque"]
    encode, tokenizer = opened.encode, opened.tokenizer
    text = opened.request("class Path.", documents=documents, generation_len=1)
    begun = [len(tokenizer.encode(""))] if tokenizer.encode("") else []
    assert [*text.documents] == [
        *begun, *(len(tokenizer.encode(document, special_tokens=False)) for document in documents),
    ]  # fmt: skip
    assert tokenizer.decode(text.prompt) == tokenizer.decode(
        encode("class socketclass dequeclass Path.")
    )
    chat = opened.request("Which?", documents=documents, generation_len=1, chat=True)
    whole = opened.encode_chat([{"role": "user", "content": "class socketclass dequeWhich?"}])
    assert tokenizer.decode(chat.prompt) == tokenizer.decode(whole)
    assert len(chat.documents) == 3
    for message in ({"role": "user", "content": None}, {"role": "user"}):
        parts = opened.encode_parts([message], documents)
        empty = opened.encode_parts([{"role": "user", "content": ""}], documents)
        assert parts == empty
        assert "None" not in tokenizer.decode(parts[-1])
    ids = np.array([5, 6]), [np.array([7]), [8]]
    parts = opened.encode_parts(*ids)
    assert parts == [[7], [8], [5, 6]]
    assert {type(token) for part in parts for token in part} == {int}
    opened.chat_template.render = lambda *_: "something else"
    with pytest.raises(GenerationError, match="writes the last message 0 times as it is"):
        opened.request("Which?", documents=documents, chat=True)


def test_run_takes_documents(trained: Package, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", str(trained.path), "--generation-len", "4", "--json", "--prompt", "class Path."]
    assert main([*argv, "--document", "class socket", "--document", "class deque"]) == 0
    found = json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]
    opened: Any = qeff_zoo.load(trained, threads=1, block_attention=True)
    documents = ["class socket", "class deque"]
    assert (
        opened.generate(["class Path."], documents=documents, generation_len=4)[0].token_ids
        == found
    )


def test_requests_have_documents(trained: Package) -> None:
    opened: Any = qeff_zoo.load(trained, threads=1, block_attention=True)
    documents = ["class socket", "class deque"]
    expected = opened.generate(["class Path."], documents=documents, generation_len=4)[0].text

    lines = [{"role": "user", "content": "Which?"}]
    parts = opened.encode_parts(lines, documents)
    chat = opened.generate([parts[-1]], documents=parts[:-1], generation_len=4)[0].text

    def request(**body: Any) -> tuple[int, Any]:
        whole = {"model": MODEL, "max_tokens": 4, "temperature": 0, **body}
        path = "chat/completions" if "messages" in body else "completions"
        return post(url, path, json.dumps(whole).encode())

    with Engine(opened) as engine, running(engine) as url:
        as_ids = [opened.tokenizer.encode(document, special_tokens=False) for document in documents]
        for given in (documents, as_ids):
            status, answer = request(prompt="class Path.", documents=given)
            assert (status, answer["choices"][0]["text"]) == (200, expected)
        status, answer = request(messages=lines, documents=documents)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, chat)
        status, answer = request(prompt="a", documents=["word " * 400])
        assert (status, answer["error"]["param"]) == (400, "documents")
        assert answer["error"]["code"] == "context_length_exceeded"
        opened.document_cache = None
        status, answer = request(prompt="a", documents=documents)
        assert (status, answer["error"]["param"]) == (400, "documents")


def test_the_guides_example_runs(
    trained: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (example,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
        if "block_attention=True" in text
    )
    monkeypatch.setattr(qeff_zoo, "build", lambda *_, **__: trained)
    exec(compile(example, "serving.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("0 of")
    assert int(second.split()[0]) > 10
