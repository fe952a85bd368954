# SPDX-License-Identifier: Apache-2.0
"""Configs that nobody wrote, around every recipe's tiny ones: drawn, and judged against unmodified Hugging Face.

A draw changes a field or a few of a tiny config. transformers says whether that is a model; then it is planned, traced,
lowered and run with uneven prompts, padded chunks and token by token, and must answer as Hugging Face does. What ought
to be refused must be refused with a reason. A draw is ambiguous where Hugging Face, with a cache of its own, does not
answer as without one, or otherwise where the last of equals is chosen: keys or experts of exactly equal scores are
chosen in any order.
"""

import copy
import inspect
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import parity
import torch
from parity import Array, Subject
from torch.overrides import TorchFunctionMode

from qeff_zoo import contract
from qeff_zoo.errors import CheckpointError, PlanError, UnsupportedModelError
from qeff_zoo.export import loader
from qeff_zoo.plan import resolve
from qeff_zoo.registry import find_recipe

Outcome: TypeAlias = Literal[
    "agrees", "refused", "not a model", "ambiguous", "DISAGREES", "CRASHED"
]
FAULTS: frozenset[Outcome] = frozenset({"DISAGREES", "CRASHED"})

#: Errors that explain: they name what of the checkpoint cannot be served.
_EXPLAINED = (PlanError, UnsupportedModelError, CheckpointError)
#: Fields that no answer depends on, or without which the tokens drawn here are no tokens of the model.
_FIXED = {
    *("architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "vocab_size"),
    *("id2label", "label2id", "num_labels", "problem_type", "return_dict", "use_cache"),
    *("is_encoder_decoder", "chunk_size_feed_forward", "_name_or_path", "quantization_config"),
    *("initializer_range", "init_std", "is_decoder", "attn_implementation", "pretraining_tp"),
}
_FIXED_PARTS = (
    "dropout",
    "init_variance",
    "_token_id",
    "pdrop",
    "output_",
    "aux_loss",
    "layerdrop",
    "jitter",
)
_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_pytorch_tanh", "relu2")
_UNTOLD = (0, 1, 2, 7, 0.5, True, False)  # for a field that is None
#: Parts of names of fields that say how a model is put together; drawn twice as often as others.
_STRUCTURE = (
    "layer",
    "expert",
    "rank",
    "window",
    "step",
    "interval",
    "group",
    "types",
    "rope",
    "use_",
)
_MORE_FIELDS = 0.25  # how often another field is changed as well
_SECONDS = 120  # of the processor, for one draw
_LENGTHS = [(9, 5), (1,), (17, 17, 4)]
#: A choice between two experts that lie closer than float32's noise differs on few tokens; a fault does on most.
_SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A config around a tiny one, and how it is built.

    Args:
        recipe: Its `model_type`.
        tiny: Name of the recipe's tiny config.
        changes: Fields and their new values; a dictionary replaces the whole field.
        task: Hub pipeline tag.
        storage: Of matrices: one of `WEIGHTS`.
    """

    recipe: str
    tiny: str = "base"
    changes: Mapping[str, Any]
    task: str = "text-generation"
    storage: str = "fp32"

    @property
    def config(self) -> dict[str, Any]:
        """What config.json would say."""
        recipe = find_recipe(self.recipe)
        (tiny,) = (tiny for tiny in recipe.tiny if tiny.name == self.tiny)
        return {"model_type": recipe.model_type, **copy.deepcopy(tiny.config), **self.changes}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a draw.

    Args:
        outcome: In a word.
        why: The reason of a refusal or a fault.
        seconds: Wall time.
    """

    outcome: Outcome
    why: str = ""
    seconds: float = field(default=0.0, compare=False)


# --- drawing -------------------------------------------------------------------------------------


def draw(seed: int, number: int, recipes: Sequence[str]) -> Draw:
    """Draw one config; the same for the same arguments, and recipes in turn."""
    order = list(recipes)
    random.Random(f"{seed}").shuffle(order)
    chance = random.Random(f"{seed}/{number}")
    recipe = find_recipe(order[number % len(order)])
    tiny = chance.choice(recipe.tiny)
    known = _fields({"model_type": recipe.model_type, **tiny.config})
    changes: dict[str, Any] = {}
    while known and (not changes or chance.random() < _MORE_FIELDS):
        telling = [name for name in known if any(part in name for part in _STRUCTURE)]
        name = chance.choice([*known, *telling, *(name for name in tiny.config if name in known)])
        changes[name] = _another(name, known[name], chance)
    embeds = "feature-extraction" in contract.tasks_of(recipe) and chance.random() < 0.15
    return Draw(
        recipe=recipe.model_type,
        tiny=tiny.name,
        changes=changes,
        task="feature-extraction" if embeds else recipe.task,
        storage="int4" if chance.random() < 0.3 else "fp32",
    )


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every field that may be drawn, with its value."""
    full = {**parity.parse(config).to_dict(), **config}
    return {
        name: value
        for name, value in sorted(full.items())
        if name not in _FIXED and not any(part in name for part in _FIXED_PARTS)
    }


def _another(name: str, value: Any, chance: random.Random) -> Any:
    """Return another value of a field."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value, key=str))
        kept = {other: item for other, item in value.items() if other != key}
        return kept if chance.random() < 0.3 else {**kept, key: _another(key, value[key], chance)}
    if isinstance(value, list | tuple) and value and chance.random() < 0.9:
        return _other_list(name, list(value), chance)
    others: Sequence[Any] = _UNTOLD if value is None else (None,)
    if isinstance(value, bool):
        others = (not value, not value, None)
    elif isinstance(value, int):
        divisors = [part for part in range(2, abs(value)) if value % part == 0]
        others = (
            0,
            1,
            None,
            value * 2,
            value - 1,
            value + 1,
            *chance.sample(divisors, k=min(3, len(divisors))),
        )
    elif isinstance(value, float):
        others = (0.0, 1.0, None, value / 2, value * 2)
    elif isinstance(value, str):
        others = _ACTIVATIONS if "act" in name else (None,)
    return chance.choice(
        [other for other in others if other != value or type(other) is not type(value)]
    )


def _other_list(name: str, values: list[Any], chance: random.Random) -> list[Any]:
    at = chance.randrange(len(values))
    mixed = chance.sample(values, k=len(values))
    changed = [*values[:at], _another(name, values[at], chance), *values[at + 1 :]]
    return chance.choice([[values[at]] * len(values), values[::-1], mixed, changed, []])


# --- judging -------------------------------------------------------------------------------------


def judge(drawn: Draw, *, traced: bool = True) -> Verdict:
    """Build what was drawn and compare it with Hugging Face.

    Args:
        drawn: The config.
        traced: Go on where the transforms have their counts: trace, lower, run and compare.
    """
    begun = time.perf_counter()
    outcome, why = _judge(drawn, traced=traced)
    return Verdict(outcome=outcome, why=why, seconds=round(time.perf_counter() - begun, 1))


def _judge(drawn: Draw, *, traced: bool) -> tuple[Outcome, str]:
    recipe = contract.for_task(find_recipe(drawn.recipe), drawn.task)
    subject = None
    with warnings.catch_warnings(), _limited(_SECONDS):
        warnings.simplefilter("ignore")
        try:
            subject = Subject(drawn.config, recipe)
            answers = _answers(subject, subject.hf, 0)
            rows = np.concatenate([answer.reshape(-1, answer.shape[-1]) for answer in answers])
            if not np.isfinite(rows).all():
                return "not a model", "Its answers are not finite."
            if (rows == rows[0]).all():
                return "not a model", "It answers the same whatever it reads."
        except Exception as error:
            _remove(subject)
            return "not a model", _in_a_line(error)
        try:
            resolve.check(subject.checkpoint, resolve.Request(task=drawn.task))
            loader.load_meta(subject.config, recipe)
            if not traced:
                return "agrees", "Not traced."
            away = sorted(_away(subject, drawn.storage, seed) for seed in _SEEDS)
            doubts = away[1] > 1 and _contradicts_itself(subject)
        except _EXPLAINED as error:
            return "refused", _in_a_line(error)
        except Exception as error:
            return "CRASHED", _in_a_line(error)
        finally:
            _remove(subject)
    how = f"{away[0]:.2g}, {away[1]:.2g} and {away[2]:.2g} times the tolerance"
    return ("agrees" if away[1] <= 1 else "ambiguous" if doubts else "DISAGREES"), how


def _in_a_line(error: BaseException) -> str:
    """Name an error, and the first one that it came of."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    causes = [error] if first is error else [error, first]
    return " <- ".join(
        f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}" for cause in causes
    )


def _remove(subject: Subject | None) -> None:
    if subject is not None:
        shutil.rmtree(subject.folder, ignore_errors=True)


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"It took more than {seconds} seconds of the processor.")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _answers(subject: Subject, model: Any, seed: int) -> list[Array]:
    """Ask Hugging Face: logits of every position and of a text of one token, or token states of each text by itself."""
    if subject.recipe.task == "text-generation":
        ids = parity.tokens(seed)
        return [parity.reference(model, ids), parity.reference(model, ids[:1, :1])]
    ids = parity.tokens(seed, max(map(len, _LENGTHS)), max(map(max, _LENGTHS)))
    return [_embedded(model, ids, lengths) for lengths in _LENGTHS]


def _away(subject: Subject, storage: str, seed: int) -> float:
    """Return how far the lowered graph is from Hugging Face, in times of what rounding explains."""
    model = subject.hf if storage == "fp32" else subject.rounded(storage, _variant(subject))
    expected = _answers(subject, model, seed)
    wide = _answers(subject, parity.in_float64(model), seed)
    noise = max(float(np.abs(one - two).max()) for one, two in zip(expected, wide, strict=True))
    least = 1e-6 * max(float(np.abs(one).max()) for one in expected)  # answers that hardly round
    compare = _generated if subject.recipe.task == "text-generation" else _read
    return compare(subject, storage, seed, expected) / (
        parity.TOLERANCE[storage] * max(noise, least, 1e-12)
    )


def _contradicts_itself(subject: Subject) -> bool:
    """Return whether Hugging Face's model answers otherwise where it may: token by token, or with other ties."""
    model = subject.hf
    (whole, *_), wide = _answers(subject, model, 0), _answers(subject, parity.in_float64(model), 0)
    noise = float(np.abs(whole - wide[0]).max())
    with _LastOfEquals():
        others = [_answers(subject, model, 0)[0]]
    if subject.recipe.task == "text-generation":
        others += _token_by_token(model, parity.tokens())
    return any(float(np.abs(other - whole).max()) > parity.DROPPED * noise for other in others)


class _LastOfEquals(TorchFunctionMode):
    """Lets `topk` choose the last of equal scores, not the first; in what order they come is open."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in (torch.topk, torch.Tensor.topk):
            return func(*args, **(kwargs or {}))
        scores, *rest = args
        given = dict(zip(("k", "dim"), rest, strict=False), **kwargs or {})
        dim = given.get("dim", -1)
        found = func(scores.flip(dim), **given)
        return torch.return_types.topk((found.values, scores.shape[dim] - 1 - found.indices))


def _token_by_token(model: Any, ids: Array) -> list[Array]:
    """Compute the logits of every position with transformers' own cache; nothing for a model without one."""
    cache, found = None, []
    known = inspect.signature(model.forward).parameters
    name = "cache_params" if "cache_params" in known else "past_key_values"
    for position in range(ids.shape[1]):
        given = {} if cache is None else {name: cache}
        token = torch.from_numpy(ids[:, position : position + 1])
        with torch.no_grad():
            output = model(input_ids=token, use_cache=True, **given)
        cache = output.get(name)
        if cache is None:
            return []
        found.append(output.logits[:, -1].double().numpy())
    return [np.stack(found, 1)]


def _generated(subject: Subject, storage: str, seed: int, expected: Sequence[Array]) -> float:
    def start(**sizes: int) -> parity.Steps:
        return subject.steps(storage, **sizes)

    scenarios: tuple[Callable[..., Any], ...] = parity.chunked, parity.padded_batch, parity.decode
    ids = parity.tokens(seed)
    return max(parity.distance(scenario, start, ids, expected[0]) for scenario in scenarios)


def _read(subject: Subject, storage: str, seed: int, expected: Sequence[Array]) -> float:
    ids = parity.tokens(seed, max(map(len, _LENGTHS)), max(map(max, _LENGTHS)))
    found = []
    for lengths, wanted in zip(_LENGTHS, expected, strict=True):
        given = ids[: len(lengths), : max(lengths)]
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
        got = parity.embed(subject, storage, _variant(subject), given, mask)
        found.append(float(np.abs(got - wanted).max()))
    return max(found)


def _variant(subject: Subject) -> parity.Variant:
    if subject.recipe.task == "text-generation":
        return parity.PLAIN
    return (("pooling", "mean"), ("normalize", False))


def _embedded(model: Any, ids: Array, lengths: tuple[int, ...]) -> Array:
    """Compute every text by itself, without padding, and average its states."""
    rows = []
    for row, length in zip(ids, lengths, strict=False):
        tokens = torch.from_numpy(row[None, :length])
        with torch.no_grad():
            output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        rows.append(output.last_hidden_state[0].double().numpy().mean(0))
    return np.stack(rows)
