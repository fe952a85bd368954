# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: vLLM's tests of its HTTP server on servers of this project.

`tests.utils.RemoteOpenAIServer` serves a small package in a thread, chosen by the name of the model that a test loads.
Modules of vLLM are empty ones: classes of responses become plain objects of the same JSON, and functions return None.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import anthropic
import openai
import pytest
from chat_templates import TEMPLATES
from checkout import TINY_LLAMA
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from interop_checks.packages import GENERATORS, HARMONY, HERMES, REASONING, generator
from interop_checks.servers import Backends

_CACHE = Path(os.environ["INTEROP_CACHE"])
_EMPTY = (
    *("vllm", "tests.utils", "tests.models", "tests.conftest", "tests.v1", "tests.reasoning"),
    *("zmq", "mteb", "librosa", "scipy", "openai_harmony", "mcp", "evaluate", "gpt_oss"),  # lacking
)
_KEY = "sesame"
#: Packages by a part of the name of the model that vLLM's tests load; the generator for others.
_PACKAGES = {
    "embeddings": (
        "MiniLM-L12",
        "/e5-",
        "multilingual-e5",
        "bge-base",
        "embed",
        "siglip",
    ),
    "states": ("colbert",),
    "reranker": ("rerank", "cross-encoder"),
    "classifier": ("apeach", "reward", "VideoCls"),
    "speech": ("whisper", "Voxtral", "canary", "granite-speech"),
    "vision": ("vision", "VL", "llava", "translategemma"),
}
#: Fixtures of tests that talk to a server.
_SERVED = ("server", "client", "url")


class Loose:
    """Object of JSON."""

    completion_tokens = 0  # vLLM's default

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, _loose(value))

    def model_dump(self, exclude: Collection[str] = (), **_: Any) -> dict[str, Any]:
        """Return the JSON of this object, without some fields."""
        return {name: _strict(value) for name, value in vars(self).items() if name not in exclude}


def _loose(value: Any) -> Any:
    if isinstance(value, dict):
        return Loose(**value)
    return [_loose(item) for item in value] if isinstance(value, list) else value


def _strict(value: Any) -> Any:
    if isinstance(value, Loose):
        return value.model_dump()
    return [_strict(item) for item in value] if isinstance(value, list) else value


class _Absent(type):
    """Class of vLLM: its functions return None."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Absent(metaclass=_Absent):
    """Object of vLLM, whose methods return None, and whose JSON is read into `Loose`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    @classmethod
    def model_validate(cls, value: Any) -> Any:
        """Return an object of JSON."""
        return _loose(value)


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - every module is a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Absent,), {})


class _Finder:
    """Finder of empty modules."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == one or fullname.startswith(f"{one}.") for one in _EMPTY):
            return None
        return importlib.util.spec_from_loader(fullname, cls, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


class RemoteOpenAIServer:
    """Server in a thread, with the interface of vLLM's class of this name.

    Args:
        model: Model that vLLM would load.
        vllm_serve_args: Flags of `vllm serve`.
        env_dict: Environment of the server, of which the key is read.
        others: Further arguments, which have no counterpart.
    """

    DUMMY_API_KEY = _KEY
    backends: Backends

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str] | str,
        env_dict: dict[str, str] | None = None,
        **others: Any,
    ) -> None:
        del others
        given = vllm_serve_args.split() if isinstance(vllm_serve_args, str) else vllm_serve_args
        flags = [str(one) for one in given]
        tasks = {"token_classify": "tagger", "token_embed": "states"}
        name = next((tasks[flag] for flag in flags if flag in tasks), package_of(model))
        if name == "generator":
            length = _value(flags, "--max-model-len") or _value(flags, "--max_model_len")
            name = generator(int(length or 0))
        key = (env_dict or {}).get("VLLM_API_KEY") or _value(flags, "--api-key")
        self._stack = ExitStack()
        url = self._stack.enter_context(
            self.backends.running(
                name,
                template=_template(name, model, flags),
                name=_value(flags, "--served-model-name") or model,
                aliases=_adapters(flags),
                fingerprint="interop",
                api_keys=(key,) if key else (),
            )
        )
        self.url_root = url.removesuffix("/v1")
        self.host, _, port = self.url_root.rpartition("/")[2].partition(":")
        self.port = int(port)

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url_for(self, *parts: str) -> str:
        """Return the URL of a path."""
        return "/".join([self.url_root, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> Any:
        """Return OpenAI's client."""
        usual = {"base_url": self.url_for("v1"), "api_key": _KEY, "max_retries": 0}
        return openai.OpenAI(**{"timeout": 600, **usual, **options})

    def get_async_client(self, **options: Any) -> Any:
        """Return OpenAI's asynchronous client."""
        usual = {"base_url": self.url_for("v1"), "api_key": _KEY, "max_retries": 0}
        return openai.AsyncOpenAI(**{"timeout": 600, **usual, **options})

    def get_client_anthropic(self, **options: Any) -> Any:
        """Return Anthropic's client."""
        return anthropic.Anthropic(base_url=self.url_root, api_key=_KEY, max_retries=0, **options)

    def get_async_client_anthropic(self, **options: Any) -> Any:
        """Return Anthropic's asynchronous client."""
        return anthropic.AsyncAnthropic(
            base_url=self.url_root, api_key=_KEY, max_retries=0, **options
        )


