# SPDX-License-Identifier: Apache-2.0
"""Errors of the API: a status and an error object, as in OpenAI's API."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from qeff_zoo.errors import (
    AdapterError,
    BusyError,
    ContextLengthError,
    GenerationError,
    HandoffError,
)

_RETRY_AFTER = "1"  # seconds; the time until a batch slot is free is unknown
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
#: Endpoints of OpenAI's API that this server lacks, with what to do instead.
_ABSENT = {
    "/v1/responses/compact": "Its answer is encrypted for OpenAI's service. Ask /v1/responses for a summary of the "
    "conversation, and begin the next one with it.",
    "/v1/batches": "Send the requests of a batch to their endpoints, many at a time: they wait in the queue.",
    "/v1/files": "Send the content of files in requests, and the requests of a batch to their endpoints.",
}
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 80


class ApiError(Exception):
    """A refused or failed request.

    Args:
        status: HTTP status.
        message: Message for the author of the client.
        param: Name of the faulty parameter.
        code: Error code for programs.
        details: Further fields of the error for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.details = {} if details is None else {"details": details}

    @property
    def body(self) -> dict[str, Any]:
        """Error object of the response, as in OpenAI's API, with the field `type` of Anthropic's."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {
            "type": "error",
            "error": {
                "message": self.message, "type": kind, "param": self.param, "code": self.code,
                **self.details,
            }
        }  # fmt: skip

    def response(self, path: str) -> JSONResponse:
        """Return the HTTP response, in the form of the API of a path."""
        body = {"error": self.message} if path.startswith("/api/") else self.body  # ollama's
        headers = {
            401: {"WWW-Authenticate": "Bearer"},
            429: {"Retry-After": _RETRY_AFTER},
            503: {"Retry-After": _RETRY_AFTER},
        }
        return JSONResponse(body, self.status, headers=headers.get(self.status))


def internal_error() -> ApiError:
    """Return the error of an internal failure; the log has the details."""
    return ApiError(
        500, "The server failed to answer this request. Its log says why.", code="internal_error"
    )


def queue_full(error: BusyError) -> ApiError:
    """Return the error of a request that exceeds the queue."""
    return ApiError(429, str(error), code="queue_full")


def shutting_down() -> ApiError:
    """Return the error of a request that a shutdown cancels."""
    return ApiError(
        503,
        "The server is shutting down. Ask another one, or try again later.",
        code="shutting_down",
    )


def too_large(most: str) -> ApiError:
    """Return the refusal of a body that exceeds `most`, a limit with its unit."""
    return ApiError(
        413,
        f"The body is too large for this server; expected at most {most}. Send less at a time.",
        code="body_too_large",
    )


def unknown_parameter(
    name: str, value: object, details: Mapping[str, object] | None = None
) -> ApiError:
    """Return the refusal of an unsupported parameter that would change the result."""
    return ApiError(
        400,
        f"Parameter {brief(name)} with the value {brief(value)} is not known or not supported here; expected a request "
        "without it. Leave it out.",
        param=brief(name)[1:-1],
        code="unsupported_parameter",
        details=details,
    )


def invalid(param: str, value: object, expected: str, advice: str) -> ApiError:
    """Return the refusal of a parameter's value."""
    return ApiError(
        400,
        f"Parameter {param!r} is {brief(value)}; expected {expected}. {advice}.",
        param=param,
        code="invalid_value",
    )


@contextmanager
def renaming(params: Mapping[str, str]) -> Iterator[None]:
    """Convert errors about a chat's parameters to errors about those of another API.

    Args:
        params: Names there by names of a chat's parameters.
    """
    try:
        yield
    except ApiError as error:
        error.param = params.get(error.param or "", error.param)
        raise
    except ValidationError as error:
        refusal = invalid_body([{**one, "loc": ("body", *one["loc"])} for one in error.errors()])
        refusal.param = params.get(refusal.param or "", refusal.param)
        raise refusal from error


def brief(value: object) -> str:
    """Return a client's value as text, shortened if long."""
    return _brief.repr(value)


