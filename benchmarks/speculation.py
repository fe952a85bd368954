# SPDX-License-Identifier: Apache-2.0
"""Claim: drafts by lookup make texts that repeat at least 1.7 (records) to 2.5 (edits) times as fast, and slow no text.

A model of random weights writes prepared texts: each of its tokens is drawn as ever, and then the text's own is taken,
so that drafts are right where they would be for a model that writes these. Plain decoding and each way to draft take
turns in one session. A draft model's tokens are right with a chance, and its speed is compared with what that allows.
With --rows several texts are written beside each other, and the tokens of all are counted.
Judged is CPU time on one thread, since others on the machine disturb it less. Prints JSON.

    python benchmarks/speculation.py [--size 160m|1.2b] [--weights int4] [--target ort] [--tokens 600]
        [--repeat 1] [--rows 4] [--kinds prose] [--genai] [--peer PYTHON GGUF]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import genai_writer
import numpy as np
from measuring import machine
from random_llama import SIZES, make
from run import Contender, Engine

import qeff_zoo
from qeff_zoo.runtime import Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.sampling import Sampler
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.runtime.engine.speculation import costs as costs_module
from qeff_zoo.runtime.engine.speculation.costs import Costs, measure
from qeff_zoo.runtime.engine.speculation.draft_model import DraftModel
from qeff_zoo.runtime.engine.speculation.lookup import PromptLookup
from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: A prompt and what is written after it, as tokens.
_Text: TypeAlias = tuple[list[int], list[int]]
_HERE = Path(__file__).parent
_PACKAGES = ("qeff-zoo", "onnxruntime")
_MOST, _CTX_LEN = 15, 2048
_LEAST = {"code edits": 2.5, "records to JSON": 1.7, "prose": 0.97}
_CHANCE, _DRAFTED, _MODEL = (
    0.8,
    3,
    0.9,
)  # of the draft model, and the share of the bound that is asked for


class Replayed(Sampler):
    """Draws each token as ever, and then takes that of a text."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(Sampling(), ())
        self._text = iter(text)

    def next(self, logits: Any) -> int:
        super().next(logits)
        return next(self._text)


class ByChance:
    """A draft model that is right with a chance: it runs, and then says the text's tokens, or others.

    Args:
        model: What runs.
        tokens: Prompt and text.
    """

    def __init__(self, model: Any, tokens: Sequence[int]) -> None:
        self._model, self._tokens = model, tokens
        self._random = np.random.default_rng(0)

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int]:
        count = min(_DRAFTED, most)
        self._model.draft(self, tokens, count)
        right = self._tokens[len(tokens) : len(tokens) + count]
        return [one + int(self._random.random() >= _CHANCE) for one in right]

    def accepted(self, count: int) -> None:
        """Nothing is learnt."""


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=["160m", "1.2b"], default="1.2b")
    parser.add_argument("--weights", choices=["fp32", "int8", "int4"], default="int4")
    parser.add_argument("--target", choices=["ort", "openvino"], default="ort")
    parser.add_argument(
        "--tokens", type=int, default=600, metavar="N", help="of each text, at most"
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="turns of each")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="texts beside each other")
    parser.add_argument("--kinds", nargs="+", choices=[*_LEAST], default=[*_LEAST], help="of texts")
    parser.add_argument(
        "--peer", nargs=2, metavar=("PYTHON", "GGUF"), help="llama.cpp, and the same model for it"
    )
    parser.add_argument(
        "--genai", action="store_true", help="onnxruntime-genai, with the same graph and weights"
    )
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(_PACKAGES)
    # Its costs are measured by the clock that judges.
    clock: Any = SimpleNamespace(perf_counter=time.process_time)
    vars(costs_module)["time"] = clock
    package = _build(arguments, arguments.size, arguments.rows)
    session: Any = qeff_zoo.load(package, threads=1)
    costs = measure(session.decoder, _MOST)
    lookup = Speculation(most=_MOST, drafter=lambda _: PromptLookup(costs))
    ways: dict[str, Any] = {"plain": None, "lookup": lookup}
    asked = ("size", "weights", "target")
    answer = {"machine": facts, **{name: vars(arguments)[name] for name in asked}}
    for name, known in (("costs", costs.seconds), ("costs_of_rows", costs.together)):
        answer[name] = {size: round(value / costs.of(1), 3) for size, value in known.items()}
    if arguments.rows > 1:
        found = _beside(session, ways, arguments)
        _print({**answer, "rows": arguments.rows, **found})
        return
    if arguments.size != "160m":
        small = _build(arguments, "160m")
        drafts: Any = qeff_zoo.load(small, threads=1)
        model = DraftModel(drafts.decoder, session.decoder.vocab_size)
        costs = replace(costs, drafting=model.measure())
        ways["draft model"] = model
    found = _compare(session, ways, arguments)
    peers = {peer.name: _write_by(Engine(peer, 1), arguments) for peer in _peers(arguments)}
    limits = _judge(found, peers, costs)
    _print({**answer, "texts": found, "peers_cpu_s": peers, "limits": limits})


