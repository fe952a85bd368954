# SPDX-License-Identifier: Apache-2.0
"""Model cards: what the Hub reads in front, and what people read below."""

import re
from dataclasses import replace
from typing import Any

import package_builder
import pytest

from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.publish import card as card_module
from qeff_zoo.hub.publish.card import card
from qeff_zoo.package.identity import build_key

WHERE = "hf://acme/zoo"


def entry(model: str = "org/tiny", **changes: Any) -> Entry:
    """Describe a package of a model; `ctx_len` makes it another one."""
    spec = package_builder.made_from({**package_builder.SOURCE, "model_id": model})
    spec["shape"] = {**spec["shape"], "ctx_len": changes.pop("ctx_len", 4096)}
    made = package_builder.draft(spec=spec, name=model)
    made |= {"build_key": build_key(spec), "files": [{"size": 16_700_000}]}
    return replace(Entry.of(made, b"manifest", signed=False), **changes)


def index(*entries: Entry) -> Index:
    made = Index()
    for each in entries:
        made = made.with_entry(each)
    return made


def front(text: str) -> dict[str, Any]:
    """Read the front matter as the Hub does."""
    from huggingface_hub import ModelCard

    return ModelCard(text, ignore_metadata_errors=False).data.to_dict()


def test_the_whole_card() -> None:
    one = entry()
    assert (
        card(index(one), WHERE)
        == f"""\
---
base_model: ["org/tiny"]
base_model_relation: "quantized"
library_name: "qeff-zoo"
license: "apache-2.0"
pipeline_tag: "text-generation"
tags: ["ort", "qeff-zoo"]
---

# org/tiny

Compiled packages, made and checked by qeff-zoo. Each says what it was made from and how far it was proved, and every \
file of it has a digest.

<!-- packages: written by qeff-zoo publish -->

## Packages

| package | validated | tested with | size | note |
| --- | --- | --- | --- | --- |
| [ort-int4-pl128-cl4096-bs1]({one.path}/manifest.json) {one.key16} | checkpoint | onnxruntime 1.31.0 | 16.7 MB |  |

A package's name says its target and weights, then its sizes: `pl` tokens of a prompt that one call takes, `cl` tokens \
of context, `sl` tokens of a text, `bs` rows of a call, `fbs` requests at a time, `adapter` the digests of adapters \
that were merged into its weights. It leads to the manifest, which has every choice, every file's digest, and the \
figures of the comparison.

What *validated* means:

- *checkpoint*: its answers were compared with those of the unpatched Hugging Face model, of the same revision.

Made from:

- org/tiny at revision {package_builder.REVISION}.

## Run one

```console
$ pip install 'qeff-zoo[run]'
$ export QEFF_ZOO_STORES=hf://acme/zoo
$ qeff-zoo resolve org/tiny
$ qeff-zoo run "$(qeff-zoo pull org/tiny)" --prompt 'Once upon a time'
```

```python
import qeff_zoo

session = qeff_zoo.load("org/tiny")
```

<!-- /packages d55dd21fc63ca6fe -->
"""
    )


@pytest.mark.parametrize(
    ("task", "tag", "extras", "given"),
    [
        ("speech-seq2seq", "automatic-speech-recognition", "run,media", "speech.wav"),
        ("image-classification", "image-classification", "run,media", "--image photo.png"),
        ("image-text-to-text", "image-text-to-text", "run,media", "--image photo.png --chat"),
        ("feature-extraction", "feature-extraction", "run", "--prompt"),
    ],
)
def test_a_card_has_commands_for_packages_without_text(
    task: str, tag: str, extras: str, given: str
) -> None:
    one = entry()
    text = card(index(replace(one, axes={**one.axes, "task": task})), WHERE)
    assert front(text)["pipeline_tag"] == tag
    assert f"'qeff-zoo[{extras}]'" in text
    assert f'"$(qeff-zoo pull org/tiny)" {given}' in text


def test_the_hub_understands_it() -> None:
    assert front(card(index(entry()), WHERE)) == {
        "base_model": ["org/tiny"],
        "base_model_relation": "quantized",
        "library_name": "qeff-zoo",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["ort", "qeff-zoo"],
    }


def test_packages_of_several_models() -> None:
    other = entry("org/other", license="llama3.1")
    other = replace(other, axes={**other.axes, "task": "feature-extraction"})
    text = card(index(entry(), other), WHERE)
    found = front(text)
    assert found["base_model"] == ["org/other", "org/tiny"]
    assert found["license"] == "other"
    assert "pipeline_tag" not in found
    assert "| model | package |" in text
    assert "qeff-zoo pull MODEL" in text


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (None, None),
        ("Apache-2.0", "apache-2.0"),
        ("llama3.1", "llama3.1"),
        ("our-own", "other"),
        ('x"\nevil: true', "other"),
    ],
)
def test_a_licence_has_a_name_of_the_hub(stated: str | None, message: str | None) -> None:
    assert front(card(index(entry(license=stated)), WHERE)).get("license") == message


def test_a_folders_name_is_no_base_model() -> None:
    found = front(card(index(entry("tiny-llama", revision=None)), WHERE))
    assert "base_model" not in found
    assert "base_model_relation" not in found


