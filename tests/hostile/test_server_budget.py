# SPDX-License-Identifier: Apache-2.0
"""Cost of a request by its size: every field of every endpoint is grown, and CPU time and memory are bounded.

The fields are those of /openapi.json, which the app makes of its endpoints: a new field is grown by its type, and a new
endpoint, service, or field of an unknown type, fails until the tables here have it. Fields with files have those of
`grown_media`. QEFF_ZOO_TEST_EVERY=1 grows each field of each server in every way; QEFF_ZOO_BUDGET_RECORD=FILE then
records the largest costs: scripts/update_readme makes the table of docs/server.md of benchmarks/results/budget.json.
"""

import base64
import functools
import io
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grown_media
import httpx
import numpy as np
import pytest
import sentence_models
import small_voice
from checkout import ROOT
from fixtures_builds import Models
from fixtures_fuzz_bodies import Posts, calling, encoding, looking
from fixtures_image_text_embedding import session as chat_embedder
from fixtures_image_text_embedding import subject
from fixtures_serving import MODEL
from peaks import needs_counters, peak_memory, reset_peak
from PIL import Image
from selection import EVERY, seed
from sharing import made_once

import qeff_zoo
from qeff_zoo import contract, serving
from qeff_zoo.media.images import FORMATS, decoded_bytes_of, read_image
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.answers.large import MAX_NUMBERS
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.serving.server.app import known_paths
from qeff_zoo.serving.server.page import PAGE_PATHS
from qeff_zoo.serving.server.services import Service
from qeff_zoo.tasks.depth_estimation.endpoints import DepthQueue
from qeff_zoo.tasks.depth_estimation.service import DepthMaps
from qeff_zoo.tasks.diffusion.endpoints import DrawingQueue
from qeff_zoo.tasks.diffusion.service import Drawings
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue
from qeff_zoo.tasks.encoders.service import TextEncoding
from qeff_zoo.tasks.image_segmentation.endpoints import SegmentationQueue
from qeff_zoo.tasks.image_segmentation.service import Segmentation
from qeff_zoo.tasks.image_to_image.endpoints import ImageToImageQueue
from qeff_zoo.tasks.image_to_image.service import Reconstructions
from qeff_zoo.tasks.images.endpoints import ImageQueue
from qeff_zoo.tasks.images.service import ImageEmbeddings
from qeff_zoo.tasks.multimodal.embedding_endpoints import PromptQueue
from qeff_zoo.tasks.multimodal.embedding_service import PromptEmbeddings
from qeff_zoo.tasks.object_detection.endpoints import DetectionQueue
from qeff_zoo.tasks.object_detection.service import Detections
from qeff_zoo.tasks.speech.endpoints import SpeechQueue
from qeff_zoo.tasks.speech.service import Transcriptions
from qeff_zoo.tasks.text_generation.service import Generation
from qeff_zoo.tasks.text_to_speech.endpoints import VoiceQueue
from qeff_zoo.tasks.text_to_speech.service import Voices
from qeff_zoo.tasks.zero_shot_detection.endpoints import NamedDetectionQueue
from qeff_zoo.tasks.zero_shot_detection.service import NamedDetections
from qeff_zoo.validation import tiny_models

__all__ = ["calling", "chat_embedder", "encoding", "looking", "subject"]

