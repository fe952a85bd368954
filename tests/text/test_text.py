# SPDX-License-Identifier: Apache-2.0
"""A package reads and writes text as transformers does: published tokenizers, fields of them changed, and the check."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import jinja2
import published_tokenizers as published
import pytest
import transformers
import warm
from fixtures_builds import Models
from hypothesis import given, settings
from hypothesis import strategies as st

import qeff_zoo
from qeff_zoo.checkpoint import text as made_text
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import TEXT_GENERATION, find
from qeff_zoo.disk import text_files
from qeff_zoo.errors import CheckpointError, GenerationError, ParityError
from qeff_zoo.export import companions
from qeff_zoo.package import Package
from qeff_zoo.runtime.text.chat_template import ChatOptions, ChatTemplate
from qeff_zoo.runtime.text.tokenizer import TextStream, Tokenizer
from qeff_zoo.validation.content import text
from qeff_zoo.validation.reference import text as reference_text

_DRAWS = settings(max_examples=fuzzing.example_count(60), derandomize=True, database=None)
_TASK = find(TEXT_GENERATION)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Keep what transformers says of odd settings out of the report."""
    transformers.logging.set_verbosity_error()


# --- what is packaged ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", published.FORMS)
def test_published_tokenizers_are_packaged_as_transformers_makes_them(
    name: str, tmp_path: Path
) -> None:
    assert published.judged(published.FORMS[name](), tmp_path / "form") == "agrees"


def _folder(parent: Path) -> Path:
    """Return a folder that does not exist yet, of many in one test."""
    parent.mkdir(exist_ok=True)
    return parent / str(len([*parent.iterdir()]))


@_DRAWS
@given(seed=st.integers(0, 1 << 30))
def test_no_changed_field_makes_a_difference(seed: int, tmp_path: Path) -> None:
    name, form, changes = published.drawn(seed)
    verdict = published.judged(form, _folder(tmp_path / "drawn"))
    assert verdict in published.EXPLAINED, (seed, name, changes)


#: What is said beside tokenizer.json, and a token that only this makes one.
BESIDE: dict[str, tuple[Callable[[published.Form], Any], str]] = {
    "added_tokens_decoder": (
        lambda form: form.settings.update(
            added_tokens_decoder={"900": {"content": "<|turn|>", "special": True}}
        ),
        "<|turn|>",
    ),
    "additional_special_tokens": (
        lambda form: form.settings.update(additional_special_tokens=["<|turn|>"]),
        "<|turn|>",
    ),
    "added_tokens.json": (
        lambda form: form.files.update({"added_tokens.json": {"<|turn|>": 421}}),
        "<|turn|>",
    ),
    "special_tokens_map.json": (
        lambda form: form.files.update({"special_tokens_map.json": {"eos_token": "<|turn|>"}}),
        "<|turn|>",
    ),
    "eos_token": (lambda form: form.settings.update(eos_token="<|turn|>"), "<|turn|>"),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_tokens_beside_tokenizer_json_are_tokens(beside: str, tmp_path: Path) -> None:
    change, token = BESIDE[beside]
    form = published.gpt2()
    change(form)
    folder = form.write(tmp_path / "checkpoint")
    tokenizer = companions.tokenizer_of(open_checkpoint(str(folder), need_weights=False))
    assert tokenizer
    ids = tokenizer.encode(f"fox{token}")
    expected = transformers.AutoTokenizer.from_pretrained(folder)(f"fox{token}")["input_ids"]
    assert ids == expected
    assert tokenizer.name(ids[-1]) == token
    if beside != "added_tokens.json":  # which says of no token that it is special
        assert tokenizer.decode(ids) == "fox"


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    here, there = (published.llama3().write(tmp_path / name) for name in ("here", "there"))
    code = (
        "import sys; from pathlib import Path; from qeff_zoo.checkpoint import text;"
        "text.write(Path(sys.argv[1]), 'made'); print(hash('made'))"
    )
    made_text.write(here, "made")
    # A process of another hash seed, unless all have the same one.
    python = sys.executable if "PYTHONHASHSEED" in os.environ else warm.PYTHON.executable
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code, str(there)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert int(done.stdout) != hash("made")
    names = {path.name for path in here.iterdir()}
    assert names == {path.name for path in there.iterdir()}
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in names)


