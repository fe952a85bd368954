# SPDX-License-Identifier: Apache-2.0
"""Running packages: the cache, text and tokens, chat templates, embeddings, and what is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tokenizers
import torch
from checkout import TINY_LLAMA
from fixtures_builds import Models
from fixtures_runtime import LENGTH, PROMPTS, program_of, reopen, specializations
from hypothesis import given
from hypothesis import strategies as st
from runnable_package import edit_json
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModel, AutoTokenizer

from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import TextGenerationSession, memory
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import likeliest
from qeff_zoo.runtime.engine.text_generation import Generation
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.runtime.program import Array, Observed
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.runtime.text.chat_template import ChatOptions, ChatTemplate
from qeff_zoo.runtime.text.tokenizer import TextStream, Tokenizer
from qeff_zoo.sessions import EmbeddingSession, open_session
from qeff_zoo.targets.base import OpenOptions
from qeff_zoo.targets.ort.session import open_program

TEXTS = ["the lazy dog", "fox", "a text of words that are there twice or thrice", "ähnlich 你好 🙂"]


@pytest.fixture(scope="session")
def encoder(built: dict[str, Package]) -> EmbeddingSession:
    session = open_session(built["encoder"], threads=1)
    assert isinstance(session, EmbeddingSession)
    return session


# --- the cache ------------------------------------------------------------------------------------
def test_outputs_share_memory_until_a_caller_holds_one(built: dict[str, Package]) -> None:
    program = open_program(built["rows"], "decoder", OpenOptions(threads=1))

    def call(token: int, row: int, start: int) -> Array:
        pair = (np.array([[number]], np.int64) for number in (token, start))
        return program.run(dict(zip(("input_ids", "position_ids"), pair, strict=True)), [row])[
            "logits"
        ]

    address = call(5, 0, 0).ctypes.data
    assert call(5, 1, 0).ctypes.data == address  # nobody holds the first
    held = call(5, 2, 0)[0, -1]  # a view of a view
    expected = held.copy()
    other = call(6, 2, 1)

    assert other.ctypes.data != address
    np.testing.assert_array_equal(held, expected)
    assert not np.array_equal(other[0, -1], expected)
    del held, other
    np.testing.assert_array_equal(call(5, 0, 0)[0, -1], expected)


def test_a_token_takes_few_calls_of_python(sessions: dict[str, TextGenerationSession]) -> None:
    """Time outside of the program is time of such calls; their number does not depend on the machine's load."""
    counts = list[int]()
    for length in (4, 4, 12):
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        sessions["rows"].generate([[5, 6, 7]], generation_len=length, ignore_eos=True)
        sys.setprofile(None)
        counts.append(calls)
    assert (counts[2] - counts[1]) / 8 < 190  # 161 where it was written, 237 before


def test_inputs_are_read_when_a_call_begins(built: dict[str, Package]) -> None:
    program = open_program(built["rows"], "decoder", OpenOptions(threads=1))
    inputs = {"input_ids": np.array([[5]], np.int64), "position_ids": np.array([[0]], np.int64)}
    first = program.run(inputs, [0])["logits"].copy()
    inputs["input_ids"][:] = 6
    second = program.run(inputs, [0])["logits"].copy()
    assert not np.array_equal(first, second)
    assert inputs["input_ids"].tolist() == [[6]]
    program.run({name: array + 0 for name, array in inputs.items()}, [0])
    inputs["input_ids"][:] = 5
    np.testing.assert_array_equal(program.run(inputs, [0])["logits"], first)


def test_a_call_writes_its_own_positions_and_nothing_else(built: dict[str, Package]) -> None:
    opened = Decoder(open_program(built["rows"], "decoder", OpenOptions(threads=1)))
    addresses = {name: state.ctypes.data for name, state in opened.states.items()}

    opened.prefill({0: Piece([5, 6, 7], 0), 2: Piece([8], 0)})
    opened.decode({2: Piece([9], 1)})
    opened.decode({})

    for name, state in opened.states.items():
        written = state.any(axis=(1, 3))  # (rows, positions)
        assert np.flatnonzero(written[0]).tolist() == [0, 1, 2], name
        assert not written[1].any()
        assert np.flatnonzero(written[2]).tolist() == [0, 1]
        assert state.ctypes.data == addresses[name]


