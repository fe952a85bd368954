# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint: relevant names, locations, and identity.

Input: a folder, or another source of `Files`. Output: names, contents of small JSON files, and digests over several
    files.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypedDict

from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.quantization_config import MODELOPT, with_quantization
from qeff_zoo.checkpoint.sentence_transformers.colbert import HF_COLBERT
from qeff_zoo.disk.regular import is_special, read_text
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.user_paths import is_path
from qeff_zoo.errors import CheckpointError, Translating
from qeff_zoo.recipe import TokenId
from qeff_zoo.registry import (
    file_name,
    find_recipe,
    list_model_types,
    recipes_setting,
    usual_text_type,
)

#: Callback with the number of bytes done and in total.
Progress = Callable[[int, int], None]

#: File of a package with the settings of a processor that have defaults in transformers.
PROCESSOR_SETTINGS = "processor_settings.json"
#: File of a pipeline of diffusers, in place of config.json, which names its components.
MODEL_INDEX = "model_index.json"
#: Field of a pipeline's configuration with those of its components, by folder.
COMPONENTS = "components"
#: Files beside the weights that configure the model and its tokenizer: part of a checkpoint's identity.
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece*.model",
    "spm*.model",
    "*.spm",
    "target_vocab.json",
    "vocab-*.json",
    "tiktoken.model",
    "bpe.codes",
    "dict.txt",
    "emoji.json",
    "tekken.json",
    "*.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "*processor_config.json",
    MODELOPT,
    # sentence-transformers
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "artifact.metadata",
    "[0-9]*_*/config.json",
    # diffusers
    MODEL_INDEX,
    "scheduler/scheduler_config.json",
    "text_encoder*/config.json",
    "image_encoder/config.json",
    "image_processor/preprocessor_config.json",
    "unet/config.json",
    "transformer*/config.json",
    "vae/config.json",
    "tokenizer*/added_tokens.json",
    "tokenizer*/merges.txt",
    "tokenizer*/special_tokens_map.json",
    "tokenizer*/spiece.model",
    "tokenizer*/tokenizer.json",
    "tokenizer*/tokenizer_config.json",
    "tokenizer*/vocab.json",
)

#: Files for people, which are copied too, and are not part of the identity.
DOCUMENTS = ("README.md", "LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")

#: Last words of numeric fields in config.json, and limits far above those of any model.
_MOST = (
    (re.compile(r"(sizes?|dims?|rank|width|ffn|embd|inner)$"), 1 << 24),
    (re.compile(r"(layers?|blocks|depth)$"), 1000),
    (re.compile(r"experts(_|$)"), 100_000),
    (re.compile(r"(heads?|groups|queries)$"), 10_000),
    (re.compile(r""), (1 << 63) - 1),
)
#: Numbers that are at least one in every model that has them.
_SOME = re.compile(
    r"hidden_size|d_model|n_embd|vocab_size|(num_attention_|num_|n_)heads?|num_(key_value|kv)_heads"
)
#: Suffixes of the files of a model.
_READ = (".json", ".jinja", ".txt", ".model", ".safetensors", ".gguf")
#: Tokenizer files with added tokens, and the field of them.
_ADDED = {
    "added_tokens.json": "",
    "tokenizer_config.json": "added_tokens_decoder",
    "tokenizer.json": "added_tokens",
}
#: Exceptions at values of another kind than expected.
_ODD = ArithmeticError, AttributeError, KeyError, TypeError, ValueError
_OBJECTS = ("rope_scaling", "rope_parameters", "quantization_config", "id2label", "auto_map")


class Files(Protocol):
    """Source of a checkpoint's files; `str()` returns its name for messages."""

    @property
    def folder(self) -> Path:
        """Folder of the files after their fetch."""

    @property
    def names(self) -> frozenset[str]:
        """Every file, fetched or not, as a relative path with slashes."""

    def sha256(self, name: str) -> str | None:
        """Return a file's SHA-256 if it is known without reading the file."""

    def fetch(self, names: Sequence[str], progress: Progress | None = None) -> None:
        """Fetch files into `folder`."""