def _print(answer: dict[str, Any]) -> None:
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _build(arguments: argparse.Namespace, size: str, rows: int = 1, *, checks: bool = True) -> str:
    """Return the folder of a package that checks drafts, or of one that does not."""
    weights, target = arguments.weights, arguments.target
    kind = "speculation" if checks else "plain"
    folder = arguments.cache / "-".join([kind, size, weights, target, str(rows)])
    if not folder.is_dir():
        source = make(arguments.cache / f"llama-{size}-0", SIZES[size], 0)
        qeff_zoo.build(
            source,
            target=target,
            weights=weights,
            ctx_len=_CTX_LEN,
            num_speculative_tokens=(_MOST,) if checks else (),
            full_batch_size=rows if rows > 1 else None,
            validate=False,
            output=folder,
        )
    return str(folder)


def _compare(
    session: TextGenerationSession, ways: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return, by kind of text and way, medians of seconds, and how often drafts were right."""
    found: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for kind, prompt, text in _texts(arguments.kinds, arguments.tokens):
        turns: dict[str, list[dict[str, float]]] = defaultdict(list)
        for number in range(arguments.repeat):
            for name in [*ways][:: -1 if number % 2 else 1]:
                if name == "draft model" and len(found[kind][name]):
                    continue  # each of its texts is like another
                turns[name].append(_write(session, name, ways[name], [(prompt, text)]))
        for name, every in turns.items():
            medians = {key: statistics.median(one[key] for one in every) for key in every[0]}
            found[kind][name].append(medians)
        print(kind, {name: every[-1] for name, every in turns.items()}, file=sys.stderr)
    return {
        kind: {name: _sum(every) for name, every in ways_.items()} for kind, ways_ in found.items()
    }


def _peers(arguments: argparse.Namespace) -> Iterator[Contender]:
    """Yield who else writes the same texts, with drafts by lookup of its own."""
    if arguments.peer:
        python, model = arguments.peer
        name = "llama.cpp lookup"
        yield Contender(name=name, engine=name, model=model, python=python)
    if arguments.genai:
        package = Path(_build(arguments, arguments.size, checks=False))
        name = "onnxruntime-genai lookup"
        model = str(genai_writer.make(package, package.with_name(f"{package.name}-writer")))
        yield Contender(name=name, engine=name, model=model)


def _write_by(engine: Engine, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return, by kind of text and way, the seconds in which a peer writes the texts."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kind, prompt, text in _texts(arguments.kinds, arguments.tokens):
        for way, seconds in engine.turn([prompt, text], len(text))["decode_cpu_s"].items():
            found[kind][way] += seconds
        print(engine.name, kind, dict(found[kind]), file=sys.stderr)
    engine.close()
    return found


def _beside(
    session: TextGenerationSession, ways: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Write texts of one kind, and of several, beside each other; judge that drafts slow no text much."""
    by_kind: dict[str, list[_Text]] = defaultdict(list)
    for kind, *text in _texts(arguments.kinds, arguments.tokens):
        by_kind[kind].append((text[0], text[1]))
    mixed = [text for texts in zip(*by_kind.values(), strict=True) for text in texts]
    found: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for count in sorted({2, arguments.rows}):
        for kind, texts in {**by_kind, "mixed": mixed}.items():
            length = min(len(text) for _, text in texts[:count])  # all to the end
            asked = [(prompt, text[:length]) for prompt, text in texts[:count]]
            turns: dict[str, list[dict[str, float]]] = defaultdict(list)
            for number in range(arguments.repeat):
                for name in [*ways][:: -1 if number % 2 else 1]:
                    turns[name].append(_write(session, name, ways[name], asked))
            name = f"{count} beside each other, {kind}"
            found[name] = {way: _sum(every) for way, every in turns.items()}
            # Of the fastest turns: whatever else the machine does only adds.
            plain, lookup = (min(found[name][way]["each_cpu_s"]) for way in ways)
            ratio = plain / lookup
            limits[name] = {"value": round(ratio, 3), "at_least": 0.97, "within": ratio >= 0.97}
            print(name, limits[name], file=sys.stderr)
    return {"texts": found, "limits": limits}


def _texts(kinds: Sequence[str], most: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the kind of each text, the tokens of its prompt, and its own."""
    tokenizer = Tokenizer(_HERE.parent / "examples" / "tiny-llama")
    for case in json.loads((_HERE / "speculation_texts.json").read_text(encoding="utf-8")):
        if case["kind"] not in kinds:
            continue
        text = tokenizer.encode(case["answer"], special_tokens=False)[:most]
        yield case["kind"], tokenizer.encode(case["prompt"]), text


def _write(
    session: TextGenerationSession, name: str, way: Any, texts: Sequence[_Text]
) -> dict[str, float]:
    """Let the session write texts after their prompts; return what decoding took."""
    session.speculation = way
    if name == "draft model":
        ((prompt, text),) = texts
        chance = ByChance(way, [*prompt, *text])
        session.speculation = Speculation(most=_MOST, drafter=lambda _: chance)
    answers = []
    for prompt, text in texts:
        request = session.request(prompt, generation_len=len(text), ignore_eos=True)
        answers.append(session.answer(request))
        answers[-1]._sampler = Replayed(text)
    with session.exclusively() as scheduler:
        scheduler.submit(*answers)
        while not all(answer.token_ids for answer in answers):
            scheduler.step()
        before = sum(len(answer.token_ids) for answer in answers)
        cpu, wall = time.process_time(), time.perf_counter()
        while scheduler.step():
            pass
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert [answer.token_ids for answer in answers] == [text for _, text in texts]
    return {
        "tokens": sum(len(text) for _, text in texts) - before,
        "cpu_s": cpu,
        "wall_s": wall,
        "drafted": sum(answer.drafted_tokens for answer in answers),
        "accepted": sum(answer.accepted_tokens for answer in answers),
    }


def _sum(every: list[dict[str, float]]) -> dict[str, Any]:
    total = {name: round(sum(one[name] for one in every), 3) for name in every[0]}
    return {**total, "each_cpu_s": [round(one["cpu_s"], 3) for one in every]}


def _judge(
    found: dict[str, Any], peers: dict[str, dict[str, dict[str, float]]], costs: Costs
) -> dict[str, Any]:
    """Compare speeds with what is asked for."""
    limits: dict[str, Any] = {}

    def limit(name: str, value: float, least: float, **more: float) -> None:
        limits[name] = {
            "value": round(value, 3),
            "at_least": least,
            "within": value >= least,
            **more,
        }

    for kind, ways in found.items():
        plain = ways["plain"]
        limit(kind, plain["cpu_s"] / ways["lookup"]["cpu_s"], _LEAST[kind])
        each = [
            a / b for a, b in zip(plain["each_cpu_s"], ways["lookup"]["each_cpu_s"], strict=True)
        ]
        limit(f"{kind}, the worst text", min(each), 0.97)
        for peer, kinds in peers.items():
            least = min(seconds for way, seconds in kinds[kind].items() if way != "plain")
            limit(f"{kind}, to {peer}", least / ways["lookup"]["cpu_s"], 1.0)
        if "draft model" in ways:
            drafted = ways["draft model"]
            calls = drafted["drafted"] / _DRAFTED
            tokens = 1 + drafted["accepted"] / calls
            spent = costs.of(_DRAFTED + 1) + _DRAFTED * costs.drafting
            bound = tokens / spent * costs.of(1)
            of_first = sum(plain["each_cpu_s"][: len(drafted["each_cpu_s"])])
            reached = of_first / drafted["cpu_s"]
            limit(f"{kind}, draft model", reached / bound, _MODEL, ratio=round(reached, 3))
    return limits


if __name__ == "__main__":
    main()