def test_settings_of_a_class_are_written_outright(tmp_path: Path) -> None:
    folder = published.roberta().write(tmp_path / "checkpoint")
    made_text.write(folder, "made")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]  # of RobertaTokenizer
    assert settings["tokenizer_class"] == "RobertaTokenizer"
    assert settings["mask_token"] == "<mask>"
    again = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        again.backend_tokenizer.to_str() == made_text.load(folder, "it").backend_tokenizer.to_str()
    )


def test_a_tokenizer_that_transformers_does_not_make_is_refused_before_the_trace(
    models: Models, home: Path, tmp_path: Path
) -> None:
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(
        CheckpointError, match=r"makes no tokenizer of the files of 'checkpoint': .*remove them"
    ):
        qeff_zoo.build(checkpoint, validate=False)
    assert not [*home.glob("graphs/*")]


def test_code_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    form = published.llama3()
    form.settings = {"auto_map": {"AutoTokenizer": ["tokenization_odd.Odd", None]}}
    form.model_type = "odd"
    with pytest.raises(CheckpointError, match="without code of the checkpoint"):
        made_text.load(form.write(tmp_path / "odd"), "odd")


def test_a_tokenizer_in_python_is_named(tmp_path: Path) -> None:
    form = published.Form("t5", {"tokenizer_class": "ByT5Tokenizer"})
    checkpoint = open_checkpoint(str(form.write(tmp_path / "byt5")), need_weights=False)
    with pytest.warns(UserWarning, match="'byt5' by ByT5Tokenizer, which is Python code"):
        companions.package(checkpoint, tmp_path, _TASK)
    assert not (tmp_path / "tokenizer.json").exists()


def test_a_processors_template_goes_before_its_tokenizers(tmp_path: Path) -> None:
    form = published.qwen2()
    form.files["chat_template.json"] = {"chat_template": published.INST}
    for media, expected in ((False, published.CHATML), (True, published.INST)):
        folder = form.write(tmp_path / str(media))
        made_text.write(folder, "made", media=media)
        assert (folder / "chat_template.jinja").read_text() == expected
        assert not (folder / "chat_template.json").exists()


#: Templates that transformers loads and does not render -> a part of the warning.
_BROKEN: dict[str, tuple[Any, str]] = {
    "syntax": ("{% if messages %}{{ messages[0]['content'] }", "unexpected '}'"),
    "filter": ("{{ messages[0].content | shout }}", "No filter named 'shout'"),
    "function": ("{{ shout(messages) }}", "'shout' is undefined"),
    "number": (5, "it is 5, and no text"),
    "names": (
        {"tool_use": published.CHATML, "rag": published.INST},
        r"has the names \['rag', 'tool_use'\]",
    ),
}