@dataclass(frozen=True)
class LocalFiles:
    """Files on this machine.

    Args:
        folder: An existing folder.
        names: Relative paths of its files.
    """

    folder: Path
    names: frozenset[str]

    def __str__(self) -> str:
        return repr(str(self.folder))

    @classmethod
    def of_folder(cls, path: Path | None) -> "LocalFiles | None":
        """Return the files of a folder; None without a path, or for a path that is no folder."""
        is_folder = path and os.path.isdir(path)  # noqa: PTH112 -- a name too long for a file is none
        return cls.of(path) if path and is_folder else None

    @classmethod
    def of(cls, folder: Path) -> "LocalFiles":
        """Return the files of a folder, at most one level deep.

        Args:
            folder: An existing folder.

        Links that leave the folder are followed for model files, with a warning. A document behind such a link is
        omitted, so that it is not copied into a package.

        Raises:
            CheckpointError: A link of a file that packages copy leads to another kind of file.
        """
        found = [path for pattern in ("*", "*/*") for path in folder.glob(pattern)]
        if special := [path for path in found if path.suffix in _READ and is_special(path)]:
            raise CheckpointError(
                f"{some(sorted(map(str, special)))} is neither a file nor a folder: to read it may take for ever. "
                "Expected files alone. Remove it."
            )
        names = {path.relative_to(folder).as_posix() for path in found if path.is_file()}
        wanted = sorted(filter(is_wanted, names))
        for name in wanted:
            if reason := unsafe_path(name):
                raise CheckpointError(
                    f"The file {name!r} in {str(folder)!r} cannot be in a package: its name {reason}. Expected a name "
                    "that every system takes. Rename or remove it."
                )
        outside = {name: target for name in wanted if (target := _outside(folder, name))}
        for name, target in outside.items():
            if is_companion(name) and not _is_model_file(name, target):
                raise CheckpointError(
                    f"{str(folder / name)!r} is a link to {str(target)!r}, and would be copied into the package. "
                    f"Expected a file of the checkpoint: one that is called {name!r}, or lies in the Hub's cache. "
                    "Replace the link by the file, or remove it."
                )
        left_out = {name for name in outside if not is_companion(name)}
        if outside:
            places = sorted({str(target.parent) for target in outside.values()})
            rest = f" {some(sorted(left_out))} is left out." if left_out else ""
            warnings.warn(
                f"{some(sorted(outside))} in {str(folder)!r} are links to files in {some(places)}. Model files are "
                f"read there, and copied into packages.{rest}",
                stacklevel=2,
            )
        return cls(folder, frozenset(names - left_out))

    def sha256(self, name: str) -> str | None:
        """Return None: the digest is unknown without reading.

        Args:
            name: Relative path.
        """
        return None

    def fetch(self, names: Sequence[str], progress: Progress | None = None) -> None:
        """Do nothing, since the files are local.

        Args:
            names: Relative paths.
            progress: Callback; not called.
        """


def _outside(folder: Path, name: str) -> Path | None:
    """Return the target of a link that leaves the folder; None for every other file.

    The Hub's cache has the files of `snapshots/COMMIT` in `blobs`.
    """
    there = folder.resolve()
    allowed = [
        there,
        *([there.parent.parent / "blobs"] if there.parent.name == "snapshots" else []),
    ]
    target = (folder / name).resolve()
    return None if any(target.is_relative_to(one) for one in allowed) else target


def _is_model_file(name: str, target: Path) -> bool:
    """Whether a link leads to a file of the same name, or into the Hub's cache.

    A checkpoint must not select other files of this machine to be shared.
    """
    blob = target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{40,64}", target.name)
    return bool(blob) or f"/{target.as_posix()}".endswith(f"/{name}")


def is_companion(name: str) -> bool:
    """Whether a file is part of the checkpoint's identity, beside the weights.

    Args:
        name: Relative path.
    """
    return _matches(name, COMPANIONS)