def test_a_call_copies_no_cache(built: dict[str, Package]) -> None:
    """Of 200 MB of cache, which take memory only when written, a call writes one row."""
    symbols = {"batch_size": "1", "ctx_len": "140000"}
    opened = Decoder(program_of(built["one row"].path, **symbols))
    size = sum(state.nbytes for state in opened.states.values())
    assert size > 200e6
    before = psutil.Process().memory_info()
    opened.decode({0: Piece([5], 0)})
    after = psutil.Process().memory_info()
    grown = (after.rss - after.shared) - (before.rss - before.shared)
    assert grown < size / 3


def test_earlier_states_of_a_slot_are_never_read(
    sessions: dict[str, TextGenerationSession],
) -> None:
    session = sessions["rows"]
    clean = session.generate(PROMPTS[:3], generation_len=LENGTH)
    for state in session.decoder.states.values():
        state[...] = np.random.default_rng(0).standard_normal(state.shape)
    assert session.generate(PROMPTS[:3], generation_len=LENGTH) == clean


def test_the_last_call_of_a_shorter_prompt_has_its_logits(
    sessions: dict[str, TextGenerationSession],
) -> None:
    """A row that is through before others keeps what its own last chunk said."""
    session = sessions["rows"]
    uneven = [[7] * 30, [8], [9] * 9]
    together = session.generate(uneven, generation_len=3)
    assert together == [session.generate([prompt], generation_len=3)[0] for prompt in uneven]


