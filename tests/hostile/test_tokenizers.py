# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of strangers: rules by which a text grows without end, and patterns that give up on a text."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from fixtures_serving import MODEL, post
from published_tokenizers import FORMS
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from qeff_zoo.checkpoint import processors as processors_of_checkpoints
from qeff_zoo.checkpoint import text
from qeff_zoo.checkpoint.text_growth import MOST, excess, growth
from qeff_zoo.cli import main
from qeff_zoo.errors import CheckpointError, GenerationError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.tokenizer import Tokenizer as Reading

GIVING_UP, GIVEN_UP = Regex(r"(a+)+b$"), "a" * 40
TWICE = normalizers.Replace("a", "aa")
CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"a" * 2000 + b"\0").decode()


def made(**parts: Any) -> Tokenizer:
    """Return a tokenizer of few words with some rules."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def written(folder: Path, tokenizer: Tokenizer) -> Path:
    """Write a tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


#: Twelve times here, so that a process that does take them lives on; strangers write them forty times.
GROWING = {
    "normalizer": made(normalizer=normalizers.Sequence([TWICE] * 12)),
    "pattern": made(normalizer=normalizers.Sequence([normalizers.Replace(Regex("b*"), "bb")] * 12)),
    "forms": made(
        normalizer=normalizers.Sequence([normalizers.Replace(" ", "ﷺ"), normalizers.NFKC()] * 3)
    ),
    "bytes": made(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 12)),
    "decoder": made(decoder=decoders.Sequence([decoders.Replace("a", "aa")] * 12)),
    "template": made(
        post_processor=processors.Sequence(
            [processors.TemplateProcessing("$A $A", "$A $B", [])] * 12
        )
    ),
    "one text": made(normalizer=normalizers.Replace("a", "b" * 2000)),
    "a beginning": made(normalizer=normalizers.Prepend("b" * 2000)),
}


@pytest.mark.parametrize("kind", GROWING)
def test_a_text_that_grows_without_end_is_refused(kind: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "strange", GROWING[kind])
    problem = "may make more than 1,000 characters of one"
    with pytest.raises(CheckpointError, match=f"the tokenizer of 'strange': its .* {problem}"):
        text.load(folder, "strange")
    with pytest.raises(CheckpointError, match=problem):
        processors_of_checkpoints.load(folder)
    with pytest.raises(PackageError, match=f"Cannot read .*: its .* {problem}"):
        Reading(folder)


def test_so_is_a_table_of_characters_with_long_texts() -> None:
    rule = {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}
    assert growth({"normalizer": rule})["normalizer"] > MOST


def test_so_are_added_tokens_that_grow() -> None:
    strange = made(normalizer=normalizers.Replace("a", "b" * 900))
    strange.add_tokens([AddedToken("a" * 1000, normalized=True)])
    content = json.loads(strange.to_str())
    assert excess(json.dumps(content)) == ""
    content["added_tokens"] *= 200
    assert excess(json.dumps(content)).startswith("its added tokens may have more than 100,000,000")


@pytest.mark.parametrize("name", ["normalizer", r"norm\u0061lizer"])
def test_rules_behind_the_vocabulary_count(name: str) -> None:
    content = json.loads(made(normalizer=normalizers.Replace("a", "b" * 2000)).to_str())
    rule = content.pop("normalizer")
    text = f'{json.dumps(content)[:-1]}, "{name}" :\n{json.dumps(rule)}}}'
    assert (
        excess(text)
        == excess(text.encode())
        == "its normalizer may make more than 1,000 characters of one"
    )


