# SPDX-License-Identifier: Apache-2.0
"""Settings of generation_config.json: tokens, scores and refusals are those of transformers' `generate`."""

import itertools
import json
import random
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkout import TINY_LLAMA
from fixtures_builds import Models
from fixtures_runtime import PROMPTS as SHORT
from fixtures_runtime import reopen
from hypothesis import example, given, settings
from hypothesis import strategies as st

import qeff_zoo
from qeff_zoo.checkpoint.generation_settings import (
    FIELDS,
    RULES,
    UNCOMPUTED,
    WITHOUT_EFFECT,
    GenerationSettings,
    effective_of,
    problems,
)
from qeff_zoo.cli.description import describe
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import make_plan
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime import Engine, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding import logits_processors
from qeff_zoo.runtime.decoding.logits_processors import LogitsProcessors
from qeff_zoo.runtime.decoding.sampling import Sampler

VOCAB, ENDS = 24, [5, 6]


def test_every_field_of_transformers_is_computed_named_or_without_effect() -> None:
    fields = {*transformers.GenerationConfig().to_dict()}
    assert fields - FIELDS == {"_original_object_hash"} & fields
    assert not RULES.keys() & UNCOMPUTED.keys()
    assert not WITHOUT_EFFECT & (RULES.keys() | UNCOMPUTED.keys())


# --- scores: transformers' own list of processors for the same settings --------------------------------


class Reference(transformers.GenerationMixin):
    """Stand-in for a model, of which `generate` makes processors."""

    def __init__(self, encodes: bool) -> None:
        self.config = transformers.PretrainedConfig(is_encoder_decoder=encodes)

    def process(
        self, values: Mapping[str, Any], prompt: Sequence[int], source: Sequence[int], limit: int
    ) -> Any:
        """Return the processors of `generate` for settings, as a function of tokens and logits."""
        config = transformers.GenerationConfig(**values)
        defaults = config._get_default_generation_params()
        config.update(**defaults, defaults_only=True)
        ends = values.get("eos_token_id")
        config._eos_token_tensor = None if ends is None else torch.tensor(ends).reshape(-1)
        config.max_new_tokens = limit
        config = self._prepare_generated_length(
            config, True, values.get("min_length") is None, "input_ids", len(prompt), None
        )
        return self._get_logits_processor(
            config,
            input_ids_seq_length=len(prompt),
            encoder_input_ids=torch.tensor([source]),
            device="cpu",
            model_kwargs={},
        )


token = st.integers(0, VOCAB - 1)
tokens = st.lists(token, max_size=4)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "eos_token_id": st.sampled_from([5, ENDS, [5, 99]]),
    "sequence_bias": st.lists(
        st.tuples(st.lists(token, min_size=1, max_size=3), st.floats(-4, 4, width=32)),
        min_size=1,
        max_size=4,
    ).map(lambda pairs: [list(pair) for pair in pairs]),
    "encoder_repetition_penalty": st.floats(0.5, 3),
    "repetition_penalty": st.floats(0.5, 3),
    "no_repeat_ngram_size": st.integers(0, 4),
    "encoder_no_repeat_ngram_size": st.integers(0, 3),
    "bad_words_ids": st.lists(st.lists(token, max_size=3), min_size=1, max_size=4),
    "min_length": st.integers(0, 14),
    "min_new_tokens": st.integers(0, 6),
    "forced_bos_token_id": st.integers(0, 4),
    "forced_eos_token_id": st.sampled_from([5, [6, 5]]),
    "remove_invalid_values": st.booleans(),
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 4), st.floats(0.9, 1.6)).map(list),
    "suppress_tokens": st.lists(st.integers(-1, VOCAB + 9), max_size=5),
    "begin_suppress_tokens": st.lists(st.integers(-1, VOCAB + 9), max_size=5),
}
WARPERS: Mapping[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0.3, 2.5),
    "top_h": st.floats(0.05, 0.95),
    "top_k": st.integers(0, VOCAB + 3),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0.05, 1),
    "epsilon_cutoff": st.floats(0, 0.3),
    "eta_cutoff": st.floats(0, 0.3),
}


