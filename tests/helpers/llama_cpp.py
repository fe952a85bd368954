# SPDX-License-Identifier: Apache-2.0
"""llama.cpp itself, by the library in PyPI's xllamacpp: token ids, logits and embeddings of GGUF files.

The library has llama.h's functions; the two structures of options are declared as far as they are set here.
"""

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_FOLDER = Path(str(importlib.util.find_spec("xllamacpp").origin)).parent  # type: ignore[union-attr]
_LIB = ctypes.CDLL(str(next(_FOLDER.glob("xllamacpp*.so"))))
_F32 = 0
_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32


class _ModelOptions(ctypes.Structure):  # struct llama_model_params
    _fields_ = (
        ("before", ctypes.c_uint8 * 72),
        ("vocab_only", ctypes.c_bool),
        ("after", ctypes.c_uint8 * 183),
    )


class _ContextOptions(ctypes.Structure):  # struct llama_context_params
    _fields_ = (
        *[(name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")],
        ("outputs", ctypes.c_uint32 * 3),
        ("n_threads", _Int),
        ("n_threads_batch", _Int),
        ("types", _Int * 4),
        ("flash_attn_type", _Int),
        ("rope", ctypes.c_uint8 * 48),
        ("type_k", _Int),
        ("type_v", _Int),
        ("callbacks", ctypes.c_uint8 * 24),
        ("embeddings", ctypes.c_bool),
        ("after", ctypes.c_uint8 * 119),
    )


class _Batch(ctypes.Structure):  # struct llama_batch
    _fields_ = (
        ("n_tokens", _Int),
        ("token", ctypes.POINTER(_Int)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(_Int)),
        ("n_seq_id", ctypes.POINTER(_Int)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_Int))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_Floats = ctypes.POINTER(ctypes.c_float)
_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _Pointer)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, _Log, _Pointer),
    "llama_model_default_params": (_ModelOptions,),
    "llama_context_default_params": (_ContextOptions,),
    "llama_model_load_from_file": (_Pointer, ctypes.c_char_p, _ModelOptions),
    "llama_model_free": (None, _Pointer),
    "llama_model_get_vocab": (_Pointer, _Pointer),
    "llama_model_n_embd": (_Int, _Pointer),
    "llama_vocab_n_tokens": (_Int, _Pointer),
    "llama_vocab_is_eog": (ctypes.c_bool, _Pointer, _Int),
    "llama_tokenize": (
        *(_Int, _Pointer, ctypes.c_char_p, _Int, ctypes.POINTER(_Int), _Int),
        *(ctypes.c_bool, ctypes.c_bool),
    ),
    "llama_token_to_piece": (*(_Int, _Pointer, _Int, ctypes.c_char_p, _Int, _Int, ctypes.c_bool),),
    "llama_init_from_model": (_Pointer, _Pointer, _ContextOptions),
    "llama_free": (None, _Pointer),
    "llama_batch_init": (_Batch, _Int, _Int, _Int),
    "llama_batch_free": (None, _Batch),
    "llama_decode": (_Int, _Pointer, _Batch),
    "llama_get_logits": (_Floats, _Pointer),
    "llama_get_embeddings_seq": (_Floats, _Pointer, _Int),
}
for _name, (_result, *_arguments) in _SIGNATURES.items():
    getattr(_LIB, _name).restype, getattr(_LIB, _name).argtypes = _result, _arguments
_printed: list[str] = []
_log = _Log(lambda level, text, _: _printed.append(text.decode(errors="replace")))


@dataclass(frozen=True)
class LlamaCpp:
    """A model that llama.cpp has loaded.

    Args:
        model: `llama_model *`.
    """

    model: Any

    @property
    def vocabulary(self) -> Any:
        return _LIB.llama_model_get_vocab(self.model)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokenize a text; special tokens in it are found.

        Args:
            text: Any.
            special: Whether BOS and EOS are added.
        """
        octets = text.encode()
        size = len(octets) + 8
        room = (_Int * size)()
        count = _LIB.llama_tokenize(self.vocabulary, octets, len(octets), room, size, special, True)
        assert count >= 0
        return list(room[:count])

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token in an answer; nothing of a special one."""
        room = ctypes.create_string_buffer(512)
        count = _LIB.llama_token_to_piece(self.vocabulary, token, room, 512, 0, False)
        assert count >= 0
        return room.raw[:count]

    def ends(self, token: int) -> bool:
        """Return whether a token ends an answer."""
        return bool(_LIB.llama_vocab_is_eog(self.vocabulary, token))

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return (tokens, vocabulary) float32 of one prefill, with a float32 cache."""
        with self._evaluated(tokens, embeds=False) as context:
            width = _LIB.llama_vocab_n_tokens(self.vocabulary)
            return _floats(_LIB.llama_get_logits(context), len(tokens), width)

    def embedding(self, tokens: Sequence[int]) -> Array:
        """Return the pooled embedding of a text."""
        with self._evaluated(tokens, embeds=True) as context:
            width = _LIB.llama_model_n_embd(self.model)
            return _floats(_LIB.llama_get_embeddings_seq(context, 0), 1, width)[0]

    @contextmanager
    def _evaluated(self, tokens: Sequence[int], *, embeds: bool) -> Iterator[Any]:
        options = _LIB.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = max(256, len(tokens))
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = _F32
        options.embeddings = embeds
        options.flash_attn_type = 0
        context = _LIB.llama_init_from_model(self.model, options)
        assert context
        batch = _LIB.llama_batch_init(len(tokens), 0, 1)
        try:
            for at, token in enumerate(tokens):
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
                batch.seq_id[at][0], batch.logits[at] = 0, 1
            batch.n_tokens = len(tokens)
            assert _LIB.llama_decode(context, batch) == 0
            yield context
        finally:
            _LIB.llama_batch_free(batch)
            _LIB.llama_free(context)


def _floats(pointer: Any, rows: int, columns: int) -> Array:
    assert pointer
    return np.ctypeslib.as_array(pointer, (rows, columns)).copy()


@contextmanager
def opened(path: Path, *, vocabulary_only: bool = False) -> Iterator[LlamaCpp]:
    """Load a file.

    Args:
        path: The file.
        vocabulary_only: Leave the weights out.
    """
    _printed.clear()
    _LIB.llama_log_set(_log, None)
    _LIB.llama_backend_init()
    options = _LIB.llama_model_default_params()
    options.vocab_only = vocabulary_only
    model = _LIB.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ValueError(f"llama.cpp cannot load {path}: {''.join(_printed)[-300:]}")
    try:
        yield LlamaCpp(model)
    finally:
        _LIB.llama_model_free(model)
