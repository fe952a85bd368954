# SPDX-License-Identifier: Apache-2.0
"""A package in, the session of its task out."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime.feature_extraction import EmbeddingSession
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.runtime.text_classification import TextClassificationSession
from qeff_zoo.runtime.text_generation import TextGenerationSession
from qeff_zoo.runtime.token_classification import TokenClassificationSession

Session: TypeAlias = (
    TextGenerationSession
    | EmbeddingSession
    | TextClassificationSession
    | TokenClassificationSession
)

_SESSIONS: Mapping[str, Callable[..., Session]] = MappingProxyType(
    {
        "text-generation": TextGenerationSession,
        "feature-extraction": EmbeddingSession,
        "text-classification": TextClassificationSession,
        "token-classification": TokenClassificationSession,
    }
)

# As they lie in the file, they decode 2 tokens a second instead of 62.
_PREPACKED = frozenset({"int8", "int4"})


def open_session(
    package: Package,
    *,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
    graph: bytes | None = None,
) -> Session:
    """Open a package to run it.

    Args:
        package: For target `ort`.
        threads: That compute one operator; None for one per physical core.
        prefix_cache_bytes: Of text generation, memory for prompts that begin alike; 0 for none, None for the default.
        graph: See `open_graph`.

    Raises:
        GenerationError: Its target or its task cannot be run here, or it does not fit into memory.
    """
    if package.target != "ort":
        raise GenerationError(
            f"Package {str(package.path)!r} is for target {package.target!r}; expected 'ort', "
            "which runs in ONNX Runtime on the CPU. Build the model with --target ort."
        )
    kind = _SESSIONS.get(package.task)
    if kind is None:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected "
            f"{' or '.join(_SESSIONS)}. Run a package of such a task."
        )
    choices: dict[str, Any] = {}
    if prefix_cache_bytes is not None and kind is TextGenerationSession:
        choices = {"prefix_cache_bytes": prefix_cache_bytes}
    return kind(
        package.path,
        package.manifest["specializations"],
        **choices,
        threads=threads,
        prepack=_prepacks(package),
        graph=graph,
    )


def _prepacks(package: Package) -> bool:
    """Tell whether weights are copied for the kernels.

    In float32 that makes decoding 6 to 10 % faster, so it is done where memory has plenty of room for the copy.
    """
    if package.manifest["weights"]["storage"] in _PREPACKED:
        return True
    available = available_memory()
    return available is not None and 2 * package.size <= available
