# SPDX-License-Identifier: Apache-2.0
"""Samplers of llama.cpp, compared with llama.cpp's own; typical_p, with transformers'."""

import ctypes
import json
from typing import Any

import llama_cpp
import numpy as np
import pytest
import torch
from fixtures_serving import PROMPT, post
from transformers.generation import TypicalLogitsWarper

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import Dry, Mirostat, Sampling, TextGenerationSession, Xtc
from qeff_zoo.runtime.decoding.logits_processors import TextSoFar
from qeff_zoo.runtime.decoding.sampling import Sampler

VOCAB = 40
_LIB = llama_cpp._LIB


class _Token(ctypes.Structure):  # struct llama_token_data
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Tokens(ctypes.Structure):  # struct llama_token_data_array
    _fields_ = (
        *(("data", ctypes.POINTER(_Token)), ("size", ctypes.c_size_t)),
        *(("selected", ctypes.c_int64), ("sorted", ctypes.c_bool)),
    )


class _Vector(ctypes.Structure):  # std::vector
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("begin", "end", "room"))


_DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "llama_sampler_init_xtc": (
        *(ctypes.c_float, ctypes.c_float, ctypes.c_size_t, ctypes.c_uint32),
    ),
    "llama_sampler_init_mirostat": (
        *(ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_float, ctypes.c_int32),
    ),
    "llama_sampler_init_mirostat_v2": (ctypes.c_uint32, ctypes.c_float, ctypes.c_float),
    _DRY: (*(ctypes.c_float, ctypes.c_float, ctypes.c_int, ctypes.c_int, ctypes.c_void_p),),
}
for _name, _arguments in _SIGNATURES.items():
    getattr(_LIB, _name).restype, getattr(_LIB, _name).argtypes = ctypes.c_void_p, _arguments
_LIB.llama_sampler_accept.argtypes = (ctypes.c_void_p, ctypes.c_int32)
_LIB.llama_sampler_apply.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Tokens))
_LIB.llama_sampler_free.argtypes = (ctypes.c_void_p,)


def applied(sampler: Any, logits: np.ndarray) -> tuple[dict[int, float], int, float]:
    """Apply llama.cpp's sampler; return the logits that are left by token, the chosen token and its probability."""
    room = (_Token * len(logits))(*((at, one, 0) for at, one in enumerate(logits.tolist())))
    array = _Tokens(room, len(logits), -1, False)
    _LIB.llama_sampler_apply(sampler, ctypes.byref(array))
    left = {array.data[at].id: array.data[at].logit for at in range(array.size)}
    chosen = array.data[array.selected] if array.selected >= 0 else _Token(-1, 0, 1)
    return left, chosen.id, chosen.p


def logits_of(seed: int, scale: float = 3) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(scale=scale, size=VOCAB)
    return np.asarray(drawn, np.float32)


def kept(sampler: Sampler, logits: np.ndarray) -> set[int]:
    return {*sampler._limited(logits)[0].tolist()}


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.3, 0.5, 0.6])
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_xtc_leaves_the_tokens_of_llama_cpp(probability: float, threshold: float) -> None:
    for seed in range(20):
        reference = _LIB.llama_sampler_init_xtc(probability, threshold, 0, 1)
        expected, _, _ = applied(reference, logits_of(seed))
        _LIB.llama_sampler_free(reference)
        xtc = Xtc(probability=probability, threshold=threshold)
        sampler = Sampler(Sampling(temperature=1, seed=1, xtc=xtc), ())
        assert kept(sampler, logits_of(seed)) == {*expected}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("tau", "eta"), [(5.0, 0.1), (1.5, 0.5), (0.5, 0.9)])
def test_mirostat_leaves_the_tokens_of_llama_cpp(version: int, tau: float, eta: float) -> None:
    """Over a whole text, in which each chosen token is llama.cpp's and moves the limit."""
    if version == 1:
        reference = _LIB.llama_sampler_init_mirostat(VOCAB, 1, tau, eta, 100)
    else:
        reference = _LIB.llama_sampler_init_mirostat_v2(1, tau, eta)
    mirostat = Mirostat(version=version, tau=tau, eta=eta)
    sampler = Sampler(Sampling(temperature=1, seed=1, top_k=1, mirostat=mirostat), ())
    sizes = set()
    for seed in range(40):
        expected, token, probability = applied(reference, logits_of(seed))
        tokens, shares = sampler._limited(logits_of(seed))
        assert {*tokens.tolist()} == {*expected}
        share = float(shares[tokens.tolist().index(token)] / shares.sum())
        assert share == pytest.approx(probability, rel=1e-5)
        assert sampler._surprise is not None
        sampler._surprise.observe(share)
        sizes.add(len(tokens))
    assert len(sizes) > 1
    _LIB.llama_sampler_free(reference)


def vector(values: list[list[int]]) -> tuple[_Vector, Any]:
    """Return a C++ vector of vectors, and what must stay alive with it."""
    rooms = [(ctypes.c_int32 * len(value))(*value) for value in values]
    inner = (_Vector * max(1, len(values)))()
    for at, room in enumerate(rooms):
        begin = ctypes.addressof(room)
        inner[at] = _Vector(begin, begin + ctypes.sizeof(room), begin + ctypes.sizeof(room))
    begin = ctypes.addressof(inner)
    end = begin + len(values) * ctypes.sizeof(_Vector)
    return _Vector(begin, end, end), (rooms, inner)