def some_of(choices: Mapping[str, Any], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Draw up to so many settings of some."""
    names = st.lists(st.sampled_from([*choices]), unique=True, max_size=most)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({one: choices[one] for one in chosen})
    )


def is_taken(values: Mapping[str, Any]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers.GenerationConfig(**values)
    except ValueError:
        return False
    return True


@settings(max_examples=150)
@given(
    values=some_of(VALUES, 4),
    encodes=st.booleans(),
    prompt=st.lists(token, min_size=1, max_size=7),
    written=st.lists(token, max_size=6),
    seed=st.integers(0, 99),
)
@example(  # an infinite logit that is excluded
    values={"min_length": 0, "bad_words_ids": [[3]], "remove_invalid_values": True},
    encodes=False,
    prompt=[0],
    written=[],
    seed=0,
)
def test_scores_are_those_of_transformers_in_its_order(
    values: dict[str, Any],
    encodes: bool,
    prompt: list[int],
    written: list[int],
    seed: int,
) -> None:
    """Any settings together, within a text, alone and beside an encoder."""
    values = {"eos_token_id": ENDS, **values}
    if [*problems(values, VOCAB)] or not is_taken(values):
        return  # see the refusals below
    source, limit = ([3, 9, 4, 9], 7) if encodes else (prompt, 7)
    process = Reference(encodes).process(values, prompt, source, limit)
    logits = np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)
    if values.get("remove_invalid_values"):
        logits[[2, 3, 4]] = np.nan, np.inf, -np.inf
    expected = process(torch.tensor([[*prompt, *written]]), torch.from_numpy(logits.copy())[None])
    complete, beside = Sampling().over(GenerationSettings.of(values))
    sampler = Sampler(
        complete, prompt, settings=beside, source=source if encodes else None, limit=limit
    )
    for one in written:
        sampler.take(one)
    found = sampler._processors(logits)
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=2e-6, atol=1e-6)
    if np.isfinite(found.max()):
        assert sampler.next(logits) == int(expected[0].argmax())


@settings(max_examples=150)
@given(
    values=some_of(WARPERS, 8),
    others=some_of(VALUES, 2),
    seed=st.integers(0, 99),
    spread=st.floats(0.1, 4),
)
def test_tokens_are_sampled_from_the_distribution_of_transformers(
    values: dict[str, Any], others: dict[str, Any], seed: int, spread: float
) -> None:
    values = {"eos_token_id": ENDS, "do_sample": True, **others, **values}
    if [*problems(values, VOCAB)] or not is_taken(values):
        return
    prompt = [3, 9]
    logits = np.random.default_rng(seed).normal(0, spread, VOCAB).astype(np.float32)
    process = Reference(False).process(values, prompt, prompt, 7)
    scores = process(torch.tensor([prompt]), torch.from_numpy(logits.copy())[None])[0]
    if not torch.isfinite(scores.max()):
        return
    expected = torch.softmax(scores.double(), -1).numpy()
    sampling, beside = Sampling().over(GenerationSettings.of(values))
    drawn = Sampler(sampling, prompt, settings=beside, limit=7).draw(logits)
    found = np.zeros(VOCAB)
    found[drawn.among] = drawn.shares
    np.testing.assert_allclose(found, expected, atol=2e-6)


# --- refusals: what `generate` refuses, and nothing else ----------------------------------------------

ODD: Mapping[str, Sequence[Any]] = {
    "suppress_tokens": [[], [99, -1], 5, "5", ["a"]],
    "begin_suppress_tokens": [[], [99], 5],
    "bad_words_ids": [[], [[]], [[3], [5]], [[5]], [3], [[99]], [[-1]], [["a"]], "3"],
    "sequence_bias": [
        [], {}, [[[3], 1]], [[[3], 1.0]], [[[3], -1.0], [[3], 2.0]], [[[99], 1.0]], [[[-1], 1.0]], [[[], 1.0]],
        {"3": 1.0},
    ],
    "no_repeat_ngram_size": [0, -1, 2, 2.5, "2"],
    "encoder_no_repeat_ngram_size": [0, -1, 2, 2.5],
    "repetition_penalty": [1, 1.0, 2, 2.0, 0.0, -1.0, "2"],
    "encoder_repetition_penalty": [1, 2, 2.0, 0.0],
    "min_length": [0, -1, 4, 4.5],
    "min_new_tokens": [0, 4],
    "max_new_tokens": [0, -1, 4],
    "forced_bos_token_id": [4, 99],
    "forced_eos_token_id": [4, [4, 3], 99, [99], -1],
    "exponential_decay_length_penalty": [[1, 1.5], [1], 3],
    "early_stopping": [True, "never", "soon"],
    "num_return_sequences": [1, 2],
}  # fmt: skip
SAMPLED: Mapping[str, Sequence[Any]] = {
    "temperature": [1, 1.0, 2, 0.0, -1.0, 0.5],
    "top_k": [0, 3, -1, 2.5],
    "top_p": [0.0, 1.0, 1.5, -0.5, 1],
    "min_p": [0.0, 0, 1, 1.5, -0.1],
    "top_h": [0.0, 0.5, 1, 1.5],
    "typical_p": [0.0, 1.0, 1, 1.5, -1.0, 0.5],
    "epsilon_cutoff": [0.0, 1.0, 1.5, -1.0, 0.1],
    "eta_cutoff": [0.0, 1.0, 0.1],
    "num_return_sequences": [2],
}
CASES = [
    *((name, value, samples) for name, some in ODD.items() for value in some for samples in (False,)),
    *((name, value, samples) for name, some in SAMPLED.items() for value in some for samples in (True, False)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "samples"), CASES, ids=str)
def test_values_that_generate_refuses_are_refused(name: str, value: Any, samples: bool) -> None:
    """Wrong types, empty lists, and tokens beyond the vocabulary."""
    values = {"eos_token_id": ENDS, "do_sample": samples, name: value}
    prompt, logits = [3], torch.linspace(-1, 1, VOCAB)[None]
    refused: Exception | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            process = Reference(True).process({**values, "max_new_tokens": 1}, prompt, [4], 1)
            transformers.GenerationConfig(**values)
            for text in (prompt, [3, 4]):
                process(torch.tensor([text]), logits.clone())
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        refused = error
    found = [*problems(values, VOCAB)]
    assert bool(found) == bool(refused), (found, refused)
    assert all(name in one and "Correct it" in one for one in found)


# --- files --------------------------------------------------------------------------------------------

PLAIN = {"model_type": "llama", "vocab_size": VOCAB, "eos_token_id": 6}
OLD = {"suppress_tokens": [7], "max_length": 40, "no_repeat_ngram_size": 3, "hidden_size": 8}
FILES: Mapping[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "both": (PLAIN | OLD, {"eos_token_id": [5], "min_length": 3, "top_k": None, "foreign": 4}),
    "config alone": (PLAIN | OLD, None),
    "of a decoder": ({"eos_token_id": None, "decoder": OLD | {"eos_token_id": 4}}, None),
    "of a text model": ({"bos_token_id": 9, "text_config": OLD | {"bos_token_id": 4}}, None),
    "old forced token": (PLAIN | {"force_bos_token_to_be_generated": True, "bos_token_id": 3}, None),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_values_of_files_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    config, generation = FILES[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = "config.json"
    if generation is not None:
        name = "generation_config.json"
        (tmp_path / name).write_text(json.dumps(generation))
    more = {} if generation is not None else {"_from_model_config": True}
    expected = transformers.GenerationConfig.from_pretrained(tmp_path, name, **more).to_dict()
    found = effective_of(tmp_path)
    for field in RULES:
        assert found.get(field) == expected[field], field


def test_end_tokens_default_to_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    assert effective_of(tmp_path)["eos_token_id"] == 6


# --- whole texts --------------------------------------------------------------------------------------

PROMPTS = ["class socket.", "Return the"]
TOKENS = 10


@pytest.fixture(scope="module")
def reference_output() -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_LLAMA, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def plain(alone: TextGenerationSession) -> list[list[int]]:
    bare = GenerationSettings()
    return [one.token_ids for one in alone.generate(PROMPTS, generation_len=TOKENS, settings=bare)]


def whole_texts(plain: list[list[int]]) -> dict[str, dict[str, Any]]:
    """Return settings that change these texts."""
    first, second = plain
    return {
        "suppress_tokens": {"suppress_tokens": [first[0], second[1]]},
        "begin_suppress_tokens": {"begin_suppress_tokens": [first[0], second[0]]},
        "long lists": {
            "suppress_tokens": [first[0], second[1], *range(5_000, 75_000)],
            "begin_suppress_tokens": [*range(0, 2_000, 2), *range(5_000, 75_000)],
        },
        "bad_words_ids": {"bad_words_ids": [[first[1]], second[:2], first[2:5]]},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
        "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
        "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
        "repetition_penalty": {"repetition_penalty": 2.5},
        "sequence_bias": {"sequence_bias": [[[first[0]], -9.0], [[second[0], 40], 30.0]]},
        "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": [first[2], second[1]]},
        "min_length": {"min_length": 10, "eos_token_id": [first[2], second[1]]},
        "decay": {"exponential_decay_length_penalty": [2, 3.0], "eos_token_id": [40]},
        "forced_eos_token_id": {"forced_eos_token_id": [41, 40], "eos_token_id": 40},
        "max_new_tokens": {"max_new_tokens": 5},
        "max_length": {"max_length": 9},
        "remove_invalid_values": {"remove_invalid_values": True},
        "greedy with limits": {"top_k": 3, "top_p": 0.5, "typical_p": 0.4, "temperature": 0.0},
        "ends": {"eos_token_id": [first[3], second[2], 99_999]},
    }


NAMES = [*whole_texts([[*range(TOKENS)]] * 2)]
PAIRS = random.Random(7).sample([*itertools.combinations(NAMES, 2)], 24)


def generated(model: Any, prompt: list[int], values: Mapping[str, Any]) -> list[int]:
    ids = torch.tensor([prompt])
    config = transformers.GenerationConfig(
        **{"pad_token_id": 0, "max_new_tokens": TOKENS, **values}
    )
    if "max_length" in values and "max_new_tokens" not in values:
        config.max_new_tokens = None
    model.generation_config = transformers.GenerationConfig()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return [int(one) for one in found[0, len(prompt) :]]


def test_requests_share_a_long_list_of_suppressed_tokens() -> None:
    """Logits are those of transformers' class; a token takes no time for each entry in Python."""
    size, random_ = 100_000, np.random.default_rng(0)
    tokens = random_.integers(-50, size + 500, 70_000).tolist()
    logits = random_.standard_normal(size).astype(np.float32)
    expected = transformers.SuppressTokensLogitsProcessor(tokens)(
        torch.tensor([[1]]), torch.from_numpy(logits)[None]
    )
    settings = GenerationSettings.of({"suppress_tokens": tokens})
    before = logits_processors._known_of_settings.cache_info().misses
    for _ in range(3):
        processors = LogitsProcessors(settings, Sampling(), [1])
        assert np.array_equal(processors(logits), expected[0].numpy())
    assert logits_processors._known_of_settings.cache_info().misses == before + 1


@pytest.mark.parametrize("names", [(name,) for name in NAMES] + PAIRS, ids="+".join)
@pytest.mark.sampled(8)
def test_texts_are_those_of_generate(
    names: tuple[str, ...],
    alone: TextGenerationSession,
    reference_output: Any,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two prompts share slots, whatever each has written."""
    known = whole_texts(plain)
    values: dict[str, Any] = {}
    for name in names:
        values |= known[name]
    chosen = GenerationSettings.of(values)
    monkeypatch.setattr(alone, "eos_token_ids", frozenset(chosen.eos_token_id))
    length = None if {"max_length", "max_new_tokens"} & values.keys() else TOKENS
    found = alone.generate(PROMPTS, generation_len=length, settings=chosen)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert one.token_ids == generated(reference_output, alone.encode(prompt), values)


def test_stop_strings_end_behind_the_token_that_completes_one(
    alone: TextGenerationSession, reference_output: Any, plain: list[list[int]]
) -> None:
    """Within tokens, over several, over the prompt's end, and as special tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_LLAMA)
    assert alone.tokenizer is not None
    text = alone.tokenizer.spelled(plain[0])
    prompt = alone.encode(PROMPTS[0])
    for stop in (text[2:6], text[1], PROMPTS[0][-2:] + text[0], text[-4:], "none of these"):
        model = reference_output
        model.generation_config = transformers.GenerationConfig()
        expected = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=TOKENS, pad_token_id=0,
            stop_strings=[stop], tokenizer=tokenizer,
        )[0, len(prompt) :].tolist()  # fmt: skip
        chosen = GenerationSettings.of({"stop_strings": stop})
        request = alone.request(PROMPTS[0], generation_len=TOKENS, settings=chosen, ignore_eos=True)
        (found,) = alone.generate([request])
        assert found.token_ids == expected, stop
        assert found.text == tokenizer.decode(expected, skip_special_tokens=True)
        if len(expected) < TOKENS:
            assert (found.finish_reason, found.stop_string) == ("stop", stop)


def test_processors_apply_however_tokens_are_computed(
    sessions: dict[str, TextGenerationSession], built: dict[str, Any]
) -> None:
    """In rows and slots, from the prefix cache, by drafts that are checked together, and by an engine."""
    single = sessions["one row"]
    prompts = [f"{one} and {one}" for one in SHORT]
    (first,) = single.generate(prompts[:1], generation_len=4)
    chosen = GenerationSettings.of(
        {
            "no_repeat_ngram_size": 6,
            "repetition_penalty": 1.02,
            "suppress_tokens": first.token_ids[:1],
            "min_new_tokens": 9,
            "eos_token_id": [*range(100)],
        }
    )
    expected = [one.token_ids for one in single.generate(prompts, settings=chosen)]
    drafts: Any = qeff_zoo.load(built["drafts"], threads=1, draft="lookup")
    for session in (sessions["slots"], sessions["rows"], drafts):
        answers = session.generate(prompts, settings=chosen)
        assert [answer.token_ids for answer in answers] == expected
    # Alone, a prompt waits for no other one's draft.
    alone = [drafts.generate([prompt], settings=chosen)[0] for prompt in prompts]
    assert [one.token_ids for one in alone] == expected
    assert sum(one.drafted_tokens for one in alone)
    drafts.settings = chosen
    with Engine(drafts) as engine:
        handles = [engine.submit(prompt) for prompt in prompts]
        assert [handle.result(60).token_ids for handle in handles] == expected


# --- what is given in place of the file ---------------------------------------------------------------


def test_given_parameters_replace_settings() -> None:
    values = {
        "do_sample": True, "temperature": 0.5, "top_p": 0.8, "repetition_penalty": 1.5, "min_new_tokens": 3,
        "bad_words_ids": [[3]], "suppress_tokens": [4],
    }  # fmt: skip
    settings = GenerationSettings.of(values)
    sampling, left = Sampling().over(settings)
    assert sampling == Sampling(temperature=0.5, top_k=50, top_p=0.8, repetition_penalty=1.5)
    assert left == settings
    given = Sampling(repetition_penalty=1.0, temperature=0, min_tokens=0, bad_words=())
    sampling, left = given.over(settings)
    assert (sampling.repetition_penalty, sampling.temperature, sampling.top_p) == (1, 0, 0.8)
    assert (left.min_new_tokens, left.bad_words_ids) == (None, ())
    assert left.suppress_tokens == (4,)
    changed = settings.updated(suppress_tokens=None, no_repeat_ngram_size=2)
    assert (changed.suppress_tokens, changed.no_repeat_ngram_size) == ((), 2)
    with pytest.raises(GenerationError, match="repetition_penalty is 2; "):
        settings.updated(repetition_penalty=2)
    with pytest.raises(GenerationError, match="no generation setting 'typical'"):
        settings.updated(typical=0.4)


# --- what a plan, an inspection and a command show ----------------------------------------------------

FILE = {
    "eos_token_id": 1, "suppress_tokens": [*range(40)], "num_beams": 4, "top_k": 20, "max_time": 3.0,
    "min_new_tokens": 2, "guidance_scale": 1, "prompt_lookup_num_tokens": 3,
}  # fmt: skip


@pytest.fixture
def edited(models: Models, tmp_path: Path) -> Path:
    """Give a checkpoint whose generation_config.json tests write."""
    return Path(shutil.copytree(models.llama, tmp_path / "edited"))


def write(folder: Path, **values: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


def test_a_plan_lists_settings_and_names_those_that_are_not_computed(edited: Path) -> None:
    write(edited, **FILE)
    with pytest.warns(UserWarning, match="which packages do not compute"):
        _, plan = make_plan(str(edited), Request())
    shown = {name: value["value"] for name, value in plan.explained().items()}
    assert shown["generation.min_new_tokens"] == "2"
    assert shown["generation.suppress_tokens"].endswith("(40 entries)")
    assert shown["generation.num_beams"] == "4 (not computed: beam search)"
    assert not {"generation.top_k", "generation.guidance_scale"} & shown.keys()
    (warning,) = plan.warnings
    assert "num_beams 4 (beam search), max_time 3.0 (a limit of seconds)" in warning


def test_a_plan_names_an_end_that_generate_has_not(edited: Path) -> None:
    config = json.loads((edited / "config.json").read_text())
    (edited / "config.json").write_text(json.dumps({**config, "eos_token_id": 1}))
    write(edited, do_sample=False)
    with pytest.warns(UserWarning, match="sets no eos_token_id"):
        make_plan(str(edited), Request())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bad_words_ids": []}, "bad_words_ids is \\[\\]; "),
        ({"sequence_bias": [[[99_999], 1.0]]}, "sequence_bias is 99999; .* tokens of 0 to"),
        ({"do_sample": True, "top_k": -1}, "top_k is -1; "),
        ({"suppress_tokens": [4], "forced_eos_token_id": 4}, "a token outside suppress_tokens"),
        ({"logits_processor": []}, "an argument of `generate`"),
    ],
)
def test_a_plan_refuses_what_generate_does(
    edited: Path, values: dict[str, Any], message: str
) -> None:
    write(edited, eos_token_id=1, **values)
    with pytest.raises(PlanError, match=message):
        make_plan(str(edited), Request())


def test_a_package_lists_its_settings(folder: Path) -> None:
    package = Package.open(folder)
    write(folder, **FILE)
    assert re.search("num_beams +4 .not computed: beam search", describe(package))
    assert "  min_new_tokens" in describe(package)
    (folder / "generation_config.json").write_text("damaged")
    assert "Generation settings" not in describe(package)


def test_a_session_ignores_the_file_on_request(folder: Path) -> None:
    """Settings that `generate` refuses are named, and may be ignored; tokens that end an output are kept."""
    write(folder, eos_token_id=7, repetition_penalty=2, suppress_tokens=[3])
    session: Any = reopen(folder)
    with pytest.raises(
        GenerationError, match=r"repetition_penalty is 2; .*\n.*--generation-config"
    ):
        session.request("or")
    session.ignore_generation_config()
    request = session.request("or", generation_len=2)
    assert request.settings == GenerationSettings(eos_token_id=(7,))
    assert request.sampling == Sampling()