def package_of(model: str) -> str:
    """Return the package for a model's name."""
    return next(
        (name for name, parts in _PACKAGES.items() if any(part in model for part in parts)),
        "generator",
    )


def _value(flags: Sequence[str], flag: str) -> str | None:
    return flags[flags.index(flag) + 1] if flag in flags else None


def _adapters(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the names of LoRA adapters, which are the model itself here."""
    given = flags[flags.index("--lora-modules") + 1 :] if "--lora-modules" in flags else []
    return tuple(one.partition("=")[0] for one in given if "=" in one)


def _template(package: str, model: str, flags: Sequence[str]) -> str | None:
    """Return the chat template of a test, or of the model that it loads; None for the package's own."""
    own = _value(flags, "--chat-template") or ""
    if "{" in own:
        return own
    if package not in GENERATORS:
        return TEMPLATES["hermes"] if "Qwen" in model else None
    if "gpt-oss" in model:
        return HARMONY
    return REASONING if "--reasoning-parser" in flags else HERMES


def _tokenizer(*names: Any, **options: Any) -> Any:
    """Return the tokenizer of the package for a model's name."""
    name = str(names[0] if names else options["tokenizer_name"])
    return PreTrainedTokenizerFast.from_pretrained(_CACHE / "checkpoints" / package_of(name))


class _Recording:
    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def get_local_path() -> Path:
        return TINY_LLAMA.parent / "speech.wav"


def _same(function: Any = None, **_: Any) -> Any:
    """Return a test as it is, in place of a decorator for devices."""
    return function if callable(function) else _same


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace modules before a test module or a conftest is imported."""
    RemoteOpenAIServer.backends = Backends(_CACHE)
    early_config.add_cleanup(RemoteOpenAIServer.backends.close)
    sys.meta_path.insert(0, _Finder)
    sys.path.insert(0, str(Path.cwd()))
    import tests.utils as utils

    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS, utils.ROCM_ENV_OVERRIDES, utils.VLLM_PATH = [], {}, Path.cwd()
    for name in ("multi_gpu_test", "multi_gpu_only", "requires_fp8", "large_gpu_mark"):
        setattr(utils, name, _same)
    utils.create_new_process_for_each_test = _same
    names: dict[str, dict[str, Any]] = {
        "vllm.tokenizers": {"get_tokenizer": _tokenizer},
        "vllm.version": {"__version__": "0"},
        "vllm.assets.audio": {"AudioAsset": _Recording},
    }
    for module, values in names.items():
        vars(importlib.import_module(module)).update(values)
    AutoTokenizer.from_pretrained = _tokenizer  # type: ignore[method-assign]  # without the Hub


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of vLLM's own objects, which use no server."""
    del config
    with Path(os.environ["INTEROP_OUTCOMES"]).open("a", encoding="utf-8") as file:
        for item in [*items]:
            fixtures = getattr(item, "fixturenames", ())
            source = getattr(item.obj, "__code__", None)  # type: ignore[attr-defined]
            names = (*fixtures, *(source.co_names if source else ()))
            if not any(part in name.lower() for name in names for part in _SERVED):
                items.remove(item)
                row = {"test": item.nodeid, "outcome": "own objects", "message": "", "printed": ""}
                file.write(f"{json.dumps(row)}\n")