Schema = Mapping[str, Any]
SIZE = 1 << 16  # bytes of a grown field
#: Bounds of a request: CPU seconds, and bytes of memory; and each for a byte of its body.
SECONDS, SECONDS_OF_BYTE = 0.5, 15e-6
MEMORY, MEMORY_OF_BYTE = 64 << 20, 300
#: CPU seconds for a recording, most of them of the model, which transcribes a second at a time.
SECONDS_OF_RECORDING = 0.2 * grown_media.SECONDS
#: CPU seconds and bytes of memory for a number of an answer, beyond the body's; the client holds 20 bytes of text.
SECONDS_OF_NUMBER, MEMORY_OF_NUMBER = 0.3e-6, 12 + 20
#: Number of cases of an app that are tried by default.
FEW = 40
#: Servers by name, and their services.
SERVERS: Mapping[str, type[Service]] = {
    "text": Generation,
    "adapters": Generation,
    "vision": Generation,
    "captions": Generation,
    "embeddings": TextEncoding,
    "scores": TextEncoding,
    "labels": TextEncoding,
    "entities": TextEncoding,
    "masks": TextEncoding,
    "answers": TextEncoding,
    "choices": TextEncoding,
    "sparse": TextEncoding,
    "tokens": TextEncoding,
    "images": ImageEmbeddings,
    "chats": PromptEmbeddings,
    "speech": Transcriptions,
    "depths": DepthMaps,
    "objects": Detections,
    "named": NamedDetections,
    "segments": Segmentation,
    "larger": Reconstructions,
    "voices": Voices,
    "painter": Drawings,
}
#: Paths of a server that are grown, if the others are those of another server here.
ALONE: Mapping[str, tuple[str, ...]] = {
    "adapters": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "tokens": ("/embed_all", "/v1/pooling"),
    "captions": ("/v1/chat/completions", "/api/generate"),
    "answers": ("/predict",),
    "choices": ("/predict",),
}
_CHAT = {"messages": [{"role": "user", "content": "a"}]}
_OLLAMA = {"options": {"num_predict": 1}, "stream": False}
#: Smallest bodies of endpoints: a field is grown in the first one that has it, or else in the first.
BODIES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "/v1/chat/completions": ({**_CHAT, "max_tokens": 1},),
    "/v1/completions": ({"prompt": "a", "max_tokens": 1},),
    "/v1/audio/speech": ({"input": "a", "response_format": "wav"},),
    "/v1/images/generations": ({"prompt": "a", "num_inference_steps": 1},),
    "/v1/responses": ({"input": "a", "max_output_tokens": 1},),
    "/v1/conversations": ({"metadata": {}},),
    "/v1/conversations/{name}": ({"metadata": {}},),
    "/v1/conversations/{name}/items": ({"items": [{"role": "user", "content": "a"}]},),
    "/v1/messages": ({**_CHAT, "max_tokens": 1},),
    "/v1/messages/count_tokens": (_CHAT,),
    "/api/chat": ({**_CHAT, **_OLLAMA},),
    "/api/generate": ({"prompt": "a", **_OLLAMA},),
    "/infill": ({"input_prefix": "a", "input_suffix": "b", "n_predict": 1},),
    "/api/embed": ({"input": "a"},),
    "/api/embeddings": ({"prompt": "a"},),
    "/embed_sparse": ({"inputs": "a"},),
    "/embed_all": ({"inputs": "a"},),
    "/api/show": ({"model": MODEL},),
    "/apply-template": (_CHAT,),
    "/tokenize": ({"prompt": "a"}, _CHAT),
    "/invocations": ({"prompt": "a", "max_tokens": 1},),
    "/detokenize": ({"tokens": [5]},),
    "/v1/embeddings": ({"input": "a"}, _CHAT),
    "/pooling": ({"input": "a"}, _CHAT),
    "/classify": ({"input": "a"}, _CHAT),
    "/score": ({"queries": "a", "documents": ["a"]},),
    "/rerank": ({"query": "a", "documents": ["a"]}, {"query": "a", "texts": ["a"]}),
    "/predict": ({"inputs": "a"},),
    "/embed": ({"inputs": "a"},),
    "/v2/embed": ({"texts": ["a"]}, {"inputs": [{"content": [{"type": "text", "text": "a"}]}]}),
    "/load_lora_adapter": ({"lora_name": "a", "lora_path": "a"},),
    "/unload_lora_adapter": ({"lora_name": "a"},),
    "/similarity": ({"inputs": {"source_sentence": "a", "sentences": ["a"]}},),
    "/models": ({"inputs": "a"},),
}
#: Those of an endpoint of one server, by both.
BODIES_OF: Mapping[tuple[str, str], tuple[Mapping[str, Any], ...]] = {
    ("answers", "/predict"): ({"inputs": {"question": "a", "context": "a"}},),
    ("choices", "/predict"): ({"inputs": "a", "parameters": {"candidate_labels": ["a", "b"]}},),
}
#: Paths without a body, which have no fields to grow.
EMPTY = frozenset({"/v1/responses/{name}/cancel"})
#: Forms, by path: fields of a small one, besides its files.
FORMS: Mapping[str, Mapping[str, str]] = {
    "/v1/images/edits": {"model": MODEL, "prompt": "a", "strength": "1", "size": "32x32"},
    **{
        f"/v1/audio/{name}": {"model": MODEL, "language": "en"}
        for name in ("transcriptions", "translations")
    },
}
#: Kinds of the files of forms, by field.
FORM_FILES: Mapping[str, str] = {"file": "audio", "image": "image", "mask": "image"}
#: Counted paths without a body.
READ = frozenset(
    {"/api/ps", "/api/tags", "/api/version", "/health", "/metrics", "/openapi.json", "/ping", "/tokenizer_info"}
    | {"/v1/models", "/version"}
)  # fmt: skip
#: Texts that hold a file, by the ends of their paths and names: the kind of the file, and whether a URL precedes it.
FILES: Mapping[str, tuple[str, bool]] = {
    "image_url": ("image", True),
    "image_url.url": ("image", True),
    "source.url": ("image", True),
    "source.data": ("image", False),
    "images[]": ("image", False),
    "video_url.url": ("video", True),
    "audio_url.url": ("audio", True),
    "input_audio.data": ("audio", False),
    "/models/{model} inputs": ("image", False),
}
#: Kind of the file that is a body.
FILE_BODIES: Mapping[str, str] = {"/models/{model}": "image"}
#: Fields that each server reads files from, by path.
READS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vision": (
        ("/v1/chat/completions", "messages[].content[].image_url.url"),
        ("/v1/responses", "input[].content[].image_url"),
        ("/v1/messages", "messages[].content[].source.data"),
        ("/api/chat", "messages[].images[]"),
        ("/api/generate", "images[]"),
    ),
    "captions": (
        ("/v1/chat/completions", "messages[].content[].image_url.url"),
        ("/api/generate", "images[]"),
    ),
    "images": (("/v1/embeddings", "messages[].content[].image_url.url"),),
    "chats": (
        ("/v1/embeddings", "messages[].content[].image_url.url"),
        ("/v1/embeddings", "messages[].content[].video_url.url"),
    ),
    "speech": (*((path, "file") for path in FORMS if "audio" in path),),
    "painter": (("/v1/images/edits", "image"),),
    "depths": (("/models/{model}", "inputs"), ("/models/{model}", "file")),
    "objects": (("/models/{model}", "inputs"), ("/models/{model}", "file")),
    "segments": (("/models/{model}", "inputs"), ("/models/{model}", "file")),
    "larger": (("/models/{model}", "inputs"), ("/models/{model}", "file")),
}
#: Grown files that each of these fields takes.
READABLE = ("noise JPEG", "frames PNG", "noise WAV")
#: Growths of texts, by name.
TEXTS: Mapping[str, str] = {
    "letters": "a",
    "lines": "\n",
    "spaces": " ",
    "quotes": '"',
    "backslashes": "\\",
    "brackets": "[{",
    "accents": "é\u0301",
    "rules": "a ::= b\n",
    "base64": "iVBO",
}
DEPTH = 90  # just below the limit of the server