def test_padding_is_run_only_on_request(
    sessions: dict[str, TextGenerationSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []
    call = Decoder._call

    def spy(self: Decoder, pieces: Any, rows: range, seq_len: int, *more: int) -> Any:
        shapes.append((len(rows), seq_len))
        return call(self, pieces, rows, seq_len, *more)

    monkeypatch.setattr(Decoder, "_call", spy)
    opened = sessions["rows"].decoder
    uneven = {0: Piece([5, 6, 7], 0), 1: Piece([8], 0)}
    narrow, wide = opened.prefill(uneven), opened.prefill(uneven, padded=True)
    opened.prefill({0: uneven[0], 2: uneven[1]})  # no neighbours, so each as narrow as it is
    sessions["slots"].generate([[5] * 11], generation_len=2)
    assert shapes == [(2, 3), (2, 8), (1, 3), (1, 1), (1, 8), (1, 3), (1, 1)]
    for row in uneven:
        np.testing.assert_allclose(narrow[row], wide[row], atol=2e-5)


def test_a_package_without_prefill_decodes_its_prompts() -> None:
    sizes = DecoderSizes.read([specializations(batch_size="4")[1]])
    assert (sizes.prefill_seq_len, sizes.rows, sizes.ctx_len) == (1, 4, 48)


def test_available_memory_is_that_of_the_system() -> None:
    available = available_memory()
    assert available is not None
    assert 0 < available <= psutil.virtual_memory().total


# --- text -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["llama", "bert", "example"])
@pytest.mark.parametrize("text", ["", " the fox", "Zwölf  你好\n🙂🦙", "<s>x</s>", "The DON'T"])
def test_tokens_are_those_of_transformers(models: Models, name: str, text: str) -> None:
    source = TINY_LLAMA if name == "example" else getattr(models, name)
    ours, reference = Tokenizer(source), AutoTokenizer.from_pretrained(source)
    ids = reference(text)["input_ids"]
    assert ours.encode(text) == ids
    assert ours.encode(text, special_tokens=False) == reference.encode(
        text, add_special_tokens=False
    )
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_settings_left_in_a_tokenizer_file_do_not_cut_or_pad(
    models: Models, tmp_path: Path
) -> None:
    left = tokenizers.Tokenizer.from_file(str(models.bert / "tokenizer.json"))
    left.enable_truncation(4)
    left.enable_padding(length=30)
    left.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).encode(PROMPTS[2]) == Tokenizer(models.bert).encode(PROMPTS[2])


def byte_fallback() -> tokenizers.Tokenizer:
    """Make a tokenizer as SentencePiece models have it: words with a blank in front, or bytes."""
    words = ["<unk>", "▁", "▁the", "▁fox", "a", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = tokenizers.Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


@pytest.fixture(scope="session")
def wrapped(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_fallback().save(str(folder / "tokenizer.json"))
    return {"bytes": Tokenizer(models.llama), "fallback": Tokenizer(folder)}


@pytest.mark.parametrize("name", ["bytes", "fallback"])
def test_a_streamed_character_is_whole(wrapped: dict[str, Tokenizer], name: str) -> None:
    tokenizer, text = wrapped[name], "the fox é 你好 🙂 a"
    stream = TextStream(tokenizer)
    tokens = tokenizer.encode(text)
    pieces = [stream.push(token) for token in tokens]
    assert len(tokens) > len(text)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert pieces.count("") >= 7  # tokens inside a character show nothing
    assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens) == text


@given(data=st.data())
@pytest.mark.parametrize("name", ["bytes", "fallback"])
def test_streamed_text_is_the_text(
    wrapped: dict[str, Tokenizer], name: str, data: st.DataObject
) -> None:
    """Any tokens will do, but for bytes that spell nothing: SentencePiece then changes its mind about those before."""
    tokenizer = wrapped[name]
    token = st.integers(0, tokenizer.vocab_size - 1)
    spelled = st.text(max_size=20).map(lambda text: tokenizer.encode(text, special_tokens=False))
    tokens = data.draw(spelled if name == "fallback" else st.lists(token, max_size=40))
    stream = TextStream(tokenizer)
    pieces = [stream.push(one) for one in tokens]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens)


@pytest.mark.parametrize("shape", ["one row", "slots"])
def test_the_stream_joined_is_the_text(
    sessions: dict[str, TextGenerationSession], shape: str
) -> None:
    audio: dict[int, str] = {}

    def listen(number: int, piece: str) -> None:
        assert piece
        audio[number] = audio.get(number, "") + piece

    outputs = sessions[shape].generate(PROMPTS, generation_len=LENGTH, stream=listen)
    assert [audio.get(number, "") for number in range(len(outputs))] == [
        output.text for output in outputs
    ]


# --- chat -----------------------------------------------------------------------------------------
MESSAGES = [{"role": "user", "content": "What is <b>?"}, {"role": "assistant", "content": "ä\n"}]
TEMPLATES = {
    "loop": "{% for m in messages %}\n  {{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}{{ eos_token }}",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "break": "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}{% if add_generation_prompt %}>{% endif %}",
    "none": "{% if tools is none and documents is none %}no tools{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_rendered_as_in_transformers(models: Models, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    expected = tokenizer.apply_chat_template(
        MESSAGES, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    rendered = ChatTemplate(TEMPLATES[name], {"eos_token": tokenizer.eos_token}).render(MESSAGES)
    assert rendered == expected


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role }}:{% for one in m.content %}{% if one['type'] == 'text' %}"
        "{{ one['text'] }}{% elif one['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.role }}:{% for one in m.content | selectattr('type', 'equalto', 'text') %}"
        "{{ one['text'] }}{% endfor %}{% endfor %}",
        "{% if messages[1] %}{% for m in messages %}{{ m.role }}:{% for one in m.content %}"
        "{{ one.text }}{% endfor %}{% endfor %}{% endif %}",
    ],
    ids=["by type", "selected", "more than one message"],
)
def test_a_text_is_not_lost_in_a_template_that_reads_lists_alone(
    models: Models, template: str
) -> None:
    """As those of many models that see: what transformers writes of the same texts as parts."""
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in MESSAGES
    ]
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    expected = tokenizer.apply_chat_template(parts, chat_template=template, tokenize=False)
    chat = ChatTemplate(template, {})
    assert chat.render(MESSAGES) == chat.render(parts) == expected
    assert "What is <b>?" in expected


@pytest.mark.parametrize("key", ["content", "reasoning", "thinking", "reasoning_content"])
def test_keys_of_messages_are_those_of_transformers(models: Models, key: str) -> None:
    """One that is null is absent, so that no template writes "None"; and reasoning has one name for all templates."""
    template = (
        "{% for m in messages %}<{{ m.content }}{% if m.tool_calls is defined %}tools{% endif %}"
        "{{ m.reasoning_content }}|{{ m.thinking }}>{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "hi", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": None} | {key: "x"},
        {"role": "assistant", "content": None, key: None},
    ]
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    expected = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert ChatTemplate(template, {}).render(messages) == expected
    assert "None" not in expected
    assert expected == ("<hi|><x|><|>" if key == "content" else "<hi|><x|x><|>")


