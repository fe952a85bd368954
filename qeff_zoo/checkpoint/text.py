# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and chat template of a package, from transformers' objects of a checkpoint.

Input: a folder with a tokenizer in any published form. Output: tokenizer.json, the backend of `AutoTokenizer`'s
    tokenizer; tokenizer_config.json with its settings, as published or as its class sets them; and the default template
    in chat_template.jinja. All of them work without transformers.
"""

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.config_faults import fault_of
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.text_growth import excess
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import CheckpointError, Translating
from qeff_zoo.versions import installed

#: Raised if the same checkpoint gives another tokenizer.
_REVISION = 1
_LONGEST = 300  # characters of a library's message
TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TEMPLATES = "additional_chat_templates"  # transformers' folder of named templates
#: Files from which transformers makes a tokenizer.
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
#: Files whose content is in the written ones.
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


def has_tokenizer(names: Iterable[str]) -> bool:
    """Return whether a checkpoint has a file from which transformers makes a tokenizer.

    Args:
        names: Relative paths of its files.
    """
    return any(fnmatchcase(name, pattern) for name in names for pattern in _SOURCES)


def identity_of(names: Iterable[str]) -> dict[str, Any]:
    """Return the identity of a package's tokenizer, besides the version of transformers; empty without a tokenizer.

    Args:
        names: Relative paths of the checkpoint's files.
    """
    if not has_tokenizer(names):
        return {}
    return {"revision": _REVISION, "tokenizers": installed("tokenizers") or "absent"}


def load(folder: Path, name: str, model_id: str | None = None) -> Any:
    """Return transformers' tokenizer of a checkpoint.

    Args:
        folder: Folder with config.json and the tokenizer.
        name: Name of the checkpoint, for messages.
        model_id: Hub model `org/name`, by which transformers recognizes some tokenizers with a wrong class.

    Raises:
        CheckpointError: transformers fails to make one.
    """
    from transformers import AutoTokenizer

    # Code of a checkpoint is never run, and mistral-common has no tokenizer that could be packaged.
    options: dict[str, Any] = {"trust_remote_code": False, "mistral_format": False}
    require_bounded(folder, name)
    with _naming(name, folder):
        if model_id:
            options["config"] = _config(folder, model_id)
        return AutoTokenizer.from_pretrained(folder, **options)


def _config(folder: Path, model_id: str) -> Any:
    """Return the configuration that AutoTokenizer reads, with the name of the model on the Hub."""
    from transformers import AutoConfig, PreTrainedConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError):  # as AutoTokenizer does for types that transformers lacks
        config = PreTrainedConfig.from_pretrained(folder)
    config._name_or_path = model_id
    return config


def write(folder: Path, name: str, model_id: str | None = None, *, media: bool = False) -> Any:
    """Write a checkpoint's tokenizer and chat template in the form of transformers.

    Args:
        folder: Copy of the checkpoint's small files, which is not modified if the tokenizer is Python code.
        name: Name of the checkpoint, for messages.
        model_id: Hub model, see `load`.
        media: Whether a processor of transformers reads the model's prompts.

    Returns:
        transformers' tokenizer.

    Raises:
        CheckpointError: transformers fails to make one.
    """
    tokenizer = load(folder, name, model_id)
    if has_backend(tokenizer):
        settings = settings_of(tokenizer, _read(folder / SETTINGS))
        settings.pop("chat_template", None)
        if template := template_of(tokenizer, folder, media=media):
            (folder / TEMPLATE).write_text(template, encoding="utf-8")
        for stem, template in named_templates(tokenizer).items():
            path = folder / TEMPLATES / f"{stem}.jinja"
            path.parent.mkdir(exist_ok=True)
            path.write_text(template, encoding="utf-8")
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (folder / SETTINGS).write_text(f"{text}\n", encoding="utf-8")
        with _naming(name):
            serialized = _serialized(tokenizer.backend_tokenizer)
            _refuse_excess(name, serialized)  # SentencePiece's files have rules, too
            _require_same(name, tokenizer.backend_tokenizer, serialized)
        (folder / TOKENIZER).write_text(serialized, encoding="utf-8")
        for merged in _MERGED:
            (folder / merged).unlink(missing_ok=True)
    return tokenizer


def require_bounded(folder: Path, name: str) -> None:
    """Refuse a tokenizer.json that may exhaust the memory, before a library reads it.

    Args:
        folder: The checkpoint's folder.
        name: The checkpoint's name, for messages.

    Raises:
        CheckpointError: The text may grow beyond the limit.
    """
    if (folder / TOKENIZER).is_file():
        _refuse_excess(name, read_regular(folder / TOKENIZER))


def _refuse_excess(name: str, content: str | bytes) -> None:
    if wrong := excess(content):
        raise CheckpointError(
            f"Cannot use the tokenizer of {name!r}: {wrong}. Expected rules that a published tokenizer has. Correct "
            f"{TOKENIZER}, or remove it: then the package takes token ids alone."
        )


def _serialized(backend: Any) -> str:
    """Return a backend as tokenizer.json, in which each token that decoding skips is a special one.

    A token that was added as a special one and later again as a plain one is skipped, but not written as one.
    """
    added = backend.get_added_tokens_decoder()
    skipped = {
        number
        for number, token in added.items()
        if not token.special and _texts(backend, number)[0] and not _texts(backend, number)[1]
    }
    if not skipped:
        return str(backend.to_str(pretty=True))
    content = json.loads(backend.to_str())
    for one in content["added_tokens"]:
        one["special"] |= one["id"] in skipped
    return json.dumps(content, indent=2, ensure_ascii=False)


def _texts(backend: Any, number: int) -> list[str]:
    """Return the text of a token, with special tokens and without; CLIPTokenizer puts its own `decode` on a backend."""
    decode = type(backend).decode
    return [str(decode(backend, [number], skip_special_tokens=skip)) for skip in (False, True)]


def _require_same(name: str, backend: Any, serialized: str) -> None:
    """Refuse a backend that changes when it is read again: tokens that were added twice have two versions."""
    again = type(backend).from_str(serialized)

    def texts(one: Any, number: int) -> list[str]:
        return [str(one.id_to_token(number)), *_texts(one, number)]

    before, after = backend.get_vocab(), again.get_vocab()
    numbers = {before.get(token, after.get(token)) for token, _ in before.items() ^ after.items()}
    for number in (*sorted(numbers), *backend.get_added_tokens_decoder()):
        if texts(backend, number) != texts(again, number):
            raise CheckpointError(
                f"The tokenizer that transformers makes of {name!r} changes when it is saved: token {number} is "
                f"{texts(backend, number)}, and {texts(again, number)} when it is read again (the token, and its text "
                "with and without special tokens). Expected one that stays the same. Correct what tokenizer.json, "
                "tokenizer_config.json and added_tokens.json say of that token: they contradict each other."
            )


def template_of(tokenizer: Any, folder: Path, *, media: bool) -> str | None:
    """Return the default chat template of transformers; None without one.

    Args:
        tokenizer: transformers' tokenizer.
        folder: Folder of the checkpoint's small files.
        media: Whether a processor reads the prompts: its own template files have precedence.
    """
    template: Any = tokenizer.chat_template
    if media:
        of_processor = [
            _read(folder / name).get("chat_template")
            for name in ("processor_config.json", "chat_template.json")
        ]
        template = next(filter(None, of_processor), template)
    if isinstance(template, dict):
        template = template.get(
            "default", next(iter(template.values())) if len(template) == 1 else None
        )
    return template if template and isinstance(template, str) else None


def named_templates(tokenizer: Any) -> dict[str, str]:
    """Return the chat templates beside the default one by name, such as `tool_use`, if names are words."""
    templates = tokenizer.chat_template
    others = templates.items() if isinstance(templates, dict) and len(templates) > 1 else ()
    return {
        name: text
        for name, text in others
        if name != "default" and text and re.fullmatch(r"\w[\w-]*", name)
    }


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def has_backend(tokenizer: Any) -> bool:
    """Return whether a tokenizer is one of the `tokenizers` library, not Python code."""
    return hasattr(tokenizer, "backend_tokenizer")


def warn_of_no_text(name: str, tokenizer: Any) -> None:
    """Warn that a package accepts no text.

    Args:
        name: Name of the checkpoint.
        tokenizer: transformers' tokenizer, which is Python code.
    """
    warnings.warn(
        f"transformers reads the texts of {name!r} by {type(tokenizer).__name__}, which is Python code; expected a "
        "tokenizer of the tokenizers library. The package takes token ids alone: make them with transformers.",
        stacklevel=2,
    )


def settings_of(tokenizer: Any, published: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json with transformers' resolved values.

    Args:
        tokenizer: transformers' tokenizer.
        published: Content of the checkpoint's tokenizer_config.json.
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


def _naming(name: str, folder: Path | None = None) -> Translating:
    """Add the name of the checkpoint to a tokenizer's errors: transformers and tokenizers may raise any `Exception`.

    Args:
        name: Name of the checkpoint.
        folder: Folder of its files, whose config.json AutoTokenizer reads first; None if that was read.
    """

    def translate(error: BaseException) -> CheckpointError | None:
        if isinstance(error, CheckpointError):
            return None
        if folder and (fault := fault_of(folder / "config.json")):
            return fault
        return CheckpointError(
            f"transformers makes no tokenizer of the files of {name!r}: {brief(error)} Expected files that "
            "AutoTokenizer reads without code of the checkpoint. Get them again, install the package that the message "
            "names, or remove them: then the package takes token ids alone."
        )

    return Translating(translate)


def brief(error: BaseException | None) -> str:
    """Return an error's type and the beginning of its message, on one line.

    Args:
        error: An exception of a library.
    """
    text = " ".join(str(error).split())
    end = "" if text.endswith(".") else "."
    shown = f"{text[:_LONGEST]}…" if len(text) > _LONGEST else f"{text}{end}"
    return f"{type(error).__name__}: {shown}"