def is_wanted(name: str) -> bool:
    """Whether a file is a companion or a document.

    Args:
        name: Relative path.
    """
    return _matches(name, COMPANIONS + DOCUMENTS)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    path = PurePosixPath(name)
    return any(
        path.match(pattern) and name.count("/") == pattern.count("/") for pattern in patterns
    )


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.json.

    Args:
        path: The file.

    Raises:
        CheckpointError: The file is unreadable, or has no model type.
    """
    config = _with_type(path, read_json(path))
    model_type, architectures = config.get("model_type"), config.get("architectures") or []
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            f"{str(path)!r} has the model_type {model_type!r:.200}. Expected the name of an "
            "architecture, such as 'llama'. Add the model_type that transformers knows it by."
        )
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise CheckpointError(
            f"{str(path)!r} has the architectures {architectures!r:.200}. Expected a list of class "
            "names, such as ['LlamaForCausalLM']. Correct it."
        )
    for name in _OBJECTS:
        if not isinstance(config.get(name), dict | None):
            raise CheckpointError(
                f"{str(path)!r} has the {name} {config[name]!r:.200}. Expected an object, or null. Correct it."
            )
    require_possible(path, config)
    return _with_present_types(with_quantization(config, path.parent, read_json))


def _with_present_types(config: dict[str, Any]) -> dict[str, Any]:
    """Replace the types of a config as transformers does: by other fields, and by their present names."""
    if file_name(config["model_type"]) not in list_model_types():
        return config
    recipe = find_recipe(config["model_type"])
    if config.get("architectures") == [HF_COLBERT]:  # the encoder, and a projection beside it
        bare = [one for one in recipe.architectures if one.endswith("Model")]
        config = {**config, "architectures": bare[:1]}
    chosen = next((one for name, one in recipe.variants.items() if name in config), "")
    config = {**config, "model_type": chosen or config["model_type"]}
    text = config.get("text_config")
    if isinstance(text, Mapping):
        written = str(text.get("model_type") or "")
        present = recipe.former_text_types.get(written) or written or usual_text_type(recipe)
        if present and present != written:
            config["text_config"] = {**text, "model_type": present}
    return config


def _with_type(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Add the type of a checkpoint with code of its own, and type and class of another package's, which has none."""
    if config.get("auto_map"):
        for one in recipes_setting("alias"):
            with _naming_fields_of(path):
                if (added := one.alias(config)) is not None:
                    added = _with_ids(added, path.parent)
                    return {**config, **added, "model_type": one.model_type}
    if "model_type" in config:
        return config
    known = (one for one in recipes_setting("detected_by") if config.keys() >= {*one.detected_by})
    if (recipe := next(known, None)) is None:
        return config
    if "num_classes" in (config.get("model_args") or {}):
        raise CheckpointError(
            f"{str(path)!r} has num_classes in its model_args, as timm saves it, which transformers' class does not "
            "take twice. Expected it beside them alone. Remove it from model_args."
        )
    labels = bool(config.get("num_classes"))
    kinds = [one for one in recipe.architectures if one.endswith("Classification") == labels]
    return {"model_type": recipe.model_type, "architectures": kinds, **config}


def _naming_fields_of(path: Path) -> Translating:
    """Turn exceptions at values of other kinds into errors about a config.json, or the tokenizer beside it."""

    def translate(error: BaseException) -> CheckpointError | None:
        if not isinstance(error, _ODD):
            return None
        return CheckpointError(
            f"Cannot read {str(path)!r} or the tokenizer beside it as the code in its auto_map does: "
            f"{type(error).__name__}: {error}. Expected the files of the checkpoint. Get them again."
        )

    return Translating(translate)


