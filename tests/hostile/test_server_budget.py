# SPDX-License-Identifier: Apache-2.0
"""Cost of a request by its size: every field of every endpoint is grown, and CPU time and memory are bounded.

The fields are those of /openapi.json, which the app makes of its endpoints: a new field is grown by its type, and a new
endpoint, or a field of an unknown type, fails until the tables here have it. QEFF_ZOO_TEST_EVERY=1 grows each field in
every way; QEFF_ZOO_BUDGET_TABLE=FILE then writes the table of docs/server.md.
"""

import functools
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures_serving import MODEL
from selection import EVERY, seed
from test_fuzz_bodies import Posts, calling, encoding

__all__ = ["calling", "encoding"]

Schema = Mapping[str, Any]
SIZE = 1 << 16  # bytes of a grown field
#: Bounds of a request: CPU seconds, and bytes of memory; and each for a byte of its body.
SECONDS, SECONDS_OF_BYTE = 0.5, 15e-6
MEMORY, MEMORY_OF_BYTE = 64 << 20, 300
#: Number of cases of an app that are tried by default.
FEW = 60
_CHAT = {"messages": [{"role": "user", "content": "a"}]}
_OLLAMA = {"options": {"num_predict": 1}, "stream": False}
#: Smallest bodies of endpoints: a field is grown in the first one that has it, or else in the first.
BODIES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "/v1/chat/completions": ({**_CHAT, "max_tokens": 1},),
    "/v1/completions": ({"prompt": "a", "max_tokens": 1},),
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
    "/similarity": ({"inputs": {"source_sentence": "a", "sentences": ["a"]}},),
}
#: Paths without a model of the body, which have no fields to grow.
EMPTY = frozenset({"/v1/responses/{name}/cancel"})
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
    }[kind]


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
            return {name: self.smallest(fields[name]) for name in schema.get("required", ())}
        if schema.get("type") == "array":
            return [self.smallest(schema.get("items", {}))]
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
            yield from self.places(items, f"{name}[]", lambda value: wrap([value]), within)
        for key, field in schema.get("properties", {}).items():
            base = self.smallest(schema)

            def inner(value: Any, key: str = key, base: Any = base) -> Any:
                return wrap({**base, key: value})

            yield from self.places(field, f"{name}.{key}", inner, within)

    @staticmethod
    def _kind(schema: Schema, name: str) -> str:
        if "const" in schema or "enum" in schema:
            return "text" if schema.get("type") == "string" else "fixed"
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
        body: Body of the request.
    """

    path: str
    name: str
    body: Callable[[], dict[str, Any]]


def cases(document: Schema) -> list[Case]:
    """Return all cases of an app."""
    walker, found = Walker(document), list[Case]()
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if "post" not in methods or path in EMPTY or "multipart/form-data" in content:
            continue
        assert schema is not None, f"POST {path} has no model of its body: name it in EMPTY"
        (schema,) = (one for one in schema.get("anyOf", [schema]) if one.get("type") != "null")
        bases = bases_of(path)
        assert bases, f"POST {path} has no body here: add one to BODIES"
        for field, inner in walker.resolved(schema).get("properties", {}).items():
            base = next((one for one in bases if field in one), bases[0])
            for place in walker.places(inner, field, lambda value: value):
                known = dict(growths(place.kind))
                if place.item is not None:
                    count = max(1, SIZE // (len(json.dumps(place.item)) + 2))
                    known["items"] = [place.item] * count
                for growth, value in known.items():
                    found.append(_case(path, field, place, growth, value, base))
    return found


def _case(
    path: str, field: str, place: Place, growth: str, value: Any, base: Mapping[str, Any]
) -> Case:
    return Case(path, f"{place.name}: {growth}", lambda: {**base, field: place.wrap(value)})


def bases_of(path: str) -> tuple[Mapping[str, Any], ...]:
    """Return the bodies of an endpoint, or those of another spelling of its path."""
    plain = path.removesuffix("/input_tokens")
    other = path.removeprefix("/v1").removeprefix("/v2")
    spellings = (plain, other, f"/v1{other}", f"/v2{other}")
    return next((BODIES[one] for one in spellings if one in BODIES), ())


def peak_memory() -> int:
    """Return the largest size of this process in memory since `reset_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


def reset_peak() -> int:
    """Forget the largest size; return the present one."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def cost(posts: Posts, case: Case) -> tuple[int, float, int]:
    """Send the request of a case; return the bytes of its body, CPU seconds and bytes of memory."""
    text = json.dumps(case.body(), ensure_ascii=bool(seed(case.name, "ascii") % 2))
    body = text.encode(("utf-8", "utf-8", "utf-16")[seed(case.path, case.name) % 3])
    sent: Any = in_pieces(body, 16) if seed(case.name, case.path) % 4 == 0 else body
    before, begun = reset_peak(), time.process_time()
    response = posts.send(case.path, sent)
    seconds = time.process_time() - begun
    assert response.status_code in (200, 400, 404, 413, 422), (case.name, response.text[:500])
    return len(body), seconds, max(0, peak_memory() - before)


def over_budget(posts: Posts) -> tuple[list[str], list[str]]:
    """Return the cases that cost too much, and the rows of a table of all."""
    client = posts._client
    document = json.loads(posts._run(client.get("/openapi.json")).text)
    known = cases(document)
    drawn = sorted(known, key=lambda case: seed(case.path, case.name))[: None if EVERY else FEW]
    paths = sorted({case.path for case in drawn})
    for path in paths:  # without what is done once
        posts.send(path, json.dumps(bases_of(path)[0]).encode())
    beyond, rows = list[str](), list[str]()
    for path in paths:
        worst: tuple[float, str] = (0.0, "")
        memory: tuple[float, str] = (0.0, "")
        mine = [case for case in drawn if case.path == path]
        for case in mine:
            size, seconds, nbytes = cost(posts, case)
            if size >= SIZE // 4:  # a smaller one costs what any request does
                worst = max(worst, (1e6 * seconds / size, case.name))
                memory = max(memory, (nbytes / size, case.name))
            if (
                seconds > SECONDS + SECONDS_OF_BYTE * size
                or nbytes > MEMORY + MEMORY_OF_BYTE * size
            ):
                beyond.append(f"{path} {case.name}: {seconds:.2f} s, {nbytes:,} bytes for {size:,}")
        rows.append(
            f"| `{path}` | {len(mine):,} | {worst[0]:.1f} | `{worst[1]}` | {memory[0]:.0f} |"
        )
    return beyond, rows


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="counters of Linux")
def test_generation_within_budget(calling: Posts) -> None:
    check(calling)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="counters of Linux")
def test_encoding_within_budget(encoding: Posts) -> None:
    check(encoding)


def check(posts: Posts) -> None:
    beyond, rows = over_budget(posts)
    if (place := os.environ.get("QEFF_ZOO_BUDGET_TABLE")) and EVERY:
        with Path(place).open("a") as table:
            table.write("\n".join([*rows, ""]))
    assert rows
    assert not beyond, "\n".join(beyond)


def test_costs_are_measured() -> None:
    """A field that takes a fifth of a second, and 100 MB for a while."""

    class Costly:
        def send(self, _: str, body: bytes) -> Any:
            end = time.process_time() + 0.2
            held = bytearray(100_000_000)
            held[::4096] = b"a" * len(held[::4096])
            while time.process_time() < end:
                pass
            return type("Response", (), {"status_code": 200})

    _, seconds, nbytes = cost(Costly(), Case("/a", "a", lambda: {"a": "b"}))  # type: ignore[arg-type]
    assert seconds >= 0.2
    assert 90_000_000 < nbytes < 200_000_000


def test_unknown_fields_and_endpoints_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    post = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/a/Body"}}}}}
    document: dict[str, Any] = {
        "paths": {"/v1/new": {"post": post}},
        "components": {"schemas": {"Body": {"properties": {"one": {"type": "string"}}}}},
    }
    with pytest.raises(AssertionError, match="add one to BODIES"):
        cases(document)
    monkeypatch.setitem(BODIES, "/v1/new", ({},))  # type: ignore[arg-type]
    assert len(cases(document)) == len(TEXTS)
    document["components"]["schemas"]["Body"]["properties"]["two"] = {"format": "new"}
    with pytest.raises(AssertionError, match="no growth is known"):
        cases(document)