def test_a_card_lists_the_validation() -> None:
    proof = "Computes Hugging Face's model (float32): largest error 8e-06 <b>."
    one = entry(proof=proof)
    text = card(index(one, entry(ctx_len=64)), WHERE)
    line = f"- ort-int4-pl128-cl4096-bs1 {one.key16}: Computes Hugging Face's model (float32)"
    assert f"What was proved:\n\n{line}: largest error 8e-06 \\<b\\>.\n\nMade from:" in text


def test_notices_and_signatures_are_shown() -> None:
    good, bad = entry(signed=True), entry(ctx_len=8192)
    made = index(good, bad).with_notice(bad.path, Notice("known_bad", "wrong | answers", good.path))
    text = card(made, WHERE)
    assert f"| known\\_bad: wrong \\| answers; take {good.path} |" in text
    assert "| checkpoint, signed |" in text
    assert text.index("cl4096-bs1]") < text.index("cl8192-bs1]")


@pytest.mark.parametrize(
    ("mark", "escaped"),
    [
        ("|", r"\|"),
        ("<b>", r"\<b\>"),
        ("[x](y)", r"\[x\](y)"),
        ("`", r"\`"),
        ("*x*", r"\*x\*"),
        ("&amp;", r"\&amp;"),
        ("# x", r"\# x"),
    ],
)
def test_foreign_text_stays_text(mark: str, escaped: str) -> None:
    one = entry()
    text = card(index(one).with_notice(one.path, Notice("yanked", f"it {mark} is")), WHERE)
    (row,) = [line for line in text.splitlines() if one.key16 in line]
    assert row.replace("\\|", "").count("|") == 6
    assert row.endswith(f" yanked: it {escaped} is |")


def test_a_name_is_no_shell_command() -> None:
    text = card(index(entry('org/$(rm)"')), WHERE)
    assert "$ qeff-zoo resolve 'org/$(rm)\"'\n" in text
    assert 'qeff_zoo.load("org/$(rm)\\"")' in text


def test_an_index_without_packages_has_a_card() -> None:
    assert front(card(Index(), WHERE))["library_name"] == "qeff-zoo"


# --- a card that is there -------------------------------------------------------------------------
def test_a_card_of_many_packages_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = index(entry(), entry(ctx_len=64))
    listed = card(made, WHERE)
    monkeypatch.setattr(card_module, "_MOST_PACKAGES", 1)
    text = card(made, WHERE, listed)
    assert not [each.path for each in made.entries if each.path in text]
    assert f"2 packages. `qeff-zoo ls {WHERE} MODEL` lists those of a model." in text
    assert front(text) == {"library_name": "qeff-zoo", "tags": ["qeff-zoo"]}


def test_an_untouched_card_is_written_anew() -> None:
    first, both = index(entry()), index(entry(), entry("org/other", license="mit"))
    assert card(both, WHERE, card(first, WHERE)) == card(both, WHERE)


def test_text_around_the_packages_stays() -> None:
    first, second = index(entry()), index(entry(), entry(ctx_len=8192))
    edited = card(first, WHERE).replace("# org/tiny\n", "# Ours\n\nAsk Ada.\n") + "\n## Thanks\n"
    revised = card(second, WHERE, edited)
    assert "# Ours\n\nAsk Ada.\n" in revised
    assert revised.endswith("\n## Thanks\n")
    assert "cl8192" in revised
    assert revised.count("## Packages") == 1
    assert card(second, WHERE, revised) == revised
    assert front(revised) == front(edited)


def test_a_foreign_card_stays_and_packages_follow_it() -> None:
    reference = "---\nlicense: mit\nlanguage: en\n---\n# Theirs\n"
    first = card(index(entry()), WHERE, reference)
    assert first.startswith(reference)
    assert front(first) == {"license": "mit", "language": "en"}
    second = card(index(entry(), entry(ctx_len=8192)), WHERE, first)
    assert second.startswith(reference)
    assert second.count("## Packages") == 1


@pytest.mark.parametrize(
    "mark", ["<!-- packages: written by qeff-zoo publish -->", f"<!-- /packages {'0' * 16} -->"]
)
@pytest.mark.parametrize(
    "place", ["model", "license", "where", "reason", "proof", "revision", "tested", "target"]
)
def test_a_mark_in_a_text_is_none_of_the_card(mark: str, place: str) -> None:
    """Whoever publishes chooses these texts; the card that is written again is the same one."""
    changes: dict[str, Any] = {
        "license": {"license": mark}, "proof": {"proof": mark}, "revision": {"revision": mark},
        "tested": {"tested": {"onnxruntime": mark}}, "target": {"axes": {"target": mark, "task": mark}},
    }  # fmt: skip
    made = index(entry(f"org/{mark}" if place == "model" else "org/tiny", **changes.get(place, {})))
    if place == "reason":
        made = made.with_notice(made.entries[0].path, Notice("yanked", mark))
    where = f"file:///srv/{mark}" if place == "where" else "hf://acme/zoo"
    written = card(made, where)
    assert len(re.findall(r"(?<!\\)<!-- ", written)) == 2
    assert card(made, where, written) == written
    reference = f"{written}\nWritten by hand.\n"
    assert (
        card(made, where, card(made, where, reference)) == card(made, where, reference) == reference
    )
    assert front(written)["library_name"] == "qeff-zoo"
    if place == "model" and "/" not in mark:
        assert front(written)["base_model"] == [f"org/{mark}"]
