# SPDX-License-Identifier: Apache-2.0
"""Draft heads and draft layers: checkpoints beside the model's, read without trust.

Input: a folder, or a repository of the Hub. Output: a `Speculator`: its computation, as JSON values, and the tensors of
    its parameters. It reads the model's hidden states, so it must have been trained for exactly that model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from qeff_zoo.checkpoint.draft_heads.eagle3 import JOINED
from qeff_zoo.checkpoint.draft_heads.kinds import KINDS, Kind
from qeff_zoo.checkpoint.files import Files, digest_of_files, some
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, index_tensors
from qeff_zoo.checkpoint.side_files import files_beside
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.user_paths import similar_path
from qeff_zoo.errors import SpeculatorError

from . import assistant, dflash, mtp

#: Roles of draft programs: heads, each of which drafts one token; a decoder layer with its own KV cache; or a model
#: that reads keys and values of the target model.
HEADS: Literal["heads"] = "heads"
DRAFT: Literal["draft"] = "draft"
ASSISTANT: Literal["assistant"] = assistant.KIND
ROLES = (HEADS, DRAFT, ASSISTANT)
#: Prefix, in the state_dict, of the model's part from which it is traced.
PREFIX = "speculator."
#: Identity of a layer in the model's own checkpoint, whose weights are identified anyway.
OF_MODEL: Mapping[str, Any] = MappingProxyType(
    {"digest": f"sha256:{sha256(mtp.MTP.encode()).hexdigest()}"}
)
#: Default number of tokens that a layer drafts, one after the other.
_CHAINED = 4
_PICKLES = (".pt", ".pth", ".bin", ".ckpt")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")


@dataclass(frozen=True, kw_only=True, eq=False)
class Speculator:
    """Opened draft heads, draft layer or assistant.

    Args:
        name: Name as the user wrote it, for messages.
        folder: Folder of its files.
        files: Names of the files: the configuration, then the weights.
        settings: Description of the computation, in JSON values; see `qeff_zoo.checkpoint.draft_heads.kinds`.
        sources: Tensor names by parameter.
        repository: Hub repository, `org/name`; "" for a folder.
        revision: Commit of that repository, 40 hex digits.
        layer: Tensor of the model's own checkpoint for each tensor of a one-layer model; empty if the draft has
            files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    repository: str = ""
    revision: str = ""
    layer: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors of the parameters, by names that no model's checkpoint has, without tensors of the model's own."""
        if self.layer:
            return {}
        infos = index_tensors(self.folder / name for name in self.files[1:])
        return {
            _beside(name): replace(infos[tensor], name=_beside(name))
            for name, tensor in self.sources.items()
        }

    @property
    def role(self) -> Literal["heads", "draft", "assistant"]:
        """Role of its program."""
        if "heads" in self.settings:
            return HEADS
        return ASSISTANT if self.settings["kind"] == ASSISTANT else DRAFT

    @property
    def at_once(self) -> bool:
        """Whether all draft tokens follow from one hidden state, independent of each other."""
        return bool(self.settings["kind"] == "projections")

    @property
    def count(self) -> int:
        """Default number of draft tokens."""
        if self.settings["kind"] == dflash.KIND:
            return int(self.settings["block_size"]) - 1
        return int(self.settings.get("heads", _CHAINED))

    def reads(self, config: Mapping[str, Any]) -> bool | dict[str, Any]:
        """Return the layers whose states it reads for each token: the last one, or several within the model.

        Args:
            config: Config of the language model.

        Returns:
            True, or `layers`, whose inputs are joined, and `size`, that of the matrix that multiplies them.
        """
        if "joins" not in self.settings:
            return True
        return {"layers": self._layers(config), "size": self.settings["joins"]}

    def _layers(self, config: Mapping[str, Any]) -> list[int]:
        """Return the layers whose inputs are joined, in the order of their computation."""
        count = int(config.get("num_hidden_layers", 0))
        return sorted({*self.settings.get("layers", (2, count // 2, count - 3))})

    @property
    def bindings(self) -> dict[str, str]:
        """Tensors by name of the initializer that is read from them."""
        named = self.sources if self.layer else {name: _beside(name) for name in self.sources}
        return {PREFIX + name: tensor for name, tensor in named.items()}

    @cached_property
    def source(self) -> Mapping[str, Any]:
        """Identity in a build's spec."""
        if self.layer:
            return OF_MODEL
        hub = {"model_id": self.repository, "revision": self.revision}
        digests = {name: sha256_file(self.folder / name) for name in self.files}
        return {
            **{name: value for name, value in hub.items() if value},
            "digest": digest_of_files(digests),
        }

    @property
    def located(self) -> dict[str, Any]:
        """Location for other readers of its files; for a layer of the model's own, its name."""
        own = {"settings": self.settings, "sources": self.sources, "layer": self.layer}
        return {
            "folder": str(self.folder.absolute()),
            "files": list(self.files),
            **(own if self.layer else {}),
        }

    def problems(self, name: str, config: Mapping[str, Any]) -> list[str]:
        """List the reasons why it does not fit a model, one sentence each.

        Args:
            name: Name of the model.
            config: Config of its language model.
        """
        hidden = next((config[key] for key in _HIDDEN if key in config), None)
        pairs = (
            ("hidden states", "numbers", "hidden_size", hidden),
            ("a vocabulary", "tokens", "vocab_size", config.get("vocab_size")),
        )
        reasons = self._misplaced(name, config) if "joins" in self.settings else []
        if self.role == ASSISTANT and (unlike := assistant.unlike(self.settings, config)):
            reasons.append(
                f"--draft-heads {self.name!r} reads keys and values of a model with {'; '.join(unlike)} of {name!r}. "
                "Expected the one that it was trained for. Give another, or leave it out."
            )
        return reasons + [
            f"--draft-heads {self.name!r} has heads for {what} of {self.settings[key]:,} {unit}, and {name!r} has "
            f"{expected:,}. Expected heads that were trained for this model; give those, or leave it out."
            for what, unit, key, expected in pairs
            if expected is not None and self.settings.get(key) not in (None, expected)
        ]

    def _misplaced(self, name: str, config: Mapping[str, Any]) -> list[str]:
        """Return the faults of the layers whose inputs it reads."""
        layers, last = self._layers(config), int(config.get("num_hidden_layers", 0)) - 1
        expected = len(self.settings.get("layers", range(JOINED)))
        if len(layers) == expected and 1 <= layers[0] <= layers[-1] <= last:
            return []
        return [
            f"--draft-heads {self.name!r} reads what goes into layers {layers}, and {name!r} has layers 0 to {last}. "
            f"Expected {expected} of them, from 1 on. Give one that was trained for this model, or leave it out."
        ]