def install(app: FastAPI) -> None:
    """Install handlers that return an error object for every failure of an app."""

    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> JSONResponse:
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        return invalid_body(error.errors()).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        return _http(request, error).response(request.url.path)

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> JSONResponse:
        return internal_error().response(request.url.path)  # the exception itself is logged


def invalid_body(problems: Sequence[Any]) -> ApiError:
    """Combine all errors of pydantic into one; `param` is that of the first."""
    first: Mapping[str, Any] = problems[0]
    place = [*first["loc"]][1:]  # after "body" or "query"
    if first["type"] == "json_invalid":
        return ApiError(
            400,
            f"The body is not JSON: {first['ctx']['error']} at character {place[0]}; expected an object. Correct it.",
            code="invalid_json",
        )
    if not place and first["type"] == "value_error":  # of several parameters
        return ApiError(
            400,
            f"The parameters contradict each other: {first['ctx']['error']}. Change them.",
            code="invalid_value",
        )
    if not place:
        return ApiError(
            400,
            f"The body is {brief(first['input'])}; expected a JSON object, and the header "
            "`Content-Type: application/json`. Send such a one.",
            code="invalid_body",
        )
    by_param: dict[str, list[Any]] = {}
    for problem in problems:
        by_param.setdefault(str(problem["loc"][1]), []).append(problem)
    if first["type"] == "extra_forbidden":
        refusal = unknown_parameter(".".join(map(str, place)), first["input"])
        refusal.param = str(place[0])
        return refusal
    missing = first["type"] == "missing" and len(place) == 1
    return ApiError(
        400,
        " ".join(_sentence(found) for found in by_param.values()),
        param=str(place[0]),
        code="missing_required_parameter" if missing else "invalid_value",
    )


def _sentence(problems: Sequence[Any]) -> str:
    """Return a sentence about one faulty parameter; alternatives contribute one expectation each."""
    first = problems[0]
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in first["loc"][1:]
        if isinstance(part, int) or (part.isidentifier() and part != "str")  # not of an alternative
    )[1:]
    if first["type"] == "missing":
        return f"Parameter {path!r} is missing; expected a value. Add it."
    expected = dict.fromkeys(one["msg"].replace("Input should be", "expected") for one in problems)
    return f"Parameter {path!r} is {brief(first['input'])}; {', or '.join(expected)}. Change it."


def _absent(path: str) -> str:
    """Return what to do instead of an endpoint of OpenAI's API that this server lacks; empty for any other path."""
    lacking = (one for one in _ABSENT if path == one or path.startswith(f"{one}/"))
    return "".join(
        f"This server has no {one}; expected another endpoint. {_ABSENT[one]}" for one in lacking
    )


def _http(request: Request, error: HTTPException) -> ApiError:
    """Replace the errors of FastAPI by ours."""
    path = request.url.path
    endpoint = f"{request.method} {path}"
    if error.status_code in (404, 405) and (advice := _absent(path)):
        return ApiError(404, advice, code="unknown_url")
    if error.status_code == 404:
        return ApiError(
            404,
            f"There is no {endpoint}; expected a path of /openapi.json. Ask for one of those.",
            code="unknown_url",
        )
    if error.status_code == 405:
        return ApiError(
            405,
            f"{endpoint} is not possible; expected another method.",
            code="method_not_supported",
        )
    problem = str(error.detail).rstrip(".")
    return ApiError(error.status_code, f"{problem}. Correct the request.", code="invalid_body")


@contextmanager
def blaming(param: str, code: str = "invalid_value") -> Iterator[None]:
    """Convert errors of the runtime to API errors that name the parameter."""
    try:
        yield
    except BusyError:
        raise
    except ContextLengthError as error:
        raise ApiError(400, str(error), param=param, code="context_length_exceeded") from error
    except AdapterError as error:  # unloaded since the request
        raise ApiError(404, str(error), param="model", code="model_not_found") from error
    except HandoffError as error:  # not the client's fault
        raise ApiError(503, str(error), code="prefill_unavailable") from error
    except GenerationError as error:
        raise ApiError(400, str(error), param=param, code=code) from error
