# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in peft's format: adapter_config.json and adapter_model.safetensors, read without trust or peft.

Input: a folder, or a repository of the Hub. Output: scaled pairs of matrices, by the module that they change.
"""

import hashlib
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.adapters.patterns import PatternError, Patterns
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, TensorReader, index_tensors
from qeff_zoo.checkpoint.side_files import files_beside
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.regular import is_here
from qeff_zoo.disk.user_paths import is_path, similar_path
from qeff_zoo.errors import AdapterError
from qeff_zoo.terminal.sanitize import shortened

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.types import Array

#: Types of matrices that add to weights.
FLOATS = ("F64", "F32", "F16", "BF16")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
#: Fields of adapter_config.json with values by patterns of modules' names.
_TABLES = ("rank_pattern", "alpha_pattern")
#: Limit far beyond any rank or alpha.
_LARGEST = 1 << 24
_PREFIX = "base_model.model."
#: Fields of adapter_config.json for changes that are no product of two matrices.
_BEYOND = {
    "layer_replication": "repeats layers of its base",
    "use_qalora": "pools what layers read (QA-LoRA)",
    "use_bdlora": "has matrices in blocks (BD-LoRA)",
    "alora_invocation_tokens": "begins at certain tokens of a prompt (aLoRA)",
    "trainable_token_indices": "trains embeddings of tokens",
    "arrow_config": "routes between other adapters (Arrow)",
    "kasa_config": "has singular values beside its matrices (KaSA)",
    "monteclora_config": "draws its weights at random (MonteCLoRA)",
    "megatron_config": "is for layers of Megatron",
}
#: The same, for adapters that are merged into weights before quantization.
MERGEABLE = {
    "use_dora": "scales whole weights (DoRA)",
    "modules_to_save": "replaces whole modules",
    "lora_bias": "has biases of its own",
    "target_parameters": "changes stacked parameters, as of experts",
}
#: Values of `init_lora_weights` whose adapters belong to weights that peft derived from those of the base.
_NEW_BASES = ("pissa", "corda", "olora", "loftq", "lora_ga")
_PAIRS = ("lora_A.weight", "lora_B.weight", "lora_embedding_A", "lora_embedding_B")
#: Name of the adapter, which other tools leave in the names of its tensors.
_NAME = re.compile(
    r"((?:^|\.)(?:lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|modules_to_save))\.default(?=\.|$)"
)
#: Path components that peft inserts for wrapped modules.
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """An opened adapter: its configuration is in memory, its matrices are read on demand.

    Args:
        name: Name as the user wrote it, for messages.
        folder: Folder of its files.
        config: adapter_config.json as it stands.
        repository: Hub repository, `org/name`, or `org/name/folder` of one with several; "" for a folder.
        revision: Commit of that repository, 40 hex digits.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    repository: str = ""
    revision: str = ""
    _reader: list[TensorReader] = field(default_factory=list, repr=False)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors of its file, by the names of peft's save_pretrained."""
        named = index_tensors([self.folder / WEIGHTS])
        for name, info in named.items():
            if info.dtype not in FLOATS:
                raise self.refused(
                    f"its tensor {name!r} is {info.dtype}", f"one of {', '.join(FLOATS)}"
                )
        return {_NAME.sub(r"\1", name): info for name, info in named.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its two files, hexadecimal."""
        each = (sha256_file(self.folder / name) for name in (CONFIG, WEIGHTS))
        return hashlib.sha256("".join(each).encode()).hexdigest()

    @property
    def base(self) -> str:
        """Base model that the configuration names: a Hub id or a path; "" without one."""
        return str(self.config.get("base_model_name_or_path") or "")

    @cached_property
    def modules(self) -> Mapping[str, int]:
        """Ranks of the changed modules, by path in the base model.

        Raises:
            AdapterError: A matrix is missing, or a pair does not fit together.
        """
        ranks = {}
        for tensor, info in self.tensors.items():
            module, kind = _parts(tensor)
            if kind != "lora_A.weight" or self._stacked(module):
                continue
            other = self.tensors.get(f"{_PREFIX}{module}.lora_B.weight")
            rank = self._of_table("rank_pattern", module, "r")
            shapes = [one.shape for one in (info, other) if one]
            if len(shapes) < 2 or any(len(shape) != 2 for shape in shapes):
                raise self.refused(f"its module {module!r} has {shapes}", "two matrices")
            if not shapes[0][0] == shapes[1][1] == rank:
                raise self.refused(
                    f"its module {module!r} has matrices of {list(shapes[0])} and {list(shapes[1])}",
                    f"both of rank {rank}, as {CONFIG} says",
                )
            ranks[module] = int(rank)
        if not ranks and not self.embeddings and not self.stacks:
            raise self.refused(f"{WEIGHTS} has no matrices", "lora_A and lora_B of some layers")
        return ranks

    @cached_property
    def stacks(self) -> list[str]:
        """Paths of modules with changed stacked parameters, with `.base_layer` appended for inner ones."""
        parts = map(_parts, self.tensors)
        return [name for name, kind in parts if kind == "lora_A.weight" and self._stacked(name)]

    def targets(self, parameter: str) -> bool:
        """Whether it changes a parameter of a module directly, by peft's comparison of names."""
        named = self.config.get("target_parameters") or ()
        return any(f".{parameter}".endswith(f".{name}") for name in named)

    def _stacked(self, module: str) -> bool:
        owner, named = plain(module), self.config.get("target_parameters") or ()
        owners = {str(name).rpartition(".")[0] for name in named}
        rows = self.tensors[self.matrices(module)[0]].shape[0]
        if "" in owners and rows != self.rank(
            owner
        ):  # named without its module: several matrices identify it
            return True
        return any(f".{owner}".endswith(f".{one}") for one in owners - {""})

    @property
    def others(self) -> list[str]:
        """Names of tensors that are no pair of matrices of a linear layer."""
        return [name for name in self.tensors if _parts(name)[1] not in _PAIRS[:2]]

    @property
    def embeddings(self) -> dict[str, tuple[str, str]]:
        """Names of (rank, rows) and (columns, rank), by paths of changed embeddings."""
        paths = [_parts(name)[0] for name in self.tensors if _parts(name)[1] == "lora_embedding_A"]
        return {
            module: tuple(f"{_PREFIX}{module}.lora_embedding_{letter}" for letter in "AB")  # type: ignore[misc]
            for module in paths
        }

    @property
    def replaced(self) -> dict[str, str]:
        """Names of its tensors that replace those of the base, by the replaced names."""
        plain = [name for name in self.tensors if not _parts(name)[1]]
        return {_WRAPPED.sub("", name.removeprefix(_PREFIX)): name for name in plain}

    @property
    def strange(self) -> list[str]:
        """Names of tensors with an unknown meaning."""
        kinds = (
            *_PAIRS,
            "",
            "lora_B.bias",
            "lora_magnitude_vector",
            "lora_magnitude_vector.weight",
        )
        return [name for name in self.tensors if _parts(name)[1] not in kinds]

    def beside(self, module: str, kind: str) -> str | None:
        """Return the name of a further tensor of a module: its `lora_B.bias`, or `lora_magnitude_vector`."""
        names = (f"{_PREFIX}{module}.{kind}{end}" for end in ("", ".weight"))
        return next((name for name in names if name in self.tensors), None)

    def matrices(self, module: str) -> tuple[str, str]:
        """Return the names of a module's pair: (rank, in) and (out, rank)."""
        return f"{_PREFIX}{module}.lora_A.weight", f"{_PREFIX}{module}.lora_B.weight"

    def shape(self, module: str) -> tuple[int, int]:
        """Return the input and output sizes of a module."""
        down, up = (self.tensors[name].shape for name in self.matrices(module))
        return down[1], up[0]

    def rank(self, module: str) -> int:
        """Return the rank of a module's matrices from the configuration."""
        return int(self._of_table("rank_pattern", module, "r"))

    def scaling(self, module: str) -> float:
        """Return the factor of the product of a module's matrices."""
        rank = self.rank(module)
        alpha = float(self._of_table("alpha_pattern", module, "lora_alpha"))
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    @cached_property
    def _tables(self) -> dict[str, Patterns]:
        """Patterns of each table."""
        with _naming_patterns():
            return {table: Patterns(self.config.get(table) or ()) for table in _TABLES}

    def _of_table(self, table: str, module: str, usual: str) -> Any:
        """Return the value of a module in a table of patterns, or else the default, as in peft."""
        with _naming_patterns():
            pattern = self._tables[table].first(module)
        return self.config[usual] if pattern is None else self.config[table][pattern]

    def pair(self, module: str) -> "tuple[Array, Array]":
        """Read a module's matrices in float32: (in, rank), and (rank, out) with the scaling."""
        down, up = map(self.read, self.matrices(module))
        return down.T, up.T * self.scaling(module)

    def read(self, name: str) -> "Array":
        """Read a tensor in float32."""
        from qeff_zoo.checkpoint.floats import to_float32

        if not self._reader:
            self._reader.append(TensorReader(self.tensors))
        return to_float32(self._reader[0].read(name), self.tensors[name].dtype)

    def require(self, beyond: Mapping[str, str]) -> None:
        """Refuse changes of an adapter other than products of two matrices.

        Args:
            beyond: Fields of the configuration, and the change that each field enables.

        Raises:
            AdapterError: The adapter has such a tensor.
        """
        for key, what in {**_BEYOND, **beyond}.items():
            if self.config.get(key):
                then = f"Merge it into a package of its own: `qeff-zoo build MODEL --adapter {self.name}`"
                raise self.refused(
                    f"it {what}: {key} is {self.config[key]!r}",
                    f"no {key}",
                    *([f"{then}, or use another adapter."] if key in beyond else []),
                )
        begun = self.config.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(_NEW_BASES):
            raise self.refused(
                f"it goes with weights that peft made of those of its base: init_lora_weights is {begun!r}",
                "one that is for the base as it is, as save_pretrained with path_initial_model_for_weight_conversion "
                "writes it",
            )

    def warn_of_another(self, model: str | None) -> None:
        """Warn if the adapter has another model of the Hub as its base; a path identifies no model.

        Mirrors, conversions and quantized copies of a model have other names, and the same layers.
        """
        base = self.base
        is_id = base.count("/") == 1 and not is_path(base) and not is_here(base)
        if model and is_id and base.lower() != model.lower():
            warnings.warn(
                f"The adapter {self.name!r} names {base!r} as its base, and is used with {model!r}. All its layers "
                "have the same sizes there. Its answers are as trained only if both have the same weights.",
                stacklevel=2,
            )

    def refused(
        self,
        what: str,
        expected: str,
        then: str = "Use another adapter, or train it again without that.",
    ) -> AdapterError:
        """Return the error of a refused adapter."""
        return AdapterError(
            f"Cannot use the adapter {self.name!r}: {shortened(what)}; expected {expected}. {then}"
        )


def place_of(source: str) -> tuple[str, str]:
    """Split a source into a folder or `org/name`, and "folder/" for an adapter in a folder of a repository."""
    if is_path(source) or is_here(source) or source.count("/") != 2:
        return source, ""
    repository, _, inner = source.rpartition("/")
    return repository, f"{inner}/"


def open_adapter(
    source: str | Path, revision: str | None = None, *, anonymous: bool = False
) -> Adapter:
    """Open an adapter; download it from the Hub.

    Args:
        source: A folder, or a Hub `org/name`, or `org/name/folder` for an adapter beside a model. An existing folder
            has precedence.
        revision: Branch, tag or commit of a Hub repository; None for its default branch.
        anonymous: Whether requests omit the user's token.

    Raises:
        AdapterError: The folder has no adapter, or one of another kind than LoRA.
        CheckpointError: A file is damaged, or not available.
    """
    location, inner = place_of(str(source))
    named, weights = f"{inner}{CONFIG}", f"{inner}{WEIGHTS}"
    files = files_beside(
        location, location, revision, lambda name: name == named, anonymous=anonymous
    )
    if files is None:
        raise AdapterError(
            f"No folder {str(source)!r}. Expected that of an adapter, or a Hub id 'org/name'.{similar_path(location)} "
            "Check the path."
        )
    if named not in files.names:
        raise AdapterError(
            f"{files} has no {named}, so it is no adapter. Expected what peft's save_pretrained writes. Give the "
            "folder or the repository of one."
        )
    if weights not in files.names:
        there = f"{inner}{_PICKLE}" in files.names
        pickled = f", only {inner}{_PICKLE}: a pickle, which can run code" if there else ""
        raise AdapterError(
            f"{files} has no {weights}{pickled}. Expected the adapter as safetensors. Save it again with peft's "
            "save_pretrained."
        )
    files.fetch([named, weights])
    config = read_json(files.folder / named)
    repository = getattr(files, "model_id", "")
    kind = config.get("peft_type")
    adapter = Adapter(
        name=str(source),
        folder=files.folder / inner,
        config=config,
        repository=f"{repository}/{inner}".rstrip("/") if repository else "",
        revision=getattr(files, "revision", ""),
    )
    if kind != "LORA":
        raise adapter.refused(f"its peft_type is {kind!r}", "'LORA'")
    for key in ("r", "lora_alpha"):
        if not _is_size(value := config.get(key)):
            raise adapter.refused(f"{key} is {value!r} in {CONFIG}", "a number above 0")
    for key in _TABLES:
        table = config.get(key) or {}
        if not isinstance(table, dict) or not all(map(_is_size, table.values())):
            raise adapter.refused(
                f"{key} is {shortened(repr(table))} in {CONFIG}", "an object with numbers above 0"
            )
    if not isinstance(config.get("target_parameters") or [], list | str):
        raise adapter.refused(
            f"target_parameters is {config['target_parameters']!r:.100} in {CONFIG}", "a list"
        )
    return adapter


def _is_size(value: object) -> bool:
    """Whether a value can be a rank or a scale."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= _LARGEST  # type: ignore[operator]


def plain(module: str) -> str:
    """Return the path of a module without the components that peft inserts."""
    return module.replace(".base_layer", "")


def _parts(tensor: str) -> tuple[str, str]:
    """Split a tensor's name into the module's path and the rest: `lora_A.weight`."""
    module, mark, rest = tensor.removeprefix(_PREFIX).partition(".lora_")
    return module, f"lora_{rest}" if mark else ""


@contextmanager
def _naming_patterns() -> Iterator[None]:
    """Name the unsupported pattern in an error."""
    try:
        yield
    except PatternError as error:
        raise AdapterError(
            f"An adapter has the pattern {shortened(error.pattern)!r}, and {error.reason}. Expected what peft wrote: "
            "names of modules, and regular expressions without look-around, references and flags. Correct "
            f"{' and '.join(_TABLES)} in {CONFIG}."
        ) from error
