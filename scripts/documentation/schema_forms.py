# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of answers that clients send: pydantic's types, and JSON Schema's keywords and annotations, one each."""

import datetime
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from documentation.request_forms import RECORD

_T = TypeVar("_T")
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_AB = {"type": "object", "properties": {"a": _TEXT, "b": _INTEGER}}


class _Colour(enum.Enum):
    RED, BLUE = "red", "blue"


class _Number(enum.IntEnum):
    ONE, TWO = 1, 2


class _Flag(enum.Flag):
    A, B = 1, 2


class _Point(NamedTuple):
    x: int
    y: float = 0.0


class _Fields(TypedDict):
    name: str
    age: NotRequired[int]


@dataclass
class _Record:
    name: str
    tags: list[str]


class _Model(BaseModel):
    name: Annotated[str, Field(description="A name.", examples=["Ann"], min_length=1)]
    score: Annotated[float, Field(ge=0, le=1, title="Score")] = 0.5
    nick: str | None = None


class _Closed(_Model):
    model_config = ConfigDict(extra="forbid")


class _Open(_Model):
    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"name": "a"}], "x-order": 1}
    )


class _Alias(BaseModel):
    kind: Annotated[str, Field(alias="@type", deprecated=True)]


class _Node(BaseModel):
    value: int
    children: list["_Node"] = []


class _Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class _Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class _Generic(BaseModel, Generic[_T]):
    item: _T


#: Types by their names in the table.
TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "str": str, "int": int, "float": float, "bool": bool, "None": None, "bytes": bytes, "Any": Any,
        "object": object,
        "Decimal": Decimal, "complex": complex, "Fraction": Fraction,
        "date": datetime.date, "time": datetime.time, "datetime": datetime.datetime, "timedelta": datetime.timedelta,
        "UUID": uuid.UUID, "UUID4": pydantic.UUID4, "Path": pathlib.Path, "Pattern": re.Pattern,
        "IPv4Address": ipaddress.IPv4Address, "IPv6Address": ipaddress.IPv6Address,
        "IPv4Network": ipaddress.IPv4Network, "IPvAnyAddress": pydantic.IPvAnyAddress,
        "AnyUrl": pydantic.AnyUrl, "HttpUrl": pydantic.HttpUrl, "PostgresDsn": pydantic.PostgresDsn,
        "EmailStr": pydantic.EmailStr, "NameEmail": pydantic.NameEmail, "SecretStr": pydantic.SecretStr,
        "SecretBytes": pydantic.SecretBytes, "Json": pydantic.Json, "ByteSize": pydantic.ByteSize,
        "Base64Str": pydantic.Base64Str, "Base64UrlBytes": pydantic.Base64UrlBytes,
        "PastDate": pydantic.PastDate, "AwareDatetime": pydantic.AwareDatetime,
        "StrictInt": pydantic.StrictInt, "PositiveInt": pydantic.PositiveInt, "NegativeFloat": pydantic.NegativeFloat,
        "FiniteFloat": pydantic.FiniteFloat, "FilePath": pydantic.FilePath, "JsonValue": pydantic.JsonValue,
        "conint": Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)],
        "multiple_of": Annotated[int, Field(multiple_of=5, ge=0, le=1000)],
        "condecimal": Annotated[Decimal, Field(max_digits=6, decimal_places=2)],
        "constr": Annotated[str, Field(pattern="^[a-z]{2,4}$", min_length=2, max_length=4)],
        "list": list, "list[int]": list[int], "conlist": Annotated[list[int], Field(min_length=1, max_length=3)],
        "set[int]": set[int], "frozenset[str]": frozenset[str], "set[Enum]": set[_Colour], "deque": deque[int],
        "tuple[int, str]": tuple[int, str], "tuple[int, ...]": tuple[int, ...], "dict": dict,
        "dict[str, int]": dict[str, int], "dict[int, str]": dict[int, str], "dict[UUID, bool]": dict[uuid.UUID, bool],
        "dict[Literal, int]": dict[Literal["a", "b"], int], "dict[Enum, int]": dict[_Colour, int],
        "OrderedDict": OrderedDict[str, int], "defaultdict": defaultdict[str, list[int]], "Counter": Counter[str],
        "Literal": Literal["a", 1, True, None], "Enum": _Colour, "IntEnum": _Number, "Flag": _Flag,
        "NamedTuple": _Point, "TypedDict": _Fields, "dataclass": _Record, "BaseModel": _Model, "extra=forbid": _Closed,
        "extra=allow": _Open, "alias, deprecated": _Alias, "a recursive model": _Node,
        "a generic model": _Generic[list[int]],
        "int | str": int | str, "Optional": int | None,
        "a discriminated union": Annotated[_Cat | _Dog, Field(discriminator="kind")],
        "a union of models": _Cat | _Dog, "a list of unions": list[_Cat | _Dog | int],
    }
)  # fmt: skip


