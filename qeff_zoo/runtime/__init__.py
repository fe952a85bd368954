# SPDX-License-Identifier: Apache-2.0
"""Runtime: sessions of text and the engine that run packages, without torch and transformers.

Every name is imported on first use. `qeff_zoo.sessions` opens packages, and has the sessions of all tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
    from qeff_zoo.runtime.decoding.llama_samplers import Dry, Mirostat, Xtc
    from qeff_zoo.runtime.decoding.sampling import Sampling, TokenLogprobs
    from qeff_zoo.runtime.engine.answers import Delta, Request
    from qeff_zoo.runtime.engine.disaggregated import Prefills, PrefillServer
    from qeff_zoo.runtime.engine.engine import Engine, Handle, Stats, stream_deltas
    from qeff_zoo.runtime.engine.metrics import Metrics
    from qeff_zoo.runtime.engine.text_generation import Generation, TextGenerationSession
    from qeff_zoo.runtime.labels import Score
    from qeff_zoo.runtime.text.chat_template import ChatOptions
    from qeff_zoo.runtime.text.grammar import Grammar

__all__ = [
    "ChatOptions",
    "Delta",
    "Dry",
    "Engine",
    "Generation",
    "Grammar",
    "Handle",
    "Metrics",
    "Mirostat",
    "PrefillServer",
    "Prefills",
    "PrefixCacheOptions",
    "Request",
    "Sampling",
    "Score",
    "Stats",
    "TextGenerationSession",
    "TokenLogprobs",
    "Xtc",
    "stream_deltas",
]

_RUNTIME = "qeff_zoo.runtime"
_PLACES = {
    f"{_RUNTIME}.engine.answers": ("Delta", "Request"),
    f"{_RUNTIME}.text.chat_template": ("ChatOptions",),
    f"{_RUNTIME}.engine.engine": ("Engine", "Handle", "Stats", "stream_deltas"),
    f"{_RUNTIME}.text.grammar": ("Grammar",),
    f"{_RUNTIME}.engine.disaggregated": ("Prefills", "PrefillServer"),
    f"{_RUNTIME}.labels": ("Score",),
    f"{_RUNTIME}.decoding.llama_samplers": ("Dry", "Mirostat", "Xtc"),
    f"{_RUNTIME}.engine.metrics": ("Metrics",),
    f"{_RUNTIME}.caches.prefix_cache": ("PrefixCacheOptions",),
    f"{_RUNTIME}.decoding.sampling": ("Sampling", "TokenLogprobs"),
    f"{_RUNTIME}.engine.text_generation": ("Generation", "TextGenerationSession"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    for module, names in _PLACES.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