@functools.cache
def growths(kind: str) -> Mapping[str, Any]:
    """Return values of about `SIZE` bytes for a kind of field, by name."""
    texts = {name: text * (SIZE // len(json.dumps(text)[1:-1])) for name, text in TEXTS.items()}
    many = {f"k{number}": 1 for number in range(SIZE // 12)}
    deep: Any = "a"
    for _ in range(DEPTH):
        deep = {"a": deep}
    lists = {
        "numbers": [1] * (SIZE // 3),
        "words": ["a"] * (SIZE // 5),
        "objects": [{"a": 1}] * (SIZE // 10),
        "depths": [deep] * (SIZE // (8 * DEPTH)),
    }
    objects = {"keys": many, "depth": {"a": deep}, "a long key": {"a" * SIZE: 1}}
    return {
        "text": texts,
        "list": lists,
        "object": objects,
        "number": {"digits": int("9" * 4000)},
        "any": {**texts, **lists, **objects},
        "fixed": {},
        "file": {},  # of its own kind
    }[kind]


def files(name: str) -> Mapping[str, Callable[[], str]]:
    """Return functions that write files as texts for a place, by name; none for a place of other texts."""
    kind, is_url = next((FILES[end] for end in FILES if name.endswith(end)), ("", False))
    if not kind:
        return {}

    def text(one: str) -> str:
        written = base64.b64encode(grown_media.file(kind, one, SIZE * 3 // 4)).decode()
        media = (
            "audio/wav" if kind == "audio" else f"{kind}/mp4" if kind == "video" else "image/png"
        )
        return f"data:{media};base64,{written}" if is_url else written

    return {one: partial(text, one) for one in grown_media.names(kind)}


@dataclass(frozen=True)
class Place:
    """Place in a body.

    Args:
        name: Name of the place.
        kind: Kind of its value.
        wrap: Function from a value there to the value of the body's field.
        item: Smallest item of a list; None for others.
    """

    name: str
    kind: str
    wrap: Callable[[Any], Any]
    item: Any = None


#: Fields of files within values of any kind, by path.
WITHIN: Mapping[str, Place] = {
    "/v1/responses": Place(
        "input[].content[].image_url",
        "text",
        lambda url: [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
    ),
    "/v1/messages": Place(
        "messages[].content[].source.data",
        "text",
        lambda data: [{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": data}}]}],
    ),
}  # fmt: skip


class Walker:
    """Walker of the schemas of an app.

    Args:
        document: Content of /openapi.json.
    """

    def __init__(self, document: Schema) -> None:
        self._named = document.get("components", {}).get("schemas", {})

    def resolved(self, schema: Schema) -> Schema:
        """Return a schema that is no reference."""
        while "$ref" in schema:
            schema = self._named[schema["$ref"].rpartition("/")[2]]
        return schema

    def smallest(self, schema: Schema) -> Any:
        """Return a small value of a schema."""
        schema = self.resolved(schema)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.smallest(schema[several][0])
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        if schema.get("type") == "object":
            fields = schema.get("properties", {})
            found = {name: self.smallest(fields[name]) for name in schema.get("required", ())}
            return {**found, "role": "user"} if "role" in found else found  # who may send a file
        if schema.get("type") == "array":
            return [self.smallest(schema.get("items", {}))] * max(1, schema.get("minItems", 1))
        numbers = dict.fromkeys(("integer", "number"), schema.get("minimum", 1))
        return {"string": "a", "boolean": True, "null": None, **numbers}.get(
            schema.get("type"), "a"
        )

    def places(
        self, schema: Schema, name: str, wrap: Callable[[Any], Any], within: tuple[int, ...] = ()
    ) -> Iterator[Place]:
        """Yield all places in values of a schema; those of a recursive schema once."""
        schema = self.resolved(schema)
        if id(schema) in within:
            return
        within = (*within, id(schema))
        alternatives = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
        for one in alternatives:
            yield from self.places(one, name, wrap, within)
        if alternatives:
            return
        kind = self._kind(schema, name)
        items = schema.get("items", {}) if kind == "list" else {}
        yield Place(name, kind, wrap, self.smallest(items) if items else None)
        if items:
            count = max(1, schema.get("minItems", 1))
            yield from self.places(items, f"{name}[]", lambda value: wrap([value] * count), within)
        for key, field in schema.get("properties", {}).items():
            base = self.smallest(schema)

            def inner(value: Any, key: str = key, base: Any = base) -> Any:
                return wrap({**base, key: value})

            yield from self.places(field, f"{name}.{key}", inner, within)

    @staticmethod
    def _kind(schema: Schema, name: str) -> str:
        if "const" in schema or "enum" in schema:
            return "text" if schema.get("type") == "string" else "fixed"
        if schema.get("format") == "binary":
            return "file"
        kinds = {
            "string": "text", "array": "list", "object": "object", "integer": "number", "number": "number",
            "boolean": "fixed", "null": "fixed",
        }  # fmt: skip
        if "type" not in schema:
            unknown = schema.keys() - {"title", "description", "default", "maxLength", "examples"}
            assert not unknown, f"{name} has a schema that no growth is known for: {schema}"
            return "any"
        return kinds[schema["type"]]


@dataclass(frozen=True)
class Case:
    """Request with a grown field.

    Args:
        path: Path of the endpoint.
        name: Names of the field and its growth.
        body: Fields of the request, or the file that is its body.
        has_recording: Whether it has a recording.
        numbers: Number of numbers in the answer, if they are many.
    """

    path: str
    name: str
    body: Callable[[], dict[str, Any] | bytes]
    has_recording: bool = False
    numbers: int = 0


def cases(document: Schema, name: str = "") -> list[Case]:
    """Return all cases of an app.

    Args:
        document: Content of /openapi.json.
        name: Name of the server, if there is one.
    """
    walker, found = Walker(document), list[Case]()
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        form = content.get("multipart/form-data")
        schema = content.get("application/json", form or {}).get("schema")
        if "post" not in methods or path in EMPTY:
            continue
        assert schema is not None, f"POST {path} has no model of its body: name it in EMPTY"
        (schema,) = (one for one in schema.get("anyOf", [schema]) if one.get("type") != "null")
        bases = BODIES_OF.get((name, path)) or bases_of(path)
        assert bases, f"POST {path} has no body here: add one to BODIES or FORMS"
        for field, inner in walker.resolved(schema).get("properties", {}).items():
            base = next((one for one in bases if field in one), bases[0])
            for place in walker.places(inner, field, lambda value: value):
                known = dict(growths(place.kind))
                known |= files(f"{path} {place.name}") if place.kind == "text" else {}
                if place.kind == "file":
                    kind = FORM_FILES[field]
                    known |= {
                        name: partial(grown_media.file, kind, name, SIZE)
                        for name in grown_media.names(kind)
                    }
                if place.item is not None:
                    count = max(1, SIZE // (len(json.dumps(place.item)) + 2))
                    known["items"] = [place.item] * count
                for growth, value in known.items():
                    found.append(_case(path, field, place, growth, value, base))
        if "application/octet-stream" in content:
            kind = FILE_BODIES[path]
            for growth in grown_media.names(kind):
                body = partial(grown_media.file, kind, growth, SIZE)
                found.append(Case(path, f"file: {growth}", body))
            found.append(Case(path, "file: most depths", _most_depths, numbers=MAX_NUMBERS))
        if (place := WITHIN.get(path)) is not None:
            field = place.name.partition("[")[0]
            for growth, value in files(place.name).items():
                found.append(_case(path, field, place, growth, value, bases[0]))
    return found


def _case(
    path: str, field: str, place: Place, growth: str, value: Any, base: Mapping[str, Any]
) -> Case:
    def body() -> dict[str, Any]:
        return {**base, field: place.wrap(value() if callable(value) else value)}

    has_recording = (path in FORMS and "audio" in path) or "audio" in place.name
    return Case(path, f"{place.name}: {growth}", body, has_recording)


def _most_depths() -> bytes:
    """Return a small file of an image whose answer has almost as many numbers as an answer may have."""
    file, side = io.BytesIO(), math.isqrt(MAX_NUMBERS)
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


def bases_of(path: str) -> tuple[Mapping[str, Any], ...]:
    """Return the bodies of an endpoint, or those of another spelling of its path."""
    if path in READ:
        return ()
    if path in FORMS:
        if "audio" in path:
            return ({**FORMS[path], "file": grown_media.file("audio", "silence WAV", 1)},)
        return ({**FORMS[path], "image": grown_media.file("image", "noise PNG", 1 << 12)},)
    plain = path.removesuffix("/input_tokens").removesuffix("/{model}")
    other = path.removeprefix("/v1").removeprefix("/v2")
    spellings = (plain, other, f"/v1{other}", f"/v2{other}")
    return next((BODIES[one] for one in spellings if one in BODIES), ())


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def written(
    path: str, fields: Mapping[str, Any] | bytes, *, as_text: bool, encoding: str
) -> tuple[bytes, str]:
    """Return the content of a body and its type: a file, JSON, or a form."""
    if isinstance(fields, bytes):
        return fields, "application/octet-stream"
    if path not in FORMS:
        return json.dumps(fields, ensure_ascii=as_text).encode(encoding), "application/json"
    texts = {
        name: [*map(str, value)] if isinstance(value, list) else str(value)
        for name, value in fields.items()
        if name not in FORM_FILES
    }
    sent = {name: fields[name] for name in FORM_FILES if name in fields}
    form = httpx.Request("POST", "http://localhost", data=texts, files=sent)
    return form.read(), form.headers["Content-Type"]


def refused_files(posts: Posts, name: str) -> list[str]:
    """Return the fields that a server reads files from, and whose usual files it refuses."""
    document = json.loads(posts._run(posts._client.get("/openapi.json")).text)
    known, found = cases(document, name), list[str]()
    for path, place in READS.get(name, ()):
        names = {f"{place}: {growth}" for growth in READABLE}
        mine = [case for case in known if case.path == path and case.name in names]
        assert mine, f"{path} has no field {place}"
        for case in mine:
            body, kind = written(path, case.body(), as_text=True, encoding="utf-8")
            response = posts.send(path.replace("{model}", MODEL), body, **{"Content-Type": kind})
            if response.status_code == 200:
                break
        else:
            found.append(f"{path} {place}: {response.text[:500]}")
    return found


def cost(posts: Posts, case: Case) -> tuple[int, float, int, int]:
    """Send a case; return the bytes of its body, CPU seconds, bytes of memory, and numbers in the answer."""
    encoding = ("utf-8", "utf-8", "utf-16")[seed(case.path, case.name) % 3]
    as_text = bool(seed(case.name, "ascii") % 2)
    body, kind = written(case.path, case.body(), as_text=as_text, encoding=encoding)
    sent: Any = in_pieces(body, 16) if seed(case.name, case.path) % 4 == 0 else body
    before, begun = reset_peak(), time.process_time()
    response = posts.send(case.path.replace("{model}", MODEL), sent, **{"Content-Type": kind})
    seconds = time.process_time() - begun
    # Models that compute an image, or need labels, refuse the image of most depths before they compute.
    refusals = (400, 403, 404, 413, 422)
    answers = (
        (200,) if case.numbers and getattr(posts, "computes_depths", True) else (200, *refusals)
    )
    assert response.status_code in answers, (case.name, response.text[:500])
    # An answer has at most `MAX_NUMBERS`, which it is priced by; few ones cost nothing.
    numbers = response.content.count(b",") if response.status_code == 200 else 0
    return len(body), seconds, max(0, peak_memory() - before), numbers


def over_budget(
    posts: Posts, name: str, only: Collection[str] = ()
) -> tuple[list[str], dict[str, Any]]:
    """Return the cases that cost too much, and the largest costs by path.

    Args:
        posts: Server.
        name: Name of the server.
        only: Paths whose fields are grown; empty for all.
    """
    client = posts._client
    document = json.loads(posts._run(client.get("/openapi.json")).text)
    known = [case for case in cases(document, name) if not only or case.path in only]
    assert {*only} <= {case.path for case in known}
    drawn = sorted(known, key=lambda case: seed(case.path, case.name))[: None if EVERY else FEW]
    paths = sorted({case.path for case in drawn})
    for path in paths:  # without what is done once
        body, kind = written(path, bases_of(path)[0], as_text=True, encoding="utf-8")
        posts.send(path.replace("{model}", MODEL), body, **{"Content-Type": kind})
    beyond, rows = list[str](), dict[str, Any]()
    for path in paths:
        worst: tuple[float, str] = (0.0, "")
        memory: tuple[float, str] = (0.0, "")
        mine = [case for case in drawn if case.path == path]
        for case in mine:
            size, seconds, nbytes, count = cost(posts, case)
            numbers = min(max(count, case.numbers), MAX_NUMBERS)
            if size >= SIZE // 4:  # a smaller one costs what any request does
                worst = max(worst, (1e6 * seconds / size, case.name))
                memory = max(memory, (nbytes / size, case.name))
            most = SECONDS + SECONDS_OF_BYTE * size + SECONDS_OF_RECORDING * case.has_recording
            most += SECONDS_OF_NUMBER * numbers
            room = MEMORY + MEMORY_OF_BYTE * size + MEMORY_OF_NUMBER * numbers
            times = getattr(posts, "times", 1)
            if seconds > times * most or nbytes > times * room:
                beyond.append(f"{path} {case.name}: {seconds:.2f} s, {nbytes:,} bytes for {size:,}")
        rows[path] = {"cases": len(mine), "cpu_us": worst, "bytes": memory}
    return beyond, rows


def record(place: Path, rows: Mapping[str, Any]) -> None:
    """Add costs to those of the other servers in a file."""
    known = json.loads(place.read_text()) if place.exists() else {}
    for path, row in rows.items():
        other = known.get(path, {"cases": 0, "cpu_us": (0.0, ""), "bytes": (0.0, "")})
        known[path] = {
            "cases": row["cases"] + other["cases"],
            **{key: max([*row[key]], [*other[key]]) for key in ("cpu_us", "bytes")},
        }
    place.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


# --- servers --------------------------------------------------------------------------------------


def encoder(models: Models, home: Path, task: str, **config: Any) -> Package:
    """Build a tiny BERT for a task."""
    name = "-".join(["bert", task, *map(str, config.values())])
    checkpoint = models.checkpoint(name, "bert", task=task, **config)
    return models.build(checkpoint, home, seq_lens=(16, 40), batch_size=3, task=task)


def unpooled(models: Models, home: Path) -> Package:
    """Build a tiny BERT that returns the states of tokens."""
    return models.build(models.bert, home, seq_lens=(16, 40), batch_size=3, pooling="none")


def tiny_of_images(models: Models, home: Path, *, model_type: str) -> Package:
    """Build the tiny model of a recipe that reads images alone."""
    recipe = find_recipe(model_type)
    make = partial(tiny_models.make, recipe, recipe.tiny[0])
    return models.build(made_once(models._folder / model_type, make), home, batch_size=1)


def captions(models: Models, home: Path) -> Package:
    """Build a tiny TrOCR."""
    from runnable_package import _tokenizer

    recipe = find_recipe("vision-encoder-decoder")

    def make(folder: Path) -> None:
        tiny_models.make(recipe, recipe.tiny[0], folder)
        _tokenizer(recipe.task, types=False).save_pretrained(folder)

    return models.build(made_once(models._folder / "captions", make), home, batch_size=1)


def voice(models: Models, home: Path) -> Package:
    """Build a small VITS."""
    checkpoint = made_once(models._folder / "small-voice", small_voice.write)
    return models.build(checkpoint, home, seq_lens=(16, 48), batch_size=1)


def masked(models: Models, home: Path) -> Package:
    """Build a tiny BERT that fills masks."""
    return models.build(sentence_models.encoder("masked"), home, seq_lens=(16, 40), batch_size=3)


def matching(models: Models, home: Path) -> Package:
    """Build a tiny CLIP."""
    from runnable_package import _tokenizer

    task = "zero-shot-image-classification"
    recipe = contract.for_task(find_recipe("clip"), task)

    def make(folder: Path) -> None:
        tiny_models.make(recipe, recipe.tiny[0], folder)
        _tokenizer(task, types=False).save_pretrained(folder)

    return models.build(made_once(models._folder / "clip", make), home, batch_size=2)


def speech(models: Models, home: Path) -> Package:
    """Build a tiny Whisper."""
    import random_speech

    checkpoint = made_once(models._folder / "whisper", random_speech.write)
    return models.build(checkpoint, home, batch_size=1, prefill_seq_len=8)


def drawing(session: Any, *, max_waiting: int) -> DrawingQueue:
    """Return a queue of images of one step by default: more steps are more work, whatever the body."""
    session.family.steps = 1
    return DrawingQueue(session, max_waiting=max_waiting)


#: Queue of a server, and a function that builds its package.
PACKAGES: Mapping[str, tuple[Any, Callable[[Models, Path], Package]]] = {
    "scores": (EncoderQueue, partial(encoder, task="text-classification", num_labels=1)),
    "labels": (EncoderQueue, partial(encoder, task="text-classification", num_labels=3)),
    "entities": (EncoderQueue, partial(encoder, task="token-classification")),
    "masks": (EncoderQueue, masked),
    "answers": (EncoderQueue, partial(encoder, task="question-answering")),
    "choices": (EncoderQueue, partial(encoder, task="multiple-choice")),
    "sparse": (EncoderQueue, partial(encoder, task="sparse-embedding")),
    "tokens": (EncoderQueue, unpooled),
    "captions": (Engine, captions),
    "images": (ImageQueue, matching),
    "speech": (SpeechQueue, speech),
    "depths": (DepthQueue, partial(tiny_of_images, model_type="dpt")),
    "objects": (DetectionQueue, partial(tiny_of_images, model_type="yolos")),
    "named": (NamedDetectionQueue, partial(tiny_of_images, model_type="owlvit")),
    "voices": (VoiceQueue, voice),
    "segments": (SegmentationQueue, partial(tiny_of_images, model_type="segformer")),
    "larger": (ImageToImageQueue, partial(tiny_of_images, model_type="swin2sr")),
    "painter": (drawing, partial(tiny_of_images, model_type="StableDiffusionPipeline")),
}
_FIXTURES = {"text": "calling", "vision": "looking", "embeddings": "encoding"}


@contextmanager
def served(queue: Any, **choices: Any) -> Iterator[Posts]:
    """Serve a queue."""
    with closing(queue):
        posts = Posts(serving.create_app(queue, name=MODEL, fingerprint="qz1-ab", **choices))
        yield posts
        posts.close()


@pytest.fixture(params=SERVERS)
def posts(
    request: pytest.FixtureRequest, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Posts]:
    """Give a server."""
    name = request.param
    if fixture := _FIXTURES.get(name):
        yield request.getfixturevalue(fixture)
        return
    if name == "chats":
        session = request.getfixturevalue("chat_embedder")
        session.embed("a", images=[grown_media.file("image", "noise PNG", SIZE // 8)])  # for shapes
        with served(PromptQueue(session, max_waiting=8)) as found:
            yield found
        return
    if name == "adapters":
        package = models.build(models.llama, tmp_path, max_loras=1, max_lora_rank=4)
        engine, sources = Engine(qeff_zoo.load(package, threads=1)), Sources.of([str(tmp_path)])
        with served(engine, adapter_sources=sources) as found:
            yield found
        return
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    queue, build = PACKAGES[name]
    session = qeff_zoo.load(build(models, tmp_path), threads=1)
    with served(queue(session, max_waiting=8)) as found:
        yield found


@pytest.mark.filterwarnings("ignore:it has too many parts")  # of Pillow, about a TIFF file
@pytest.mark.sampled(4)
@needs_counters
def test_requests_within_budget(posts: Posts, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["posts"]
    posts.computes_depths = name not in ("larger", "named")
    # A larger image is computed of states of each pixel, of which the server admits 262,144.
    posts.times = 8 if name == "larger" else 1
    assert not refused_files(posts, name)
    beyond, rows = over_budget(posts, name, ALONE.get(name, ()))
    if (place := os.environ.get("QEFF_ZOO_BUDGET_RECORD")) and EVERY:
        record(Path(place), rows)
    assert rows
    assert not beyond, "\n".join(beyond)


@pytest.mark.parametrize("form", FORMATS)
@needs_counters
def test_images_take_the_memory_of_their_price(form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    file = io.BytesIO()
    options: Mapping[str, dict[str, Any]] = {
        "AVIF": {"speed": 10},
        "JPEG": {"progressive": True, "subsampling": 0},
        "PNG": {"compress_level": 1},
        "WEBP": {"lossless": True, "method": 0},
    }
    shown = Image.fromarray(pixels).resize((1024, 1024), Image.Resampling.NEAREST)
    shown = shown.convert("P") if form == "GIF" else shown
    shown.save(file, form, **options.get(form, {}))
    content = file.getvalue()
    before = reset_peak()
    assert read_image(content).shape == (1024, 1024, 3)
    assert peak_memory() - before <= decoded_bytes_of(content, shown.size) + (1 << 20)


@needs_counters
def test_costs_are_measured() -> None:
    """A field that takes a fifth of a second, and 100 MB for a while."""

    class Costly:
        def send(self, _: str, body: bytes, **headers: str) -> Any:
            end = time.process_time() + 0.2
            held = bytearray(100_000_000)
            held[::4096] = b"a" * len(held[::4096])
            while time.process_time() < end:
                pass
            return type("Response", (), {"status_code": 200, "content": b""})

    costs = [cost(Costly(), Case("/a", "a", lambda: {"a": "b"})) for _ in range(3)]  # type: ignore[arg-type]
    assert all(seconds >= 0.2 for _, seconds, *_ in costs)
    # What an earlier test leaves, and a thread frees meanwhile, hides as much.
    assert 90_000_000 < max(nbytes for _, _, nbytes, _ in costs) < 200_000_000


def test_unknown_fields_and_endpoints_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    post = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/a/Body"}}}}}
    document: dict[str, Any] = {
        "paths": {"/v1/new": {"post": post}},
        "components": {"schemas": {"Body": {"properties": {"one": {"type": "string"}}}}},
    }
    with pytest.raises(AssertionError, match="add one to BODIES or FORMS"):
        cases(document)
    monkeypatch.setitem(BODIES, "/v1/new", ({},))  # type: ignore[arg-type]
    assert len(cases(document)) == len(TEXTS)
    document["components"]["schemas"]["Body"]["properties"]["two"] = {"format": "new"}
    with pytest.raises(AssertionError, match="no growth is known"):
        cases(document)


def test_each_service_and_path_is_listed() -> None:
    serves = {contract.find(task).commands.serve for task in contract.NAMES} - {None}
    assert {one() for one in serves if one} == {*SERVERS.values()}
    assert {path for path in known_paths() if not bases_of(path)} == {*PAGE_PATHS, *READ}