def _with_ids(value: Any, folder: Path) -> Any:
    """Replace each `TokenId` in a value by the number in a folder's tokenizer files."""
    if isinstance(value, Mapping):
        return {name: _with_ids(one, folder) for name, one in value.items()}
    if not isinstance(value, TokenId):
        return value
    numbers: dict[str, Any] = {}
    for name, field in _ADDED.items():
        if value.token not in numbers and (folder / name).is_file():
            numbers |= _numbers(read_json(folder / name), field)
    if value.token not in numbers:
        raise CheckpointError(
            f"The tokenizer files in {str(folder)!r} have no added token {value.token!r}. Expected its id in "
            f"{' or '.join(_ADDED)}. Get the whole checkpoint."
        )
    return numbers[value.token]


def _numbers(content: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the numbers of added tokens by text, in any of the three forms of tokenizer files."""
    tokens = content.get(field) if field else content
    if isinstance(tokens, list):
        return {token["content"]: token["id"] for token in tokens}
    named = (tokens or {}).items()
    return {one["content"]: int(name) for name, one in named} if field else dict(named)


def require_possible(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse numbers beyond those of any model, before a model is created.

    Args:
        path: File of the configuration, for the message.
        config: Content of the file.

    Raises:
        CheckpointError: A number is impossible.
    """
    inner = [("", config)]
    while inner:
        where, part = inner.pop()
        for name, value in part.items():
            if isinstance(value, dict):
                inner.append((f"{where}{name}.", value))
            most = next(most for pattern, most in _MOST if pattern.search(name))
            numbers = value if isinstance(value, list) else [value]
            if _SOME.fullmatch(name) and type(value) is int and value < 1:
                raise CheckpointError(
                    f"{str(path)!r} has the {where}{name} {value}. Expected 1 at least. Correct it, or get the file "
                    "again from its source."
                )
            if any(isinstance(one, int) and abs(one) > most for one in numbers):
                raise CheckpointError(
                    f"{str(path)!r} has a {where}{name} of more than {most:,}. Expected what a model can have. "
                    "Correct it, or get the file again from its source."
                )


def license_of(readme: Path) -> str | None:
    """Return the licence in a model card.

    Args:
        readme: A README.md.

    Returns:
        `license` of its front matter; None without one.
    """
    text = read_text(readme, encoding="utf-8-sig", errors="replace")
    front = re.match(r"\s*---[ \t]*\n(.*?)\n---[ \t]*(\n|$)", text, re.DOTALL)
    found = front and re.search(r"^license:[ \t]*[\"']?([^\s\"'#\[]+)", front[1], re.MULTILINE)
    return found[1] if found else None


def digest_of_files(digests: Mapping[str, str]) -> str:
    """Return the identity of several files: the digest of the output of `sha256sum`, sorted by name.

    Args:
        digests: 64 hex digits by relative path.

    Returns:
        "sha256:" and 64 hex digits.
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def some(names: Sequence[str], limit: int = 3) -> str:
    """Return the first few names of many, for a message.

    Args:
        names: Names to list.
        limit: Maximum number of names.
    """
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "no file") + rest


class Access(TypedDict, total=False):
    """Token for the Hub, and folder of its cache, see `open_checkpoint`."""

    token: str | None
    cache_dir: str | None


class Place(Access, total=False):
    """Options that select a checkpoint beside its name, see `open_checkpoint`."""

    revision: str | None
    config_from: str | None
    gguf_file: str | None


def require_no_revision(path: Path, revision: str | None) -> None:
    """Refuse a revision of a local path.

    Args:
        path: The path.
        revision: Revision as the user wrote it.

    Raises:
        CheckpointError: A revision is given.
    """
    if revision is not None:
        raise CheckpointError(
            f"Revision {revision!r} was asked of {str(path)!r}, a local path. Expected a Hub "
            "model id with a revision. Leave the revision out."
        )


def as_path(model: str) -> Path | None:
    """Return a model as a path if it exists, or cannot be a model id.

    Args:
        model: Model as the user wrote it.
    """
    if not model:
        return None
    path = Path(model)
    with suppress(OSError, RuntimeError, ValueError):  # unknown user, impossible name
        path = path.expanduser()
        if path.exists():
            return path
    is_file = model.endswith(".json") or ("/" not in model and model.endswith(".gguf"))
    return path if is_file or is_path(model) or model.count("/") > 1 else None
