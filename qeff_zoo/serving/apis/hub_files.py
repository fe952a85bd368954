# SPDX-License-Identifier: Apache-2.0
"""Bodies of Hugging Face's inference API with a file: its content, or JSON with it in base64, as clients send them."""

import base64
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel
from pydantic_core import from_json

from qeff_zoo.serving.errors import ApiError, renaming
from qeff_zoo.serving.requests.schemas import RequestBody

#: Name of the parameter with the file, for errors.
PARAM = "inputs"

_Parameters = TypeVar("_Parameters", bound=BaseModel)


class FileRequest(RequestBody, Generic[_Parameters]):
    """Body of /models/MODEL: a file in base64, and parameters of the task."""

    inputs: str
    parameters: _Parameters | None = None


_FILE: Mapping[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def documented(kind: str, parameters: type[BaseModel]) -> dict[str, Any]:
    """Return the forms of a request, for /openapi.json.

    Args:
        kind: Type of the file, such as "image/*".
        parameters: Parameters of the task.
    """
    form: dict[str, Any] = {
        "type": "object",
        "required": [PARAM],
        "properties": {
            "model": {"type": "string"},
            PARAM: {"type": "string", "contentEncoding": "base64"},
            "parameters": parameters.model_json_schema(),
        },
    }
    content = {
        kind: _FILE,
        "application/octet-stream": _FILE,
        "application/json": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}}


async def read_file(
    request: Request, parameters: type[_Parameters], noun: str, *, as_json: bool
) -> tuple[bytes, _Parameters]:
    """Return the file of a request, and its parameters.

    Args:
        request: Request of a client.
        parameters: Class of the parameters, which are all optional.
        noun: Kind of the file with its article, for errors.
        as_json: Whether the body is declared as JSON.

    Raises:
        ApiError: The body is neither a file nor JSON with one.
    """
    content = await request.body()
    if not as_json:
        return content, parameters()
    try:
        fields = from_json(content)
    except ValueError as error:
        raise ApiError(
            400,
            f"The body is not JSON: {error}; expected an object, or the file of {noun} with its own Content-Type. "
            "Correct it.",
            code="invalid_json",
        ) from error
    with renaming({}):
        body = FileRequest[parameters].model_validate(fields)  # type: ignore[valid-type]
    try:
        return base64.b64decode(body.inputs, validate=True), body.parameters or parameters()
    except ValueError as error:  # of a text that is not ASCII, too
        raise ApiError(
            400,
            f"Parameter {PARAM!r} is not base64 ({error}); expected the file of {noun} in base64. Encode it.",
            param=PARAM,
            code="invalid_value",
        ) from error
