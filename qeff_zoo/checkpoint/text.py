# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template that transformers makes of a checkpoint -> the files that a package has of them.

In: a folder with a tokenizer in any published form. Out: tokenizer.json, the backend of `AutoTokenizer`'s tokenizer;
tokenizer_config.json with its settings, as published or as its class sets them; and the template that is the default in
chat_template.jinja. All of them work without transformers.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any

from qeff_zoo.errors import CheckpointError
from qeff_zoo.versions import installed

#: Raised when the same checkpoint comes to give another tokenizer.
_REVISION = 1
TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
#: Files of which transformers makes a tokenizer.
_SOURCES = (
    TOKENIZER,
    SETTINGS,
    "vocab.*",
    "*spiece.model",
    "tokenizer.model*",
    "sentencepiece*.model",
    "spm*.model",
    "tiktoken.model",
    "tekken.json",
    "*.tiktoken",
    "*.spm",
)
#: Files whose content is in those that are made.
_MERGED = ("added_tokens.json", "special_tokens_map.json", "chat_template.json")
#: Settings of an object of transformers that its class may set, and that the runtime applies.
_ATTRIBUTES = (
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "model_input_names",
    "split_special_tokens",
    "truncation_side",
)
_OWN_TOKENS = "model_specific_special_tokens"
_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError),
    *(RuntimeError, TypeError, ValueError),
)


def has_tokenizer(names: Iterable[str]) -> bool:
    """Return whether a checkpoint has a file of which transformers makes a tokenizer.

    Args:
        names: Relative paths of its files.
    """
    return any(fnmatchcase(name, pattern) for name in names for pattern in _SOURCES)


def identity_of(names: Iterable[str]) -> dict[str, Any]:
    """Return what a package's tokenizer is made with, besides transformers; nothing without a tokenizer.

    Args:
        names: Relative paths of the checkpoint's files.
    """
    if not has_tokenizer(names):
        return {}
    return {"revision": _REVISION, "tokenizers": installed("tokenizers") or "absent"}


def load(folder: Path, name: str, model_id: str | None = None) -> Any:
    """Return transformers' tokenizer of a checkpoint.

    Args:
        folder: Has config.json and the tokenizer.
        name: Of the checkpoint, for messages.
        model_id: `org/name` of a Hub model, by which transformers knows some whose class is wrong.

    Raises:
        CheckpointError: transformers does not make one.
    """
    from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

    with _Naming(name):
        try:
            config = AutoConfig.from_pretrained(folder)
        except (ValueError, OSError):  # transformers' own rule for types that it lacks
            config = PreTrainedConfig.from_pretrained(folder)
        if model_id:
            config._name_or_path = model_id
        # Code of a checkpoint is never run, and mistral-common has no tokenizer that could be packaged.
        return AutoTokenizer.from_pretrained(
            folder, config=config, trust_remote_code=False, mistral_format=False
        )


def write(folder: Path, name: str, model_id: str | None = None, *, media: bool = False) -> Any:
    """Write a checkpoint's tokenizer and chat template as transformers has them.

    Args:
        folder: Has a copy of the checkpoint's small files, which stays as it is if the tokenizer is Python code.
        name: Of the checkpoint, for messages.
        model_id: As for `load`.
        media: Whether a processor of transformers reads the model's prompts.

    Returns:
        transformers' tokenizer.

    Raises:
        CheckpointError: transformers does not make one.
    """
    tokenizer = load(folder, name, model_id)
    if has_backend(tokenizer):
        settings = settings_of(tokenizer, _read(folder / SETTINGS))
        if template := template_of(tokenizer, folder, media=media):
            settings.pop("chat_template", None)
            (folder / TEMPLATE).write_text(template, encoding="utf-8")
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (folder / SETTINGS).write_text(f"{text}\n", encoding="utf-8")
        with _Naming(name):
            made = _serialized(tokenizer.backend_tokenizer)
        (folder / TOKENIZER).write_text(made, encoding="utf-8")
        for merged in _MERGED:
            (folder / merged).unlink(missing_ok=True)
    return tokenizer


