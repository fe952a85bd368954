# SPDX-License-Identifier: Apache-2.0
"""Accepted forms of requests, and schemas of answers, at llama-server, which the package `xllamacpp` has."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf_files
import ml_dtypes  # noqa: F401  # numpy's bfloat16, which the file is made of
from checkout import TINY_LLAMA
from documentation.request_forms import BODIES, FORMS
from documentation.schema_forms import SCHEMAS

from interop_checks.packages import HERMES
from interop_checks.reasons import MISSING, PASS

_MODEL = "model"
#: A process of its own, since the library writes to the terminal and ends with the process.
_SERVER = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.model_alias = sys.argv[1], {sys.argv[2]}
options.port, options.n_parallel, options.n_ctx = 0, 1, 1024
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(options)
print("at", server.listening_address, flush=True)
time.sleep(1e6)
"""


def run(cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Send each form; return a row with its path, its name, and whether llama-server answers it.

    Args:
        cache: Folder of the model.
        only: Texts, one of which the name of a row has; empty for all.
    """
    return _sent(cache, only, FORMS)


def schemas(cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Send each schema as the form of an answer; see `run`."""
    forms = {
        name: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            }
        }
        for name, schema in SCHEMAS.items()
    }
    return _sent(cache, only, {"/v1/chat/completions": forms})


def _sent(
    cache: Path, only: Sequence[str], forms: Mapping[str, Mapping[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    server = f"llama-server of xllamacpp {version('xllamacpp')}"
    rows = []
    with _running(_file(cache)) as url:
        for path, of_path in forms.items():
            for name, fields in of_path.items():
                test = f"{path} {name}"
                if only and not any(text in test for text in only):
                    continue
                body = json.dumps({"model": _MODEL, **BODIES[path], **fields})
                reason = _refusal(url + path, body.replace("MODEL", _MODEL).encode())
                row = {"test": test, "reason": reason, "path": path, "form": name}
                rows.append({"result": MISSING if reason else PASS, **row, "server": server})
    return rows


def _file(cache: Path) -> Path:
    """Return the trained example as a GGUF file, with a chat template that has functions."""
    path = cache / "forms.gguf"
    if not path.exists():
        staged = path.with_suffix(".part")
        gguf_files.write(staged, TINY_LLAMA, "F16", tokens=True, tokenizer__chat_template=HERMES)
        staged.rename(path)
    return path


@contextmanager
def _running(file: Path) -> Iterator[str]:
    command = [sys.executable, "-c", _SERVER, str(file), _MODEL]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout
        try:
            yield next(line.split()[1] for line in server.stdout if line.startswith("at "))
        finally:
            server.kill()


def _refusal(url: str, body: bytes) -> str:
    """Return the status of a refused request; nothing of an answered one."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__
    return ""
