# SPDX-License-Identifier: Apache-2.0
"""Servers in threads of this process, one for each test, whose packages stay open."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from interop_checks.packages import EOS, package
from interop_checks.scripted import Output, scripted
from qeff_zoo import serving
from qeff_zoo.runtime import Grammar, TextGenerationSession
from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.answers import Answer
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.chat_output import ChatFormat
from qeff_zoo.runtime.text.chat_template import ChatOptions, ChatTemplate
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving.requests import prompts
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.serving.requests.tools import ChatFormats, OutputPlan
from qeff_zoo.serving.server.app import create_app, service_of
from qeff_zoo.serving.server.browsers import Hosts
from qeff_zoo.serving.server.process import Server, url_of
from qeff_zoo.sessions import open_session

_STARTED = 60.0
#: Maximum number of generated tokens, whatever a test sets.
_LONGEST = 512
#: Numbers of tokens after which reasoning and an answer end, as those of a trained model would: a small one seldom ends
#: by itself. A grammar must allow the end.
REASONING, ANSWER = 32, 64
#: Texts that close JSON, the most likely last; EOS tokens are likelier.
_CLOSING = ("]", "}", '"')
_SURELY = 1e6  # added to logits


class Backends:
    """Open packages of the checks.

    Args:
        cache_folder: Folder of the checkpoints.
    """

    def __init__(self, cache_folder: Path) -> None:
        end_outputs()
        self._cache, self._stack = cache_folder, ExitStack()
        self._open: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return the backend of a package, opened at first use.

        Args:
            name: Name of the package.
        """
        if name not in self._open:
            session: Any = open_session(package(name, self._cache), threads=1)
            if isinstance(session, TextGenerationSession):
                _shorten(session)
            options = serving.ServerOptions(name=name, fingerprint="")
            self._open[name] = self._stack.enter_context(service_of(session).open(session, options))
        return self._open[name]

    def close(self) -> None:
        """Close all."""
        self._stack.close()

    @contextmanager
    def running(
        self,
        package_name: str,
        *,
        template: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: Any,
    ) -> Iterator[str]:
        """Run a server in a thread; yield its base URL.

        Args:
            package_name: Name of the package.
            template: Chat template; None for the package's.
            host: Address.
            port: Port number; 0 for any.
            options: Arguments of `create_app`, without `hosts`.
        """
        backend = self.get(package_name)
        if template is not None:
            special = {"bos_token": "<|begin|>", "eos_token": EOS}
            backend.session.chat_template = ChatTemplate(template, special)
        with _bound(host, port) as listener:
            app = create_app(backend, hosts=Hosts.of(host), **options)
            ready = threading.Event()
            server = Server(app, lambda: None, 0, lambda _: ready.set())
            thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
            thread.start()
            assert ready.wait(_STARTED)
            try:
                yield url_of(listener)
            finally:
                server.should_exit = True
                thread.join(_STARTED)


def end_outputs() -> None:
    """Make the models of this process follow the script, and end their reasoning and answers where it has none."""
    budget, extend, plan = ChatFormat.budget, Answer.extend, vars(prompts)["output_plan"]
    script: dict[tuple[int, ...], Output] = {}

    def limited(
        self: ChatFormat, prompt: str, tokens: int | None, tokenizer: Tokenizer
    ) -> ThinkingBudget | None:
        return budget(self, prompt, REASONING if tokens is None else tokens, tokenizer)

    def scripting(
        session: TextGenerationSession,
        body: ChatRequest,
        form: Grammar | None,
        prompt: list[int],
        formats: ChatFormats,
        options: ChatOptions,
    ) -> OutputPlan:
        found: OutputPlan = plan(session, body, form, prompt, formats, options)
        assert session.chat_template
        known = formats.of(session.chat_template.source(options))
        source = form.source if form else ""
        output = scripted(session, body, known, prompt, options, source)
        script.pop(tuple(prompt), None)
        if output is None:
            return found
        script[tuple(prompt)] = output
        return found if body.thinking_token_budget is not None else replace(found, thinking=None)

    def ending(self: Answer, logits: Array, guess: Drawn | None = None) -> None:
        if output := script.get(self.request.prompt):
            tokens = output.next(self.generated, [*self.request.eos_token_ids])
            logits = logits.copy()
            logits[[*tokens]] += _SURELY
        elif len(self.token_ids) - len(self.request.scored) >= ANSWER:
            logits = logits.copy()
            for rank, token in enumerate(_closing(self), 1):
                logits[token] += rank * _SURELY
            logits[[*self.request.eos_token_ids]] += 10 * _SURELY
        extend(self, logits, guess)

    vars(prompts)["output_plan"] = scripting
    ChatFormat.budget = limited  # type: ignore[method-assign]
    Answer.extend = ending  # type: ignore[method-assign]


def _closing(answer: Answer) -> list[int]:
    """Return the tokens that close the JSON of a grammar; none for other answers."""
    if answer.request.grammar is None or answer._stream is None:
        return []
    tokenizer = answer._stream._tokenizer
    return [tokenizer.encode(text, special_tokens=False)[-1] for text in _CLOSING]


def _shorten(session: TextGenerationSession) -> None:
    limit = session._limit

    def shorter(*tokens: Any, **options: Any) -> int:
        return min(_LONGEST, limit(*tokens, **options))

    session._limit = shorter  # type: ignore[method-assign]


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    with serving.bind(host, port) as listener:
        yield listener