#: Templates that read a message, or the arguments of a call, in one form alone.
FORMS = {
    "texts": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "parts": "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
    "parts of the user": "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}"
    "{% for part in m.content %}{{ part.text }};{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "one message of parts": "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{% for part in messages[0].content if part.type == 'text' %}{{ part.text }}{% endfor %}",
    "objects": "{% for m in messages %}<{{ m.content + '' }}>{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{% for key, value in call.function.arguments.items() %}[{{ key }}={{ value }}]"
    "{% endfor %}{% endfor %}{% endfor %}",
    "json": "{% for m in messages %}<{{ m.content }}>{% for call in m.tool_calls or [] %}"
    "{{ call.function | tojson }}{% endfor %}{% endfor %}",
    "json texts": "{% for m in messages %}<{{ m.content }}>{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}",
    "variables": "{{ messages[0].content }}{{ enable_thinking }}{{ reasoning_effort }}{{ documents | tojson }}"
    "{{ tools | tojson }}{% if add_generation_prompt %}>{% endif %}",
}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _requesting(arguments: Any, content: str | None = "") -> list[dict[str, Any]]:
    """Return a conversation with one call and its result."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    requested = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [
        {"role": "user", "content": "hi"},
        requested,
        {"role": "tool", "content": "1", "tool_call_id": "a"},
    ]


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_messages_are_rendered_as_in_transformers(models: Models, name: str) -> None:
    """transformers renders each template with messages in the form that it takes; clients send any form."""
    tokenizer, chat = AutoTokenizer.from_pretrained(models.llama), ChatTemplate(FORMS[name], {})

    def expected(messages: Any, **options: Any) -> str:
        options = {"add_generation_prompt": True, **options}
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=FORMS[name], tokenize=False, **options
            )
        )

    two = [{"role": "user", "content": _parts("a", "b")}]
    joined = [{"role": "user", "content": "ab"}]
    one_text = name in ("texts", "objects", "json", "json texts", "variables")
    assert chat.render(two) == expected(joined if one_text else two)
    if name in ("objects", "json", "json texts"):
        arguments = {"city": "Bär"}
        form: Any = json.dumps(arguments, ensure_ascii=False) if name == "json texts" else arguments
        for sent in (arguments, json.dumps(arguments)):
            for content in (None, ""):
                assert chat.render(_requesting(sent, content)) == expected(_requesting(form))
        # Arguments that are no JSON: their text, or an object that has it where the template takes nothing else.
        broken: Any = {"arguments": "{"} if name == "objects" else "{"
        assert chat.render(_requesting("{")) == expected(_requesting(broken))
    if name == "variables":
        shown: dict[str, Any] = {
            "documents": [{"title": "t", "text": "x"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "add_generation_prompt": False,
        }
        options = ChatOptions(**shown, variables={"enable_thinking": 1}, reasoning_effort="low")
        variables = {"enable_thinking": 1, "reasoning_effort": "low"}
        assert chat.render(two, options) == expected(joined, **shown, **variables)
        none = chat.render(two, ChatOptions(reasoning_effort="none"))
        assert none == expected(joined, enable_thinking=False, reasoning_effort="none")
        with pytest.raises(GenerationError, match="Variable 'messages' of a chat template is set"):
            ChatOptions(variables={"messages": []})


@pytest.mark.parametrize("template", ["loop", "generation", "trimmed"])
@pytest.mark.parametrize("content", ["be ", "be", _parts("a", "be ")])
def test_a_message_is_continued_as_in_transformers(
    models: Models, template: str, content: Any
) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}"
    source = {**TEMPLATES, "trimmed": source, "generation": FORMS["parts"]}[template]
    if template != "generation":
        content = content if isinstance(content, str) else "abe "
    messages = [MESSAGES[0], {"role": "assistant", "content": content}]
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    expected = tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    options = ChatOptions(continue_final_message=True)
    special = {"eos_token": tokenizer.eos_token}
    assert ChatTemplate(source, special).render(messages, options) == expected
    with pytest.raises(GenerationError, match="of role 'user', cannot be continued"):
        ChatTemplate("{{ messages[0].role }}", {}).render(MESSAGES[:1], options)


def test_a_developer_is_the_system_unless_the_template_has_one() -> None:
    messages = [{"role": "developer", "content": "x"}]
    template = ChatTemplate("{{ messages[0].role }}: {{ messages[0].content }}", {})
    assert template.render(messages) == "system: x"
    own = "{% if messages[0].role == 'developer' %}developer: {{ messages[0].content }}{% endif %}"
    assert ChatTemplate(own, {}).render(messages) == "developer: x"


def test_chat_tokens_are_those_of_transformers(
    sessions: dict[str, TextGenerationSession], models: Models
) -> None:
    """The template writes the BOS token, so the tokenizer must not add another."""
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    expected = tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True)["input_ids"]
    assert sessions["rows"].encode(MESSAGES[0]["content"], chat=True) == expected
    (output,) = sessions["rows"].generate(["hi"], generation_len=2, chat=True)
    assert output.prompt_tokens > len("hi") + 1


@pytest.mark.parametrize("form", ["text", "named", "file"])
def test_a_template_is_found_wherever_it_is_kept(tmp_path: Path, form: str) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}"
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": None}
    if form == "file":
        (tmp_path / "chat_template.jinja").write_text(source)
    elif form == "text":
        config["chat_template"] = source
    else:
        others = {"name": "tool_use", "template": "tools"}
        config["chat_template"] = [others, {"name": "default", "template": source}]
    edit_json(tmp_path / "tokenizer_config.json", **config)
    found = ChatTemplate.find(tmp_path)
    assert found is not None
    assert found.render([{"role": "user", "content": "hi"}]) == "<s>hi"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
    ids=["refuses", "syntax", "changes", "escapes"],
)
def test_a_failing_template_reports_its_reason(template: str, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        ChatTemplate(template, {}).render(MESSAGES)


# --- embeddings -----------------------------------------------------------------------------------
def mean_embedding(model: Any, tokens: Sequence[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).last_hidden_state[0].mean(0).numpy()


def test_embeddings_are_those_of_transformers(encoder: EmbeddingSession, models: Models) -> None:
    """Four texts of different lengths take two calls of three rows, of which two are to spare."""
    model = AutoModel.from_pretrained(models.bert).eval()
    tokenizer = AutoTokenizer.from_pretrained(models.bert)
    expected = [mean_embedding(model, tokenizer(text)["input_ids"]) for text in TEXTS]
    got = encoder.embed(TEXTS)
    assert (got.dtype, got.shape) == (np.float32, (4, 64))
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(encoder.embed(TEXTS[::-1]), got[::-1], atol=2e-6)
    tokens = tokenizer(TEXTS[0])["input_ids"]
    np.testing.assert_allclose(encoder.embed([tokens]), got[:1], atol=2e-6)
    np.testing.assert_allclose(encoder.embed(TEXTS[0]), got[:1], atol=2e-6)


def test_long_texts_are_cut_as_sentence_transformers_does(
    encoder: EmbeddingSession, models: Models, tmp_path: Path
) -> None:
    long = " ".join(TEXTS * 9)
    tokens = AutoTokenizer.from_pretrained(models.bert)(long)["input_ids"]
    assert encoder.max_length == 40
    assert encoder.encode([long]) == [[*tokens[:39], tokens[-1]]]

    folder = Path(shutil.copytree(encoder.folder, tmp_path / "package"))
    settings_file = {"max_seq_length": 10, "do_lower_case": True}
    edit_json(folder / "sentence_bert_config.json", **settings_file)
    shorter = EmbeddingSession(folder, encoder._program)
    assert shorter.encode([long.upper()]) == [[*tokens[:9], tokens[-1]]]


def test_the_shortest_sequence_that_fits_is_run(
    encoder: EmbeddingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def note(inputs: Mapping[str, Any], *_: Any) -> None:
        shapes.append(inputs["input_ids"].shape)

    monkeypatch.setattr(encoder, "_program", Observed(encoder._program, note))
    encoder.embed([[5] * 16, [5] * 17, [5], [5]])
    assert shapes == [(3, 16), (3, 40)]


def test_similarity_is_the_cosine(encoder: EmbeddingSession) -> None:
    vectors = np.array([[3, 0], [0, 2], [1, 1], [0, 0]], np.float32)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        encoder.similarity(vectors),
        [[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]],
        atol=1e-6,
    )
    assert encoder.similarity(vectors, vectors[:1]).shape == (4, 1)


# --- errors ---------------------------------------------------------------------------------------
REFUSALS: dict[str, tuple[Callable[[TextGenerationSession], Any], list[str]]] = {
    "empty": (lambda s: s.generate([[]]), ["[] tokens", "expected at least one token"]),
    "too long": (
        lambda s: s.generate([[5], [5] * 48]),
        ["48 tokens", "at most 47", "larger ctx_len"],
    ),
    "foreign": (lambda s: s.generate([[5, 257]]), ["Token id 257", "0 to 256"]),
    "negative": (lambda s: s.generate([[-1]]), ["Token id -1", "0 to 256"]),
    "nothing": (
        lambda s: s.generate(["a"], generation_len=0),
        ["generate 0 tokens", "at least 1"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_requests_that_cannot_be_served(
    sessions: dict[str, TextGenerationSession], case: str
) -> None:
    act, parts = REFUSALS[case]
    with pytest.raises(GenerationError) as caught:
        act(sessions["slots"])
    for part in parts:
        assert part in str(caught.value)


def test_a_folder_without_what_a_request_needs(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(GenerationError, match=r"no chat template for 'a'.*as plain text"):
        reopen(folder).generate(["a"], chat=True)
    (folder / "tokenizer.json").unlink()
    session = reopen(folder)
    with pytest.raises(GenerationError, match=r"no tokenizer.json and cannot take the text 'a'"):
        session.generate(["a"])
    (output,) = session.generate([[5, 6]], generation_len=2, stream=lambda *_: None)
    assert (output.prompt, output.text, len(output.token_ids)) == ("", "", 2)
    (folder / "graph.onnx").unlink()
    with pytest.raises(GenerationError, match=r"it has no graph.onnx"):
        reopen(folder)


def test_embeddings_that_cannot_be_computed(encoder: EmbeddingSession, tmp_path: Path) -> None:
    for texts, message in [
        ([], "nothing to read"),
        ([[]], "0 tokens; expected 1 to 40"),
        ([[5] * 41], "41 tokens; expected 1 to 40"),
        ([[999]], "Token id 999"),
    ]:
        with pytest.raises(GenerationError, match=message):
            encoder.embed(texts)
    folder = Path(shutil.copytree(encoder.folder, tmp_path / "package"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(GenerationError, match="cannot take the text 'a'"):
        EmbeddingSession(folder, encoder._program).embed(["a"])


def test_packages_of_another_kind(built: dict[str, Package], encoder: EmbeddingSession) -> None:
    generator = built["one row"].path
    with pytest.raises(GenerationError, match=r"not one for text-generation.*'attention_mask'"):
        reopen(encoder.folder)
    with pytest.raises(GenerationError, match="not one for feature-extraction"):
        EmbeddingSession(generator, open_program(built["one row"], "decoder"))
    with pytest.raises(GenerationError, match="Specialization 'Decode'"):
        DecoderSizes.read(built["encoder"].programs[0].specializations)
    for field, value in [("task", "text-to-music"), ("target", {"name": "tpu"})]:
        foreign = Package(generator, {**built["one row"].manifest, field: value})
        with pytest.raises(GenerationError, match="expected"):
            open_session(foreign)


def test_a_cache_that_does_not_fit_is_refused(
    built: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 20_000)
    with pytest.raises(GenerationError, match=r"1 x 48 tokens needs .* the 20 kB .*--ctx-len"):
        reopen(built["one row"].path)
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    assert isinstance(reopen(built["one row"].path), TextGenerationSession)


def test_nonsense_is_not_sampled() -> None:
    assert likeliest(np.array([1, 3, 3], np.float32)) == 1
    with pytest.raises(GenerationError, match=r"logit of token 1 is .*nan"):
        likeliest(np.array([1, np.nan, 3], np.float32))


def test_running_imports_neither_torch_nor_transformers(built: dict[str, Package]) -> None:
    code = (
        "import sys, qeff_zoo; s = qeff_zoo.load(sys.argv[1], threads=1); "
        "s.generate(['the fox'], generation_len=2, chat=True); "
        "print([m for m in ('torch', 'transformers', 'onnx', 'onnxscript') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(built["one row"].path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_generations_compare_by_value() -> None:
    one = Generation(prompt="a", text="b", token_ids=[1], finish_reason="eos", prompt_tokens=1)
    assert one == Generation(
        prompt="a", text="b", token_ids=[1], finish_reason="eos", prompt_tokens=1
    )
