# SPDX-License-Identifier: Apache-2.0
"""Texts and headers of files that once took time quadratic in their length, or a step of Python for each byte."""

import json
import struct
import time
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from fixtures_serving import MODEL, QUESTION, post
from PIL import Image

from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.images import read_image, size_of
from qeff_zoo.runtime.text.chat_output.values import from_keywords
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.grammar import Grammar, Guides
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.server.middleware import _checked_json


def seconds_of(act: Callable[[], Any]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


@pytest.mark.parametrize(
    "text",
    ["\n" * 200_000, " " * 200_000, "a" * 200_000, "a " * 100_000, "a\n" * 100_000],
    ids=["lines", "spaces", "a word", "words", "lines of words"],
)
def test_the_kind_of_a_grammar_is_found_in_one_pass(text: str) -> None:
    assert seconds_of(lambda: Grammar.context_free(text)) < 1


@pytest.mark.parametrize("text", [r"\"" * 100_000, r"\/" * 100_000, "<" * 200_000])
def test_names_of_tokens_are_found_in_one_pass(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ordinary:
        ordinary = {5: "\\"}  # noqa: RUF012 -- one that the text has

    guides = Guides(None, 10, [])
    monkeypatch.setattr(guides, "_tokenizer", Ordinary())
    text = f"{text}<"
    monkeypatch.setattr(Ordinary, "ordinary", {5: "<"})
    assert seconds_of(lambda: guides._named(text)) < 1


@pytest.mark.parametrize("text", [r"\'" * 50_000, r"\"" * 50_000])
def test_literals_are_found_in_one_pass(text: str) -> None:
    assert seconds_of(lambda: from_keywords(text)) < 2


@pytest.mark.parametrize("rule", ["root ::= a", " root::= a", "// no\n\troot\t ::= a", "a-b ::="])
def test_rules_of_gbnf_are_found(rule: str) -> None:
    with pytest.raises(GenerationError, match="as GBNF"):
        Grammar.context_free(f"{rule}\n(")


def test_forms_of_few_roles_are_remembered() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", {})
    source = template.source()
    assert not any(source.reads_parts(f"role {number}") for number in range(200))
    assert source._parts_by_role.cache_info().currsize <= 64


@pytest.mark.parametrize("name", ["template", "values", "source"])
def test_variables_of_any_name_reach_a_template(url: str, name: str) -> None:
    body = {
        "model": MODEL,
        "messages": QUESTION,
        "max_tokens": 1,
        "chat_template_kwargs": {name: 1},
    }
    assert post(url, "chat/completions", json.dumps(body).encode())[0] == 200


# --- bodies ---------------------------------------------------------------------------------------

TEXT = [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "r" * 300, "content": "a"}]}, "messages"),
        (
            {"messages": [{"role": f"r{number}", "content": TEXT} for number in range(65)]},
            "messages",
        ),
        ({"bad_words": [f"{number}{'ab c' * 100}" for number in range(200)]}, "bad_words"),
        (
            {
                "structured_outputs": {
                    "choice": [f"{number}{'ab c' * 100}" for number in range(700)]
                }
            },
            "structured_outputs",
        ),
    ],
)
def test_lengths_and_counts_have_bounds(url: str, body: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1, **body}
    status, answer = post(url, "chat/completions", json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)
    assert "at most" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"metadata": {' + b'"a": "b",' * 140_000 + b'"c": "d"}}', "131,072 members of objects"),
        (b'{"prompt": "\xed\xa0\x80"}', "The body is not Unicode in utf-8"),
    ],
)
def test_other_bodies_are_refused_before_they_are_parsed(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        _checked_json(body)


def test_names_and_colons_in_texts_are_texts() -> None:
    text = json.dumps({"prompt": '":[{\\' * 200_000, "a": ["\\", '"', "\\\\"] * 50}).encode()
    assert seconds_of(lambda: _checked_json(text)) < 2


# --- headers of images ----------------------------------------------------------------------------


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
HEADERS = {
    "JPEG": b"\xff\xd8\xff" + b"\xff" * 6_000_000,
    "PNG": PNG + chunk(b"teXt") * 500_000,
    "PPM comment": b"P6\n#" + b"a" * 5_000_000 + b"\n8 8\n255\n",
    "PPM spaces": b"P6\n" + b" " * 5_000_000 + b"8 8\n255\n",
    "GIF": b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b"!\xfe\x01a\x00" * 500_000,
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_long_headers_are_not_read_to_their_end(content: bytes) -> None:
    def read() -> None:
        with pytest.raises(MediaError, match="its header is damaged"):
            size_of(content)

    assert seconds_of(read) < 1


def test_tiny_pieces_of_contents_are_not_read_to_their_end() -> None:
    def read() -> None:
        with pytest.raises(MediaError, match="it has too many parts"):
            read_image(PNG + chunk(b"IDAT") * 300_000 + chunk(b"IEND"))

    assert seconds_of(read) < 2


def jpeg(**options: Any) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (160, 200, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


def test_scans_of_a_jpeg_have_a_bound() -> None:
    usual = jpeg(progressive=True)
    assert usual.count(b"\xff\xda") == 10
    assert read_image(usual).shape == (160, 200, 3)
    scan = usual[usual.rindex(b"\xff\xda") : -2]
    with pytest.raises(MediaError, match=r"with 1,010 scans. Expected at most 100\."):
        size_of(usual[:-2] + scan * 1000 + usual[-2:])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_usual_files_are_read(form: str) -> None:
    file = BytesIO()
    options = {"comment": b"c" * 60_000} if form == "JPEG" else {}
    Image.new("RGB", (3000, 1000), (9, 9, 9)).save(file, form, **options)
    assert size_of(file.getvalue()) == (3000, 1000)
    assert read_image(file.getvalue()).shape == (1000, 3000, 3)
