# SPDX-License-Identifier: Apache-2.0
"""Server of packages over OpenAI's, Anthropic's and ollama's APIs, with a page for people (extra `serve`)."""

from qeff_zoo.serving.server.app import create_app
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.process import (
    bind,
    bind_unix,
    check_package,
    is_local,
    serve,
    serve_prefills,
    serve_several,
)

__all__ = [
    "ServerOptions",
    "bind",
    "bind_unix",
    "check_package",
    "create_app",
    "is_local",
    "serve",
    "serve_prefills",
    "serve_several",
]
