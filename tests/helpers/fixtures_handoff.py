# SPDX-License-Identifier: Apache-2.0
"""What several tests of handoff and others use."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parity
from toy_decoder import ToyProgram

from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.engine.disaggregated import PrefillServer
from qeff_zoo.targets.ort.session import OrtProgram

SYMBOLS = {"batch_size": "2", "ctx_len": str(parity.CTX_LEN)}


SIZES = [
    {"name": "Prefill", "symbols": {**SYMBOLS, "seq_len": "8"}},
    {"name": "Decode", "symbols": {**SYMBOLS, "seq_len": "1"}},
]


@contextmanager
def serving(session: TextGenerationSession, key: str | None = None) -> Iterator[str]:
    """Give the address of a prefill server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PrefillServer(session, listener, api_key=key)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.close()
            thread.join(60)
        assert not thread.is_alive()


def session_of(folder: Path, program: Any, **changes: Any) -> TextGenerationSession:
    """Open a session without a package."""
    folder.mkdir(exist_ok=True)
    manifest = {"spec": {"sources": "a"}, "programs": [{"numerics": {"matrices": []}}], **changes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return TextGenerationSession(folder, program)


def two_of(name: str, folder: Path) -> list[TextGenerationSession]:
    """Open two sessions of one model: a toy that remembers, or a tiny model by the kind of its states."""
    if name == "toy":
        return [session_of(folder, ToyProgram(2, 64, 8)) for _ in range(2)]
    session = parity.subject(parity.STATES[name]).lowered("fp32")
    return [session_of(folder, OrtProgram(session, session.states, SIZES)) for _ in range(2)]