def source_of(requested: str) -> Mapping[str, Any]:
    """Return the identity of draft heads in a build's spec, from their name in the request."""
    return OF_MODEL if requested == mtp.MTP else open_speculator(requested).source


def open_speculator(source: str, revision: str | None = None) -> Speculator:
    """Open draft heads; download them from the Hub.

    Args:
        source: A folder, or a Hub `org/name`, with an optional `@` and a revision. An existing folder has precedence.
        revision: Branch, tag or commit of a Hub repository; None for its default branch.

    Raises:
        SpeculatorError: There are no draft heads of a supported format, or they are damaged.
        CheckpointError: A file is not available.
    """
    repository, _, at = source.partition("@")
    configs = {kind.config for kind in KINDS}
    files = files_beside(source, repository, at or revision, lambda name: name in configs)
    if files is None:
        raise SpeculatorError(
            f"No folder {source!r}. Expected that of draft heads, or a Hub id 'org/name'.{similar_path(source)} "
            "Check the path."
        )
    kind, config_name, config = _kind_of(source, files)
    weights = sorted(name for name in files.names if kind.holds(name))
    if not weights:
        pickled = sorted(name for name in files.names if name.endswith(_PICKLES))
        had = f", only {some(pickled)}: pickles, which can run code" if pickled else ""
        raise SpeculatorError(
            f"The heads in {files} have no weights{had}. Expected {kind.weights}. Convert them with safetensors' "
            "save_file, under the same names."
        )
    files.fetch([config_name, *weights])
    tensors = index_tensors(files.folder / name for name in weights)
    stripped = {kind.plain(name): name for name in tensors}
    settings, shapes = kind.read(
        source, config, {name: tensors[stripped[name]].shape for name in stripped}
    )
    wrong = [
        f"{name!r} is {list(tensors[stripped[name]].shape) if name in stripped else 'missing'}, expected {list(shape)}"
        for name, shape in shapes.values()
        if name not in stripped or tensors[stripped[name]].shape != shape
    ]
    if wrong:
        raise SpeculatorError(
            f"The heads in {files} are not those of their {config_name}: {some(wrong, 4)}. Expected one tensor of the "
            "right shape for every parameter. Get both files again, from one revision."
        )
    return Speculator(
        name=source,
        folder=files.folder,
        files=(config_name, *weights),
        settings=settings,
        sources={name: stripped[tensor] for name, (tensor, _) in shapes.items()},
        repository=getattr(files, "model_id", ""),
        revision=getattr(files, "revision", ""),
    )


def _kind_of(source: str, files: Files) -> tuple[Kind, str, Mapping[str, Any]]:
    read: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS:
        if kind.config not in files.names:
            continue
        if kind.config not in read:
            files.fetch([kind.config])
            read[kind.config] = read_json(files.folder / kind.config)
        if kind.recognizes(read[kind.config]):
            return kind, kind.config, read[kind.config]
    known = "; ".join(f"{kind.name}: {kind.known_by}" for kind in KINDS)
    raise SpeculatorError(
        f"{files} has no heads that draft, as --draft-heads {source!r} asks for. Expected one of these kinds: {known}. "
        "Give such a folder or repository, or draft with 'lookup'."
    )


def _beside(name: str) -> str:
    return f"speculator: {name}"