@pytest.mark.parametrize("breakers", [[], [[3]], [[3, 4], [5]]], ids=str)
@pytest.mark.parametrize(
    ("base", "allowed", "last_n"), [(1.75, 2, 200), (1.2, 1, 30), (3.0, 4, 200)]
)
def test_dry_lowers_the_logits_as_llama_cpp(
    base: float, allowed: int, last_n: int, breakers: list[list[int]]
) -> None:
    held, alive = vector(breakers)
    lowered = 0
    for seed in range(30):
        generator = np.random.default_rng(seed)
        text = generator.integers(0, 6, size=int(generator.integers(1, 60))).tolist()
        text += text[: seed % 20]  # a long repetition in some
        reference = getattr(_LIB, _DRY)(0.8, base, allowed, last_n, ctypes.addressof(held))
        for token in text:
            _LIB.llama_sampler_accept(reference, token)
        expected, _, _ = applied(reference, logits_of(seed))
        _LIB.llama_sampler_free(reference)
        by_head: dict[int, list[tuple[int, ...]]] = {}
        for head, *tail in breakers:
            by_head.setdefault(head, []).append(tuple(tail))
        dry = Dry(
            multiplier=0.8,
            base=base,
            allowed_length=allowed,
            last_n=last_n,
            sequence_breakers=(),
            breakers={head: tuple(tails) for head, tails in by_head.items()},
        )
        scores = logits_of(seed)
        dry(scores, TextSoFar(text))
        assert np.allclose(scores, [expected[at] for at in range(VOCAB)], rtol=1e-5, atol=1e-4)
        lowered += int((scores != logits_of(seed)).any())
    assert lowered > 5
    assert alive


@pytest.mark.parametrize("typical_p", [0.1, 0.5, 0.9, 0.99])
def test_typical_p_leaves_the_tokens_of_transformers(typical_p: float) -> None:
    for seed in range(20):
        logits = logits_of(seed)
        scores = TypicalLogitsWarper(mass=typical_p)(None, torch.from_numpy(logits)[None])[0]
        sampling, settings = Sampling(temperature=1, typical_p=typical_p).over(GenerationSettings())
        sampler = Sampler(sampling, (), settings=settings)
        assert kept(sampler, logits) == {*torch.isfinite(scores).nonzero()[:, 0].tolist()}


def test_breakers_are_tokens_whose_text_has_them(alone: TextGenerationSession) -> None:
    assert alone.tokenizer is not None
    dry = Dry(multiplier=1, sequence_breakers=("\n", "()")).resolved(alone.tokenizer)
    pieces = {token: alone.tokenizer.spelled([token]) for token in dry.breakers}
    assert all("\n" in text or "()" in text or text.endswith("(") for text in pieces.values())
    tails = {
        tail for token, text in pieces.items() if text.endswith("(") for tail in dry.breakers[token]
    }
    assert tuple(alone.tokenizer.encode(")", special_tokens=False)) in tails
    with pytest.raises(GenerationError, match="tokenizer"):
        Dry(multiplier=1).resolved(None)


def test_a_penalty_ends_a_repetition(alone: TextGenerationSession) -> None:
    assert alone.tokenizer is not None
    prompt = alone.tokenizer.encode(PROMPT)
    (usual,) = alone.generate([prompt], generation_len=1)
    repeated = [*prompt, *usual.token_ids, *prompt]
    dry = Dry(multiplier=100, allowed_length=1, sequence_breakers=())
    (found,) = alone.generate([repeated], generation_len=1, sampling=Sampling(dry=dry))
    assert found.token_ids[0] != usual.token_ids[0]


def test_a_server_has_the_names_of_llama_server(url: str, alone: TextGenerationSession) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1.2, "seed": 5}
    for given, parameters in (
        ({"typical_p": 0.3}, {"typical_p": 0.3}),
        ({"typ_p": 0.3}, {"typical_p": 0.3}),
        (
            {"xtc_probability": 1, "xtc_threshold": 0.02},
            {"xtc": Xtc(probability=1, threshold=0.02)},
        ),
        ({"mirostat": 2, "mirostat_tau": 1.0}, {"mirostat": Mirostat(version=2, tau=1.0)}),
        (
            {"dry_multiplier": 2, "dry_allowed_length": 1, "dry_sequence_breakers": []},
            {"dry": Dry(multiplier=2, allowed_length=1, sequence_breakers=())},
        ),
    ):
        status, found = post(url, "completions", json.dumps({**body, **given}).encode())
        sampling = Sampling(temperature=1.2, seed=5, **parameters)  # type: ignore[arg-type]
        (expected,) = alone.generate(PROMPT, generation_len=8, sampling=sampling)
        assert (status, found["choices"][0]["text"]) == (200, expected.text), given
    status, found = post(url, "completions", json.dumps({**body, "mirostat": 3}).encode())
    assert (status, found["error"]["param"]) == (400, "mirostat")
    root, options = url.removesuffix("/v1"), {"temperature": 1.2, "seed": 5, "num_predict": 8}
    ollama = {"prompt": PROMPT, "raw": True, "stream": False}
    options |= {"mirostat": 2, "mirostat_tau": 1.0}
    _, found = post(root, "api/generate", json.dumps({**ollama, "options": options}).encode())
    sampling = Sampling(temperature=1.2, seed=5, mirostat=Mirostat(version=2, tau=1.0))
    (expected,) = alone.generate(PROMPT, generation_len=8, sampling=sampling)
    assert found["response"] == expected.text


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Xtc(probability=2), "xtc_probability"),
        (lambda: Mirostat(version=3), "mirostat"),
        (lambda: Mirostat(version=2, tau=-1), "mirostat_tau"),
        (lambda: Dry(multiplier=1, base=1), "dry_base"),
        (lambda: Dry(multiplier=1, sequence_breakers=("",)), "dry_sequence_breakers"),
        (lambda: Sampling(typical_p=0), "typical_p"),
    ],
)
def test_values_out_of_range_are_refused(make: Any, name: str) -> None:
    with pytest.raises(GenerationError, match=f"Cannot sample with {name} "):
        make()
