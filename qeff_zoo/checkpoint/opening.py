# SPDX-License-Identifier: Apache-2.0
"""Any checkpoint: from a model id or a path to configuration, companions, tensors and identity.

Opening reads small files only. Weights are safetensors or GGUF, fetched by `Checkpoint.fetch` and read without a copy.
Pickle is refused: reading one can run code. Needs neither torch nor transformers.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint import static_embedding
from qeff_zoo.checkpoint.config import model_config, text_config_of
from qeff_zoo.checkpoint.files import (
    COMPONENTS,
    MODEL_INDEX,
    Access,
    Files,
    LocalFiles,
    Progress,
    as_path,
    digest_of_files,
    is_companion,
    is_wanted,
    license_of,
    read_config,
    require_no_revision,
    some,
)
from qeff_zoo.checkpoint.generation_settings import GENERATION_CONFIG, effective
from qeff_zoo.checkpoint.gguf.index import GgufHeader, read_shards
from qeff_zoo.checkpoint.hub_snapshot import HubSnapshot, open_snapshot
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.pipeline_files import (
    folders_of,
    is_pipeline,
    read_pipeline,
    weight_entries,
)
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, TensorReader, index_tensors
from qeff_zoo.checkpoint.sentence_transformers.files import read_modules
from qeff_zoo.checkpoint.sentence_transformers.modules import require_encoder
from qeff_zoo.checkpoint.sentence_transformers.modules import weight_files as module_files
from qeff_zoo.checkpoint.weight_files import (
    has_weights,
    no_config,
    no_files,
    no_folder,
    no_path,
    only_config,
    only_gguf,
    read_weight_map,
    shards_of,
    stacked_by_mlx,
    undescribed,
    weights_entry,
)
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

    from qeff_zoo.checkpoint.adapters.merged import Merged
    from qeff_zoo.checkpoint.draft_heads import Speculator
    from qeff_zoo.checkpoint.encoded import Encoded, Encodings
    from qeff_zoo.checkpoint.types import Expression

__all__ = ["Checkpoint", "Progress", "TensorInfo", "open_checkpoint"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint: small files are in memory, large ones are read on demand.

    Args:
        name: `org/name`, or the folder's name; for display.
        model_id: `org/name` of a Hub model; None for a local one.
        revision: Commit of a Hub model, 40 hex digits; None for a local one.
        folder: Folder of the files.
        config: Content of config.json; of a pipeline that of model_index.json, with those of its components.
        generation_config: Content of generation_config.json; empty without one.
        companions: Configuration, tokenizer and documents: local path by relative path.
        files: Source of the files.
        gguf: Name of the GGUF file of the weights, or of the first of several; empty for safetensors.
        merged: Adapters to merge into the weights, whose tensors are available too.
        speculator: Draft heads for the model, whose tensors are available too; None without.
    """

    name: str
    model_id: str | None = None
    revision: str | None = None
    folder: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    companions: Mapping[str, Path]
    files: Files = field(repr=False)
    gguf: str = ""
    merged: "tuple[Merged, ...]" = ()
    speculator: "Speculator | None" = None

    @property
    def model_type(self) -> str:
        """`model_type` of the configuration."""
        return str(self.config["model_type"])

    @property
    def model_config(self) -> Mapping[str, Any]:
        """Configuration of the built model; the whole configuration unless it has several models."""
        return model_config(self.config)

    @property
    def config_file(self) -> Path:
        """Path of the file that configures the model."""
        return self.companions[MODEL_INDEX if self.is_pipeline else "config.json"]

    @property
    def is_pipeline(self) -> bool:
        """Whether it is a pipeline of diffusers, whose components have a folder each."""
        return COMPONENTS in self.config

    @property
    def tokenizer_files(self) -> list[str]:
        """Names of small files among which a tokenizer may be: of a pipeline, without their folders."""
        names = [*self.companions]
        return [PurePosixPath(name).name for name in names] if self.is_pipeline else names

    @property
    def text_config(self) -> Mapping[str, Any]:
        """Configuration of the language model; the whole configuration without another model."""
        return text_config_of(self.config)

    @cached_property
    def generation_file(self) -> Mapping[str, Any] | None:
        """Content of generation_config.json, or of what stands in for it; None without either."""
        path = self.companions.get(GENERATION_CONFIG)
        return read_json(path) if path else None

    @property
    def generation(self) -> Mapping[str, Any]:
        """Settings of transformers' `generate` in its files, without null."""
        return effective(self.config, self.generation_file)

    @property
    def architectures(self) -> tuple[str, ...]:
        """`architectures` of the configuration."""
        return tuple(self.config.get("architectures") or ())

    @property
    def needs_remote_code(self) -> bool:
        """Whether the configuration refers to its own modelling code (`auto_map`)."""
        return bool(self.config.get("auto_map"))

    @cached_property
    def license(self) -> str | None:
        """`license` in the front matter of README.md."""
        readme = self.companions.get("README.md")
        return license_of(readme) if readme else None

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Relative paths of the files of weights, sorted."""
        if self.gguf:
            return shards_of(self.gguf)
        if self.is_pipeline:
            return tuple(
                sorted({one for every in self._files_of_components.values() for one in every})
            )
        shards = set(self._weight_map.values()) or {weights_entry(self.config, self.files)}
        return tuple(sorted({*shards, *module_files(self.companions).values()}))

    @cached_property
    def _files_of_components(self) -> Mapping[str, tuple[str, ...]]:
        """Files of the weights of each component, by folder."""
        files = {}
        for folder, entry in weight_entries(self.config, self.files).items():
            shards = {entry}
            if entry.endswith(".json"):
                self.files.fetch([entry])
                shards = {
                    f"{folder}/{value}" for value in read_weight_map(self.folder / entry).values()
                }
            files[folder] = tuple(sorted(shards))
        return files

    @cached_property
    def _weight_map(self) -> Mapping[str, str]:
        if self.is_pipeline:
            return {}
        entry = weights_entry(self.config, self.files)
        if not entry.endswith(".json"):
            return {}
        self.files.fetch([entry])
        return read_weight_map(self.folder / entry)

    def weights_digest(self, file_digest: Callable[[Path], str] | None = None) -> str:
        """Return the identity of the weights by name and content of their files, local or remote.

        Downloads no large file. The digest is that of what `sha256sum` prints, sorted by name.

        Args:
            file_digest: Function that returns the SHA-256 of a file, with or without the prefix "sha256:"; for callers
                with a cache.

        Returns:
            "sha256:" and 64 hex digits.
        """
        known = {name: self.files.sha256(name) for name in self.weight_files}
        unknown = [name for name, digest in known.items() if digest is None]
        self.files.fetch(unknown)  # small files: the Hub has the digest of every file over 10 MB
        try:
            read = {name: (file_digest or sha256_file)(self.folder / name) for name in unknown}
        except OSError as error:
            raise CheckpointError(
                f"Cannot read {error.filename!r}: {error.strerror}. Expected a readable file of "
                "weights. Check that it is there and that you may read it."
            ) from error
        return digest_of_files(
            {name: (digest or read[name]).removeprefix("sha256:") for name, digest in known.items()}
        )

    def companions_digest(self) -> str:
        """Return the identity of the configuration and tokenizer by name and content, without documents.

        Returns:
            "sha256:" and 64 hex digits.
        """
        counted = [name for name in self.companions if is_companion(name)]
        return digest_of_files({name: sha256_file(self.companions[name]) for name in counted})

    def fetch(self, progress: Progress | None = None) -> None:
        """Fetch the weights into `folder`, unless they exist.

        Args:
            progress: Called with the bytes done and the bytes in all.
        """
        self.files.fetch(self.weight_files, progress)

    @property
    def tensor_names(self) -> Iterable[str]:
        """Names of the tensors, from an index, or from files, which are fetched first."""
        if self._weight_map and not self.gguf:
            return self._weight_map
        self.fetch()
        return self.logical

    @property
    def names_at_hand(self) -> Iterable[str]:
        """Names of the stored tensors if they are known without a download of weights; else empty."""
        with suppress(CheckpointError):  # missing or damaged files are refused when they are read
            if self.files.names and not self.gguf and self._weight_map:
                return self._weight_map
            return self.stored if self.is_at_hand else ()
        return ()

    @property
    def is_config_alone(self) -> bool:
        """Whether nothing beside the configuration is a file of weights, of whatever kind."""
        return not has_weights(self.files, folders_of(self.config))

    def require_weights(self) -> None:
        """Refuse a checkpoint whose files of weights do not exist.

        Raises:
            CheckpointError: There are no weights, or some of their files are missing.
        """
        if not self.files.names:
            raise only_config(self.config_file)
        if missing := sorted(set(self.weight_files) - self.files.names):
            raise no_files(self.files, missing, len(self.weight_files))

    @property
    def is_at_hand(self) -> bool:
        """Whether the weights need no download."""
        return bool(self.files.names) and all(
            (self.folder / file).is_file() for file in self.weight_files
        )

    @property
    def located(self) -> dict[str, Any]:
        """Location for other readers: the folder of config.json, GGUF files, adapters."""
        files = self.weight_files if self.gguf else ()
        return {
            "checkpoint": str(self.config_file.parent.absolute()),
            "gguf": [str((self.folder / name).absolute()) for name in files],
            "adapters": [one.located for one in self.merged],
            "speculator": self.speculator and self.speculator.located,
        }

    @cached_property
    def gguf_header(self) -> GgufHeader:
        """Checked header of the fetched GGUF files."""
        return read_shards([self.folder / name for name in self.weight_files])

    @cached_property
    def stored(self) -> Mapping[str, TensorInfo]:
        """Tensors of the fetched files by name, from checked headers."""
        if self.gguf:
            return {**self.gguf_header.tensors, **self.gguf_header.parameters}
        if self.is_pipeline:
            return {
                f"{folder}/{name}": info
                for folder, files in self._files_of_components.items()
                for name, info in index_tensors(self.folder / file for file in files).items()
            }
        behind = module_files(self.companions)
        tensors = index_tensors(
            self.folder / name for name in self.weight_files if name not in behind.values()
        )
        for folder, name in behind.items():  # each has a `linear.weight`
            dense = index_tensors([self.folder / name])
            tensors |= {f"{folder}/{tensor}": info for tensor, info in dense.items()}
        absent = [
            f"{name!r} in {shard!r}"
            for name, shard in self._weight_map.items()
            if name not in tensors or tensors[name].path != self.folder / shard
        ]
        if absent:
            raise CheckpointError(
                f"The weights in {self.files} lack {len(absent)} tensors that their index names: {some(absent)}. "
                "Expected each in its shard. Get the shards and the index again, from one revision."
            )
        return tensors

    @cached_property
    def quantization(self) -> Mapping[str, Any]:
        """`quantization_config` of the configuration; empty for an unquantized checkpoint."""
        return self.config.get("quantization_config") or {}

    @property
    def method(self) -> str:
        """Quantization method: `quant_method` of the configuration, "none" for an unquantized checkpoint."""
        return str(self.quantization.get("quant_method")) if self.quantization else "none"

    @cached_property
    def _encodings(self) -> "Encodings":
        from qeff_zoo.checkpoint.encoded import Encodings, Stored

        from . import formats

        if not self.quantization:
            error = undescribed(self.name, self.files, self.stored)
            if error := error or stacked_by_mlx(self.name, self.stored):
                raise error
            return Encodings(encoded={})
        metadata = (
            {"model": self.config, "metadata": self.gguf_header.metadata} if self.gguf else {}
        )
        return formats.find(
            Stored(
                name=self.name,
                config={**self.quantization, **metadata},
                tensors=self.stored,
                read=self._reader.read,
            )
        )

    @property
    def encoded(self) -> "Mapping[str, Encoded]":
        """Quantized tensors by name."""
        return self._encodings.encoded

    @property
    def stored_bits(self) -> float | None:
        """Bits of a quantized matrix's value, on average and with scales if the weights are here; None if unknown."""
        from . import formats

        if not self.quantization:
            return None
        with suppress(CheckpointError):  # damaged files are refused when they are read
            if self.is_at_hand and self.encoded:
                names = {name for value in self.encoded.values() for name in value.sources}
                nbytes = sum(self.stored[name].nbytes for name in names)
                return 8 * nbytes / sum(math.prod(value.shape) for value in self.encoded.values())
        return formats.bits_of(self.quantization)

    def require_finite_scales(self) -> None:
        """Refuse scales and offsets that are not finite; scales inside blocks are checked when read.

        Raises:
            CheckpointError: A scale or offset is infinite or not a number.
        """
        from qeff_zoo.checkpoint.formats.fields import FLOATS, finite, to_floats

        for name, encoded in self.encoded.items():
            for info in map(self.stored.__getitem__, encoded.sources):
                if info.dtype in FLOATS:
                    finite(to_floats(self.read_stored(info.name), info.dtype), info)
            self.release(name)

    @property
    def values(self) -> "Mapping[str, Expression]":
        """Expressions for names of the float model that no tensor has."""
        return self._encodings.values

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors that `read` returns, with dequantized ones in place of their storage."""
        return self._own | self._beside if self._beside else self._own

    @cached_property
    def _beside(self) -> dict[str, TensorInfo]:
        others: list[Merged | Speculator] = [
            *self.merged,
            *([self.speculator] if self.speculator else []),
        ]
        return {name: info for other in others for name, info in other.tensors.items()}

    @cached_property
    def _own(self) -> dict[str, TensorInfo]:
        parts = {name for value in self.encoded.values() for name in value.sources}
        parts |= self._encodings.beside
        plain = {name: info for name, info in self.stored.items() if name not in parts}
        return plain | {name: self._decoded(name, tensor) for name, tensor in self.encoded.items()}

    def _decoded(self, name: str, encoded: "Encoded") -> TensorInfo:
        sources = [self.stored[source] for source in encoded.sources]
        nbytes = sum(source.nbytes for source in sources)
        return TensorInfo(name, "F32", encoded.shape, sources[0].path, 0, nbytes)

    @cached_property
    def logical(self) -> Mapping[str, TensorInfo]:
        """Tensors with the names and shapes of the float checkpoint."""
        if not self.values:
            return self._own
        from qeff_zoo.checkpoint.expressions import shape_of, sources_of

        by_name = {name: sources_of(value) for name, value in self.values.items()}
        parts = {source for sources in by_name.values() for source in sources}
        plain = {name: info for name, info in self._own.items() if name not in parts}
        return plain | {
            name: replace(self._own[by_name[name][0]], name=name, shape=shape_of(value, self._own))
            for name, value in self.values.items()
        }

    @cached_property
    def _reader(self) -> TensorReader:
        return TensorReader({**self.stored, **self._beside})

    def read(
        self, name: str, start: int | None = None, stop: int | None = None
    ) -> "np.ndarray[Any, Any]":
        """Return a tensor, or rows `start:stop` of its first axis, without a copy.

        Args:
            name: Tensor name.
            start: First row; None for the first.
            stop: Row after the last; None for all remaining rows.

        Returns:
            A view: BF16 as uint16, 8-bit floats as uint8, other types unchanged. For a quantized tensor, its values in
            float32.
        """
        if name not in self.encoded:
            return self._reader.read(name, start, stop)
        encoded = self.encoded[name]
        stop = encoded.shape[0] if stop is None else stop
        return encoded.values(self._reader.read, start or 0, stop)

    def read_stored(
        self, name: str, start: int | None = None, stop: int | None = None
    ) -> "np.ndarray[Any, Any]":
        """Return a tensor of the files, or rows of it, see `read`, without dequantization."""
        return self._reader.read(name, start, stop)

    def release(self, name: str) -> None:
        """Release the memory of a read tensor; its views stay valid.

        Args:
            name: Tensor name.
        """
        for source in self.encoded[name].sources if name in self.encoded else (name,):
            self._reader.release(source)

    def close(self) -> None:
        """Unmap the weights; a later `read` maps them again."""
        if "_reader" in self.__dict__:
            self._reader.close()


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    need_weights: bool = True,
    config_from: str | None = None,
    gguf_file: str | None = None,
    token: str | None = None,
    cache_dir: str | None = None,
) -> Checkpoint:
    """Open a checkpoint; download its small files from the Hub, and no weights.

    Args:
        model: A folder, a GGUF file, a config.json, or a Hub `org/name`. An existing path has precedence.
        revision: Branch, tag or commit of a Hub model; None for its default branch.
        need_weights: Whether a checkpoint without usable weights is refused.
        config_from: Original checkpoint of a GGUF file: a folder, a config.json, or a Hub `org/name`; provides
            configuration and tokenizer. None for a config.json beside the file, else for the file's metadata.
        gguf_file: Name of a GGUF file in the folder or repository, or its quantization ("Q8_0"); None for safetensors,
            or for the only GGUF file if there are no other weights.
        token: Token for the Hub; None for the user's.
        cache_dir: Folder for downloads; None for the Hub's usual cache.

    Raises:
        CheckpointError: The model does not exist, or is unusable.

    Example:
        >>> checkpoint = open_checkpoint("org/name")
        >>> checkpoint.fetch()
        >>> checkpoint.read("model.embed_tokens.weight", 0, 4).shape
        (4, 2048)
    """
    path, access = as_path(model), Access(token=token, cache_dir=cache_dir)
    if gguf_file is not None or (path and path.suffix == ".gguf" and not path.is_dir()):
        return _gguf(model, path, gguf_file, config_from, revision, access)
    snapshot = None if path else open_snapshot(model, revision, is_wanted, **access)
    files = snapshot or LocalFiles.of_folder(path)
    if files and (one := only_gguf(files)):
        return _gguf(model, path, one, config_from, revision, access)
    if config_from is not None:
        raise CheckpointError(
            f"--config-from {config_from!r} was given with {model!r}, which has a configuration of its own. Expected "
            "it with a GGUF file. Leave it out, or name the file with --gguf-file."
        )
    return _open(model, path or snapshot, revision, need_weights, access)


def _open(
    model: str,
    location: Path | HubSnapshot | None,
    revision: str | None,
    need_weights: bool,
    access: Access,
) -> Checkpoint:
    """Open a checkpoint of safetensors, or a configuration; from the Hub if no location is known."""
    if isinstance(location, Path):
        checkpoint = _open_path(location, revision)
    else:
        snapshot = location or open_snapshot(model, revision, is_wanted, **access)
        checkpoint = _checkpoint(snapshot, model, model, snapshot.revision)
    if need_weights:
        checkpoint.require_weights()
    return checkpoint


def _gguf(
    model: str,
    path: Path | None,
    gguf_file: str | None,
    config_from: str | None,
    revision: str | None,
    access: Access,
) -> Checkpoint:
    """Open a GGUF checkpoint; for local files, check that every tensor has a counterpart in the model."""
    from qeff_zoo.checkpoint.gguf import names as gguf_names
    from qeff_zoo.checkpoint.gguf import source as gguf

    if path is not None:
        require_no_revision(path, revision)
    source = gguf.find(model, path, gguf_file, config_from, revision, access)
    original = _open(
        source.original, as_path(source.original), None, need_weights=False, access=access
    )
    checkpoint = replace(
        original,
        name=source.name,
        model_id=source.model_id,
        revision=source.revision,
        folder=source.files.folder,
        config={**original.config, "quantization_config": {"quant_method": "gguf"}},
        files=source.files,
        gguf=source.file,
    )
    if all((checkpoint.folder / name).is_file() for name in checkpoint.weight_files):
        header = checkpoint.gguf_header
        gguf_names.places_of(source.name, checkpoint.config, header.metadata, checkpoint.stored)
        gguf.warn_of_differences(source.name, checkpoint.text_config, header)
    return checkpoint


def _open_path(path: Path, revision: str | None) -> Checkpoint:
    require_no_revision(path, revision)
    path = path.absolute()
    if not os.path.exists(path):  # noqa: PTH110 -- a name too long for a file is none
        raise no_path(path)
    if path.is_dir():
        return _checkpoint(LocalFiles.of(path), path.resolve().name)
    if path.is_file() and path.name == MODEL_INDEX:
        return replace(_open_path(path.parent, None), files=LocalFiles(path.parent, frozenset()))
    if path.is_file() and path.suffix == ".json":
        return _configuration(path)
    raise no_folder(path)


def _configuration(path: Path) -> Checkpoint:
    return Checkpoint(
        name=path.parent.name if path.name == "config.json" else path.stem,
        folder=path.parent,
        config=read_config(path),
        companions={"config.json": path},
        files=LocalFiles(path.parent, frozenset()),
    )


def _checkpoint(
    files: Files, name: str, model_id: str | None = None, revision: str | None = None
) -> Checkpoint:
    companions = {name: files.folder / name for name in sorted(files.names) if is_wanted(name)}
    if static_embedding.is_foreign(companions):
        files = LocalFiles.of(static_embedding.converted(files, companions))
        return _checkpoint(files, name, model_id, revision)
    if is_pipeline(companions):
        return Checkpoint(
            name=name,
            model_id=model_id,
            revision=revision,
            folder=files.folder,
            config=read_pipeline(companions),
            companions=companions,
            files=files,
        )
    described = companions.get("config.json")
    if described is None or "model_type" not in read_json(described):
        require_encoder(read_modules(companions))
    if described is None:
        raise no_config(files)
    generation = companions.get("generation_config.json")
    return Checkpoint(
        name=name,
        model_id=model_id,
        revision=revision,
        folder=files.folder,
        config=read_config(described),
        generation_config=read_json(generation) if generation else {},
        companions=companions,
        files=files,
    )
