# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: llama.cpp's server tests on servers of this project.

`ServerProcess.start` serves a package in a thread, with the flags that have a counterpart. Paths get their `/v1`.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interop_checks.packages import GENERATORS, HERMES, REASONING, generator
from interop_checks.servers import Backends
from qeff_zoo.serving.requests.model import Model

#: Paths that llama-server offers with and without `/v1`.
_VERSIONED = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/models",
    "/embeddings",
    "/rerank",
    "/reranking",
    "/audio/transcriptions",
)
#: Templates of models, in the folder of the sources.
_TEMPLATES = Path("../../../models/templates")
#: Templates of models without a file of their name.
_SIBLINGS = {
    "DeepSeek-R1-Distill-Qwen-7B": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    "Qwen2.5-1.5B-Instruct": "Qwen-Qwen2.5-7B-Instruct.jinja",
    "Qwen2.5-Coder-3B-Instruct": "Qwen-Qwen2.5-7B-Instruct.jinja",
    "Llama-3.2-1B-Instruct": "meta-llama-Llama-3.2-3B-Instruct.jinja",
}
sys.modules.setdefault("wget", SimpleNamespace(download=None))  # type: ignore[arg-type]


def _package(server: Any) -> str:
    if server.server_reranking:
        return "reranker"
    if "infill" in (server.model_hf_repo or ""):
        return "infill"
    return "embeddings" if server.server_embeddings else generator(server.n_ctx or 0)


def _template(server: Any) -> str:
    """Return the template of a server: its file, its text, or that of its model; another for one without tools."""
    if server.chat_template_file:
        return Path(server.chat_template_file).read_text(encoding="utf-8")
    if "{" in (server.chat_template or ""):
        return str(server.chat_template)
    model = re.sub(r"^.*/|-GGUF.*$|^Meta-", "", server.model_hf_repo or "")
    published = [
        *_TEMPLATES.glob(f"*-{model}.jinja"),
        *_TEMPLATES.glob(_SIBLINGS.get(model, model)),
    ]
    if server.chat_template or not published:
        return HERMES
    own = published[0].read_text(encoding="utf-8")
    if re.search(r"\btools\b", own):
        return own
    return REASONING if "<think>" in own else HERMES


def _patch(utils: Any, backends: Backends) -> None:
    class Served(utils.ServerProcess):  # type: ignore[misc]
        def start(self, timeout_seconds: int = 0) -> None:
            name = _package(self)
            keys = tuple(self.api_key.split(",")) if self.api_key else ()
            self._stack = ExitStack()
            url = self._stack.enter_context(
                backends.running(
                    name,
                    template=_template(self) if name in GENERATORS else None,
                    host=self.server_host,
                    name=self.model_alias or name,
                    api_keys=keys,
                    origins=(self.cors_origins or "*",),
                    fingerprint="b-interop",
                    page=not self.no_ui,
                    port=getattr(self, "_port", 0),  # the same after a restart
                )
            )
            self.server_port = self._port = int(url.rpartition(":")[2].partition("/")[0])
            self.ready = True
            utils.server_instances.add(self)

        def stop(self) -> None:
            utils.server_instances.discard(self)
            if hasattr(self, "_stack"):
                self._stack.close()

        def make_request(
            self, method: str, path: str, data: Any = None, *more: Any, **others: Any
        ) -> Any:
            if self.reasoning and isinstance(
                data, dict
            ):  # a flag there, a field of the request here
                thinking = {"enable_thinking": self.reasoning != "off"}
                data = {**data, "chat_template_kwargs": thinking}
            return super().make_request(method, path, data, *more, **others)

        def make_stream_request(self, *options: Any, **named: Any) -> Iterator[Any]:
            for chunk in super().make_stream_request(*options, **named):
                for choice in chunk.get("choices", ()):
                    delta = choice.get("delta", {})
                    if delta.get("role") and delta.get("content") == "":
                        delta["content"] = None  # OpenAI's first chunk has an empty text
                yield chunk

        def make_url(self, path: str, host: str | None = None) -> str:
            versioned = path.startswith(_VERSIONED)
            return str(super().make_url(f"/v1{path}" if versioned else path, host))

    utils.ServerProcess = Served
    Model.check = lambda *_: None  # type: ignore[method-assign]  # llama-server ignores the name of a model
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the servers before a test module is imported."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    import utils

    backends = Backends(Path(os.environ["INTEROP_CACHE"]))
    config.add_cleanup(backends.close)
    _patch(utils, backends)
