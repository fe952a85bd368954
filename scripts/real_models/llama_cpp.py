# SPDX-License-Identifier: Apache-2.0
"""Predictions of llama.cpp, in a process that has its wheel on the path.

    python -m real_models.llama_cpp < request.json

In: a GGUF `file`, a `text`, its `tokens`, `windows` of them (start, first, stop) and a file for `logits`. Out: in that
file the logits that predict each target; on stdout, whether llama.cpp makes the same tokens of the text. Its settings
are the defaults: keys and values in float16.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_BATCH = 64  # tokens a call, whose logits it holds


class Model:
    """An opened GGUF file.

    Args:
        file: Path.
        ctx_len: Tokens of a window.
    """

    def __init__(self, file: str, ctx_len: int) -> None:
        from llama_cpp_py_sync import _cffi_bindings as bindings

        self.ffi, self.lib = bindings.get_ffi(), bindings.get_lib()
        lib = self.lib
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
        if model == self.ffi.NULL:
            raise ValueError(f"It cannot load {file!r}.")
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = ctx_len, _BATCH, _BATCH
        self.context = lib.llama_init_from_model(model, settings)
        if self.context == self.ffi.NULL:
            raise ValueError(f"It cannot open {file!r}.")
        self.vocab = lib.llama_model_get_vocab(model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)
        self.batch = lib.llama_batch_init(_BATCH, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, with those that begin a prompt."""
        data = text.encode()
        ids = self.ffi.new("llama_token[]", len(data) + 8)
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(data) + 8, True, True)
        return [ids[number] for number in range(count)]

    def predict(self, tokens: Sequence[int], first: int) -> Iterator[Any]:
        """Yield the logits that predict each token from `first` on."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        for start in range(0, len(tokens) - 1, _BATCH):
            part = tokens[start : min(start + _BATCH, len(tokens) - 1)]
            batch = self.batch
            batch.n_tokens = len(part)
            for number, token in enumerate(part):
                batch.token[number], batch.pos[number] = token, start + number
                batch.n_seq_id[number], batch.seq_id[number][0] = 1, 0
                batch.logits[number] = start + number + 1 >= first
            if self.lib.llama_decode(self.context, batch):
                raise ValueError("It refused a call.")
            for number in range(max(0, first - 1 - start), len(part)):
                row = self.lib.llama_get_logits_ith(self.context, number)
                yield np.frombuffer(self.ffi.buffer(row, 4 * self.size), np.float32)


def main() -> None:
    """Answer the request."""
    asked = json.load(sys.stdin)
    windows, tokens = asked["windows"], asked["tokens"]
    model = Model(asked["file"], max(stop - start for start, _, stop in windows))
    shape = (sum(stop - first for _, first, stop in windows), model.size)
    kept = np.lib.format.open_memmap(asked["logits"], mode="w+", dtype=np.float32, shape=shape)
    rows = (
        row
        for start, first, stop in windows
        for row in model.predict(tokens[start:stop], first - start)
    )
    for number, row in enumerate(rows):
        kept[number] = row
    json.dump({"same_tokens": model.tokenize(asked["text"]) == tokens}, sys.stdout)


if __name__ == "__main__":
    main()