def _serialized(backend: Any) -> str:
    """Return a backend as tokenizer.json, in which each token that decoding skips is a special one.

    A token that was added as a special one and later again as a plain one is skipped, but not written as one.
    """
    added = backend.get_added_tokens_decoder()
    skipped = {
        number
        for number, token in added.items()
        if not token.special
        and backend.decode([number], skip_special_tokens=False)
        and not backend.decode([number], skip_special_tokens=True)
    }
    if not skipped:
        return str(backend.to_str(pretty=True))
    content = json.loads(backend.to_str())
    for one in content["added_tokens"]:
        one["special"] |= one["id"] in skipped
    return json.dumps(content, indent=2, ensure_ascii=False)


def template_of(tokenizer: Any, folder: Path, *, media: bool) -> str | None:
    """Return the chat template that transformers takes by default; None without one.

    Args:
        tokenizer: transformers' tokenizer.
        folder: Of the checkpoint's small files.
        media: Whether a processor reads the prompts: it has files of its own, and its template goes first.
    """
    found = tokenizer.chat_template
    if media:
        of_processor = [
            _read(folder / name).get("chat_template")
            for name in ("processor_config.json", "chat_template.json")
        ]
        found = next(filter(None, of_processor), found)
    if isinstance(found, dict):
        found = found.get("default")
    return found


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def has_backend(tokenizer: Any) -> bool:
    """Return whether a tokenizer is one of the `tokenizers` library, not Python code."""
    return hasattr(tokenizer, "backend_tokenizer")


def warn_of_no_text(name: str, tokenizer: Any) -> None:
    """Warn that a package takes no text.

    Args:
        name: Of the checkpoint.
        tokenizer: transformers' tokenizer, which is Python code.
    """
    warnings.warn(
        f"transformers reads the texts of {name!r} by {type(tokenizer).__name__}, which is Python code; expected a "
        "tokenizer of the tokenizers library. The package takes token ids alone: make them with transformers.",
        stacklevel=2,
    )


def settings_of(tokenizer: Any, published: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json that says outright what transformers concludes.

    Args:
        tokenizer: transformers' tokenizer.
        published: The checkpoint's tokenizer_config.json.
    """
    standard = type(tokenizer).SPECIAL_TOKENS_ATTRIBUTES
    tokens = tokenizer.special_tokens_map
    own = {name: token for name, token in tokens.items() if name not in standard}
    settings = {name: value for name, value in published.items() if not _names_tokens(name, value)}
    settings |= {name: token for name, token in tokens.items() if name in standard}
    settings |= {name: getattr(tokenizer, name) for name in _ATTRIBUTES}
    return {**settings, **({_OWN_TOKENS: own} if own else {})}


def _names_tokens(name: str, value: object) -> bool:
    """Return whether a setting names special tokens, one or several by name."""
    named = name in ("extra_special_tokens", _OWN_TOKENS) and isinstance(value, dict)
    return named or (name.endswith("_token") and not isinstance(value, bool))


class _Naming:
    """Names the checkpoint whose tokenizer fails; `tokenizers` raises nothing narrower than `Exception`.

    Args:
        name: Of the checkpoint.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise what the checkpoint's owner can act on."""
        if error is not None and (kind is Exception or isinstance(error, _ERRORS)):
            raise CheckpointError(
                f"transformers makes no tokenizer of the files of {self._name!r}: {_brief(error)} Expected files that "
                "AutoTokenizer reads without code of the checkpoint. Get them again, install the package that the "
                "message names, or remove them: then the package takes token ids alone."
            ) from error


def _brief(error: BaseException) -> str:
    """Return an error's type and the beginning of its message, on one line."""
    said = " ".join(str(error).split())
    end = "" if said.endswith(".") else "."
    return (
        f"{type(error).__name__}: {said[:300]}…"
        if len(said) > 300
        else f"{type(error).__name__}: {said}{end}"
    )