def _having(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


#: Schemas by keyword.
KEYWORDS: Mapping[str, Any] = MappingProxyType(
    {
        **{
            f"format: {name}": {**_TEXT, "format": name}
            for name in (
                "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4",
                "ipv6", "uri", "uri-reference", "iri", "uri-template", "uuid", "json-pointer", "relative-json-pointer",
                "regex", "password", "byte", "binary", "color",
            )
        },
        **{f"format: {name}": {"type": kind, "format": name} for name, kind in (
            ("int32", "integer"), ("int64", "integer"), ("float", "number"), ("double", "number"),
        )},
        "title, description, examples, default": {
            **_TEXT, "title": "T", "description": "D", "examples": ["a"], "default": "b",
        },
        "$schema, $id, $comment": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://a.example/s",
                                   "$comment": "c", **_AB},
        "$schema of draft 7": {"$schema": _DRAFT_7, **_AB},
        "readOnly, writeOnly, deprecated": {**_TEXT, "readOnly": True, "writeOnly": False, "deprecated": True},
        "contentEncoding, contentMediaType": {
            **_TEXT, "contentEncoding": "base64", "contentMediaType": "image/png", "contentSchema": {"type": "string"},
        },
        "nullable, example, xml, discriminator of OpenAPI": {
            **_AB, "nullable": True, "example": {}, "xml": {"name": "a"}, "discriminator": {"propertyName": "a"},
        },
        "x-…": {**_AB, "x-order": ["a"], "x-internal": True},
        "propertyOrdering of Gemini": {**_AB, "propertyOrdering": ["b", "a"]},
        "strict, name beside a type": {**_AB, "strict": True, "name": "n"},
        "a list of types": {"type": ["string", "integer", "null"]},
        "const": {"const": {"a": [1, None]}},
        "enum of several types": {"enum": ["a", 1, None, True, {"a": 1}]},
        "minLength, maxLength": {**_TEXT, "minLength": 2, "maxLength": 5},
        "pattern": {**_TEXT, "pattern": r"^\d{3}-\w+$"},
        "pattern without anchors": {**_TEXT, "pattern": "[0-9]{2}"},
        "pattern with look-ahead": {**_TEXT, "pattern": "^(?=.*[0-9])[a-z0-9]{3,8}$"},
        "minimum, maximum": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2},
        "multipleOf": {**_INTEGER, "multipleOf": 3, "minimum": 0, "maximum": 99},
        "items, minItems, maxItems": {"type": "array", "items": _INTEGER, "minItems": 1, "maxItems": 3},
        "prefixItems": {"type": "array", "prefixItems": [_TEXT, _INTEGER], "items": False, "minItems": 2},
        "items as a list": {
            "$schema": _DRAFT_7, "type": "array", "items": [_TEXT, _INTEGER], "additionalItems": False, "minItems": 2,
        },
        "uniqueItems": {
            "type": "array", "items": {**_INTEGER, "minimum": 0, "maximum": 9}, "uniqueItems": True, "maxItems": 5,
        },
        "contains": {"type": "array", "items": _INTEGER, "contains": {"const": 5}, "maxItems": 4},
        "required": {**_AB, "required": ["b"]},
        "additionalProperties: false": {**_AB, "additionalProperties": False, "required": ["a", "b"]},
        "additionalProperties of a schema": {**_AB, "additionalProperties": {"type": "boolean"}},
        "patternProperties": {"type": "object", "patternProperties": {"^x_": _INTEGER}, "additionalProperties": False},
        "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": _INTEGER},
        "minProperties, maxProperties": {
            "type": "object", "additionalProperties": _INTEGER, "minProperties": 1, "maxProperties": 2,
        },
        "dependentRequired": {**_AB, "dependentRequired": {"a": ["b"]}},
        "dependentSchemas": {**_AB, "dependentSchemas": {"a": {"required": ["b"]}}},
        "unevaluatedProperties": {"allOf": [_AB], "unevaluatedProperties": False},
        "anyOf": {"anyOf": [_TEXT, _INTEGER]},
        "oneOf": {"oneOf": [_TEXT, _INTEGER]},
        "oneOf that overlap": {"oneOf": [{**_INTEGER, "maximum": 5}, {**_INTEGER, "minimum": 3}]},
        "allOf": {"allOf": [_AB, {"required": ["a"], "properties": {"c": {"type": "boolean"}}}]},
        "not": {**_TEXT, "not": {"const": "a"}},
        "if, then, else": {**_AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
        "maxProperties in else": {**_AB, "if": {"required": ["a"]}, "else": {"maxProperties": 1}},
        "$ref to $defs": {"$defs": {"t": _TEXT}, **_having({"$ref": "#/$defs/t"})},
        "$ref beside keywords": {
            "$defs": {"t": _TEXT}, **_having({"$ref": "#/$defs/t", "description": "d", "maxLength": 3}),
        },
        "$ref to definitions": {"definitions": {"t": _TEXT}, **_having({"$ref": "#/definitions/t"})},
        "$ref to a property": {"type": "object", "properties": {"a": _TEXT, "b": {"$ref": "#/properties/a"}}},
        "$ref to the whole": {**_having({"$ref": "#"}), "additionalProperties": False},
        "$anchor": {"$defs": {"t": {**_TEXT, "$anchor": "t"}}, **_having({"$ref": "#t"})},
        "$dynamicRef": {"$dynamicAnchor": "n", **_having({"$dynamicRef": "#n"})},
        "a schema of another server": {"$ref": "https://a.example/schema.json"},
        "an empty schema": {},
        "properties without a type": {"properties": {"a": _TEXT}},
        "enum without a type": {"enum": ["a", "b"]},
    }
)  # fmt: skip


#: All schemas by name.
SCHEMAS: Mapping[str, Any] = MappingProxyType(
    {name: TypeAdapter(value).json_schema() for name, value in TYPES.items()} | {**KEYWORDS}
)
#: Schemas that this server refuses.
REFUSED = ("$dynamicRef", "a schema of another server", "maxProperties in else")


def schema_forms() -> str:
    """Return how many of the schemas are accepted, which a test checks, and how many by llama-server, by the record."""
    (record,) = json.loads(RECORD.read_bytes())["schemas"]
    others = record["refused"]
    assert record["answered"] + len(others) == len(SCHEMAS), "Run scripts/interop schemas"
    here, there = (", ".join(f"`{name}`" for name in names) for names in (REFUSED, others))
    return (
        f"Of {len(SCHEMAS)} schemas, {len(TYPES)} of pydantic's types and {len(KEYWORDS)} of JSON Schema's keywords, "
        f"formats and annotations, {len(REFUSED)} are rejected ({here}), and {len(others)} by {record['server']} "
        f"({there})."
    )