@pytest.mark.parametrize("case", _BROKEN)
def test_a_template_that_transformers_does_not_render_is_named_before_the_trace(
    case: str, tmp_path: Path
) -> None:
    template, output = _BROKEN[case]
    form = published.qwen2()
    assert form.settings
    form.settings["chat_template"] = template
    folder = form.write(tmp_path / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with pytest.raises((jinja2.TemplateError, TypeError, ValueError)):
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    checkpoint = open_checkpoint(str(folder), need_weights=False)
    with pytest.warns(UserWarning, match=f"chat template of 'source' renders no chat: .*{output}"):
        companions.package(checkpoint, tmp_path, _TASK)
    assert _requested(folder)["chats"] == []  # no check that nothing can fail


@pytest.mark.parametrize("form", ["settings", "files"])
def test_named_templates_are_in_the_package(form: str, tmp_path: Path) -> None:
    """Tools select `tool_use`, a name any other; and a single template needs no name, where transformers refuses."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    chat = [{"role": "user", "content": "Hello"}]
    published_form = published.qwen2()
    assert published_form.settings
    named = {"default": published.CHATML, "tool_use": "tools {{ messages[0].content }}"}
    if form == "settings":
        published_form.settings["chat_template"] = named
    else:
        published_form.settings.pop("chat_template", None)
        published_form.files["chat_template.jinja"] = named["default"]
        published_form.files["additional_chat_templates/tool_use.jinja"] = named["tool_use"]
    folder = published_form.write(tmp_path / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made_text.write(folder, "made")
    found = ChatTemplate.find(folder)
    assert found
    for offered, name in ((None, None), (tools, None), (None, "tool_use")):
        expected = tokenizer.apply_chat_template(
            chat,
            tools=offered,
            chat_template=name,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert found.render(chat, ChatOptions(tools=offered or (), template=name)) == expected
    with pytest.raises(GenerationError, match=r"no chat template 'rag'.*\['default', 'tool_use'\]"):
        found.render(chat, ChatOptions(template="rag"))
    alone = ChatTemplate({"rag": named["tool_use"]}, {})
    assert alone.render(chat) == "tools Hello"


def test_a_template_beyond_the_budget_is_refused_before_the_trace(tmp_path: Path) -> None:
    form = published.qwen2()
    assert form.settings
    form.settings["chat_template"] = "{{ 'a' * 999999999 }}{{ messages[0].content }}"
    checkpoint = open_checkpoint(str(form.write(tmp_path / "source")), need_weights=False)
    with pytest.raises(
        CheckpointError, match="chat template of 'source': OverBudgetError: it runs"
    ):
        companions.package(checkpoint, tmp_path, _TASK)


# --- decoded text ----------------------------------------------------------------------------------


def test_incremental_detokenization_equals_that_of_all_tokens(
    tmp_path: Path,
) -> None:
    folder = published.t5().write(tmp_path / "t5")
    tokenizer = made_text.write(folder, "made")
    ours = Tokenizer(folder)
    for end in ("do n't ' s . , , ? end", "we 're ' '", "x ' n", " .. 've 'v", "a 's . it"):
        ids = tokenizer(end)["input_ids"]
        stream = TextStream(ours)
        grown = "".join([*(stream.push(token) for token in ids), stream.finish()])
        assert grown == tokenizer.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_special_tokens_are_read_as_text_by_a_setting(tmp_path: Path) -> None:
    form = published.qwen2()
    assert form.settings
    form.settings["split_special_tokens"] = True
    folder = form.write(tmp_path / "qwen")
    tokenizer = made_text.write(folder, "made")
    ids = tokenizer("<|im_start|>")["input_ids"]
    assert Tokenizer(folder).encode("<|im_start|>") == ids
    assert Tokenizer(folder).encode_batch(["<|im_start|>"], 99) == [ids]
    assert len(ids) > 1


# --- the check -------------------------------------------------------------------------------------


def _requested(folder: Path) -> dict[str, Any]:
    requested = {"model_id": None, "parts": False, "writes": True}
    answer = reference_text.answer({"checkpoint": str(folder), "text": requested})
    assert answer
    return answer


def _package(folder: Path) -> Package:
    """Return a package of text alone."""
    manifest = {"task": TEXT_GENERATION, "spec": {"sources": {"model": {}}}, "files": []}
    return Package(folder, manifest)


def _damaged_tokens(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = content["added_tokens"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _damaged_settings(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _damaged_decoder(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][1]["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


def _damaged_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|im_end|>", "<|im_end|> "))


def _edited(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a damage to the content of a tokenizer."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return damage


def _exchanged_merges(content: Any) -> None:
    merges = content["model"]["merges"]
    merges[-2:] = merges[:-3:-1]


def _exchanged_entries(content: Any) -> None:
    vocab = content["model"]["vocab"]
    *_, one, other = vocab
    vocab[one], vocab[other] = vocab[other], vocab[one]


def _damaged_tools(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("tools", "no_tools"))


CONTENT, TOOLS = "same_tokenizer_content", "same_rendered_tools"
CHATS = {"same_rendered_chats", TOOLS}
#: A damage to a package, and the checks that notice it, besides those that may.
DAMAGES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "none": (lambda folder: None, set()),
    "an added token": (_damaged_tokens, {CONTENT, "same_token_ids", "same_decoded_texts"}),
    "truncation": (
        lambda folder: _damaged_settings(folder, truncation_side="left"),
        {"same_cut_texts", "same_tokenizer_settings"},
    ),
    "a setting": (
        lambda folder: _damaged_settings(folder, eos_token="<|endoftext|>"),
        {"same_tokenizer_settings"},
    ),
    "a special token": (_damaged_decoder, {CONTENT, "same_decoded_texts"}),
    "spaces": (lambda folder: (folder / "chat_template.jinja").unlink(), CHATS),
    "the template": (_damaged_template, CHATS),
    "the tools of a template": (_damaged_tools, {TOOLS}),
    # What no sample text reaches: two late merges, or entries.
    "the last merge": (_edited(lambda one: one["model"]["merges"].pop()), {CONTENT}),
    "two merges": (_edited(_exchanged_merges), {CONTENT}),
    "two entries": (_edited(_exchanged_entries), {CONTENT}),
    "the normalizer": (_edited(lambda one: one.update(normalizer=None)), {CONTENT}),
    "the pre-tokenizer": (
        _edited(lambda one: one["pre_tokenizer"]["pretokenizers"].pop(0)),
        {CONTENT},
    ),
    "the decoder": (_edited(lambda one: one["decoder"].update(add_prefix_space=False)), {CONTENT}),
    "the post-processor": (_edited(lambda one: one.update(post_processor=None)), {CONTENT}),
    "a flag": (_edited(lambda one: one["added_tokens"][-1].update(lstrip=True)), {CONTENT}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_check_notices_its_damage_and_names_what_differs(damage: str, tmp_path: Path) -> None:
    form = published.qwen2()
    assert form.settings
    form.settings["chat_template"] += "{% if tools %}{{ tools | tojson }}{% endif %}"
    source = form.write(tmp_path / "source")
    answer = _requested(source)
    folder = shutil.copytree(source, tmp_path / "package")
    made_text.write(folder, "made")
    act, expected = DAMAGES[damage]
    act(folder)

    checks = text.judge(_package(folder), answer, "checkpoint")

    failed = {one["metric"] for one in checks if not one["passed"]}
    assert failed >= expected
    assert (failed == expected) or CONTENT in expected
    assert all(one["canary"]["value"] < 1 for one in checks)
    assert len(checks) == 7
    for check in checks:
        assert check["passed"] or "Qwen2Tokenizer makes" in check["note"]


def test_a_build_whose_text_differs_is_refused(
    models: Models, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, home)
    checkpoint = models.copy(models.llama, tmp_path / "checkpoint")
    path = checkpoint / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "additional_special_tokens": ["<|turn|>"]}))
    # As packages were: with the published files as they are.
    monkeypatch.setattr(
        made_text, "write", lambda folder, name, *_, **__: made_text.load(folder, name)
    )
    with pytest.raises(
        ParityError, match=r"text: same_token_ids is .*<\|turn\|>.* the package makes"
    ):
        qeff_zoo.build(checkpoint, ctx_len=40, prefill_seq_len=8)


def test_a_template_that_refuses_is_right_where_transformers_refuses(tmp_path: Path) -> None:
    form = published.qwen2()
    assert form.settings
    form.settings["chat_template"] = (
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages[0]['content'] }}"
    )
    folder = form.write(tmp_path / "source")
    answer = _requested(folder)
    assert [chat["rendered"] is None for chat in answer["chats"]] == [False, True, False, False]
    made_text.write(folder, "made")
    assert ChatTemplate.find(folder)
    assert all(one["passed"] for one in text.judge(_package(folder), answer, "checkpoint"))


# --- files of prompts ------------------------------------------------------------------------------


def test_lines_of_a_file_end_with_newlines_alone(tmp_path: Path) -> None:
    lines = ["first", "a\u2028b", "c\x85d", "e\x0cf", "g\rh", "last"]
    path = tmp_path / "prompts"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, " ", ""]).encode())
    assert text_files.lines_of(text_files.read(path)) == lines
