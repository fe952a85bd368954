# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API: `/models/MODEL`, whose body is a file or JSON. Its endpoint is that of a task."""

from starlette.datastructures import Headers

#: Prefix of the path, before the name of a model.
PREFIX = "/models/"
#: Path by which metrics count the requests of all models.
COUNTED = "/models"


def model_of(path: str) -> str | None:
    """Return the name of the model in a path; None for a path of another API."""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else None


def is_raw(path: str, headers: Headers) -> bool:
    """Return whether a body is the content of a file: any at these paths that is not declared as JSON."""
    return model_of(path) is not None and not is_json(headers)


def is_json(headers: Headers) -> bool:
    """Return whether a body is declared as JSON."""
    return headers.get("content-type", "").lower().startswith("application/json")