def test_a_vocabulary_is_not_parsed_for_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one takes half a second each time: also where its tokens are words that JSON has around it."""
    words = ("model", "normalizer", "decoder", "added_tokens", "a", "\n", '"', "\\")
    vocab = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="a")
    written = Tokenizer(vocab).to_str()
    parsed, loads = list[Any](), json.loads
    monkeypatch.setattr(
        json, "loads", lambda *given, **more: parsed.append(loads(*given, **more)) or parsed[-1]
    )
    assert excess(written) == ""
    assert [one["model"] for one in parsed] == [0]


@pytest.mark.parametrize("form", FORMS)
def test_published_tokenizers_are_far_from_the_bound(form: str) -> None:
    tokenizer = FORMS[form]().tokenizer
    assert max(growth(tokenizer or {}).values()) <= 100


def test_no_text_grows_beyond_the_bound() -> None:
    rng, grown = random.Random(40), 0
    for _ in range(400):
        rules = [
            rng.choice(
                [
                    normalizers.Replace(*("".join(rng.choices("ab ", k=rng.randint(1, 3))) for _ in "12")),
                    normalizers.Replace(Regex(rng.choice(["a+", "[ab]", " +"])), rng.choice(["", "b", "ab "])),
                    *(normalizers.Prepend("ab"), normalizers.NFKC(), normalizers.NFD()),
                    *(normalizers.Lowercase(), normalizers.ByteLevel()),
                ]
            )
            for _ in range(rng.randint(1, 4))
        ]  # fmt: skip
        tokenizer = made(normalizer=normalizers.Sequence(rules))
        most = growth(json.loads(tokenizer.to_str()))["normalizer"]
        given = "".join(rng.choices("ab ﷺÅ", k=rng.randint(1, 12)))
        found = tokenizer.normalizer.normalize_str(given)
        assert len(found) <= most * (len(given) + 1), (rules, given)
        grown += len(found) > len(given)
    assert grown > 100


# --- patterns that give up ------------------------------------------------------------------------


def test_a_pattern_that_gives_up_is_one_clear_error(tmp_path: Path) -> None:
    splitting = made(pre_tokenizer=pre_tokenizers.Split(GIVING_UP, "isolated"))
    reading = Reading(written(tmp_path, splitting))
    problem = "gives up on a text: .*retry-limit.* Expected a text that its patterns match"
    for read in (
        lambda: reading.encode(GIVEN_UP),
        lambda: reading.encode_all([GIVEN_UP], 9),
        lambda: reading.beginning(GIVEN_UP, 1),
    ):
        with pytest.raises(GenerationError, match=problem):
            read()
    writing = made(decoder=decoders.Replace(GIVING_UP, ""))
    writing.add_tokens([GIVEN_UP])
    with pytest.raises(GenerationError, match=problem):
        Reading(written(tmp_path, writing)).decode([2])


def test_one_client_gets_an_error_and_others_get_results(
    url: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((engine.session.folder / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(content))
    usual = tokenizer.pre_tokenizer
    split = pre_tokenizers.Split(GIVING_UP, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, usual])
    strange = Reading(written(tmp_path, tokenizer))
    monkeypatch.setattr(engine.session, "tokenizer", strange)

    def request(prompt: str) -> tuple[int, Any]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        return post(url, "completions", json.dumps(body).encode())

    status, answer = request(GIVEN_UP)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "gives up on a text" in answer["error"]["message"]
    assert request("class collections.")[0] == 200
    # A decoder gives up in the thread that all answers come from.
    monkeypatch.setattr(strange, "decode", lambda _: strange.encode(GIVEN_UP))
    assert request("class")[0] == 500
    monkeypatch.undo()
    assert request("class collections.")[0] == 200


def test_run_prints_the_error(
    trained: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    strange = Reading(
        written(tmp_path, made(pre_tokenizer=pre_tokenizers.Split(GIVING_UP, "isolated")))
    )
    monkeypatch.setattr(Reading, "find", lambda _: strange)
    assert main(["run", str(trained.path), "--prompt", GIVEN_UP, "--generation-len", "1"]) == 1
    error = capsys.readouterr().err
    assert "gives up on a text" in error
    assert "unexpected" not in error
