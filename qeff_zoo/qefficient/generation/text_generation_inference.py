# SPDX-License-Identifier: Apache-2.0
"""QEfficient's generation loop in steps, over one `QAICInferenceSession`, for code that overrides or calls the steps.

`generate` of the classes needs none of it: it takes any number of prompts, and has sampling, adapters and grammars.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.counterparts import names_of
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, PerfMetrics
from qeff_zoo.qefficient.functions import cloud_ai_100_exec_kv
from qeff_zoo.qefficient.generation.cloud_infer import QAICInferenceSession
from qeff_zoo.qefficient.generation.measures import (
    CloudAI100ExecInfoNew,
    calculate_latency,
    write_io_files,
)
from qeff_zoo.qefficient.generation.prompts import (
    fix_prompt_to_lora_id_mapping,
    fix_prompts,
    get_compilation_dims,
    get_input_prompts,
    read_prompts_txt_file,
)
from qeff_zoo.runtime.program import Array

__all__ = [
    "CloudAI100ExecInfo",
    "CloudAI100ExecInfoNew",
    "PerfMetrics",
    "QAICInferenceSession",
    "QEffTextGenerationBase",
    "calculate_latency",
    "cloud_ai_100_exec_kv",
    "fix_prompt_to_lora_id_mapping",
    "fix_prompts",
    "get_compilation_dims",
    "get_input_prompts",
    "read_prompts_txt_file",
    "write_io_files",
]

_TOKENS, _POSITIONS, _SLOTS, _LOGITS = "input_ids", "position_ids", "batch_index", "logits"
_STATES = ("past_key.", "past_value.")

__getattr__ = names_of(__name__)


class QEffTextGenerationBase:
    """Greedy generation in steps: prefill of a prompt in chunks, then one call for each token.

    Args:
        tokenizer: Tokenizer of transformers; it pads on the right from now on.
        qpc_path: Path that `compile` returned.
        full_batch_size: Batch slots; None for those of the program.
        ctx_len: Context length; None if each generation has a length.
        device_id: Ids of cards; None for free ones.
        activate: Whether the program is opened now.
        **choices: Other arguments of QEfficient, which must be at their defaults: `generate` has these features.

    Raises:
        GenerationError: If another argument is not at its default.
    """

    def __init__(
        self,
        tokenizer: Any,
        qpc_path: str | os.PathLike[str],
        full_batch_size: int | None = None,
        ctx_len: int | None = None,
        device_id: Sequence[int] | None = None,
        activate: bool = True,
        **choices: Any,
    ) -> None:
        if given := sorted(name for name, value in choices.items() if value):
            raise GenerationError(
                f"QEffTextGenerationBase was given {', '.join(given)}, which its steps do not have; expected greedy "
                "generation. Use `generate` of the classes."
            )
        self.tokenizer, self._ctx_len = tokenizer, ctx_len
        tokenizer.padding_side = "right"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = tokenizer.eos_token_id
        self._session = QAICInferenceSession(qpc_path, device_id, activate=activate)
        shapes = self._shapes(_TOKENS)
        self.batch_size = max(rows for rows, _ in shapes)
        self._prefill_seq_len = max(width for _, width in shapes)
        self._decode_seq_len = min(width for _, width in shapes) if len(shapes) > 1 else 1
        self._vocab_size = self._shapes(_LOGITS)[0][-1]
        self.full_batch_size = full_batch_size
        if not full_batch_size and _SLOTS in self._session.binding_index_map:
            self.full_batch_size = max(rows for rows, *_ in self._shapes(_SLOTS))
        #: Batch slots of decode calls, (slots, 1); None without continuous batching.
        self.batch_index: Array | None = None
        self.generated_ids = self.decode_input_ids = np.zeros((0, 0), np.int64)
        self.decode_pos_ids = self.generation_len = np.zeros((0, 0), np.int64)
        names = [*self._session.input_names, *self._session.output_names]
        self._session.skip_buffers(
            [name for name in names if name.startswith(_STATES) or name.endswith("_RetainedState")]
        )

    def _shapes(self, name: str) -> list[tuple[int, ...]]:
        """Return the shape of an input or output in each specialization."""
        index = self._session.binding_index_map[name]
        shapes = [tuple(shape[index][1]) for shape in self._session.allowed_shapes]
        return shapes or [tuple(self._session.bindings[index].dims)]

    def initialize_decode_inputs(
        self, num_prompts: int, execution_batch_size: int, max_gen_length: int
    ) -> None:
        """Allocate the arrays of a generation.

        Args:
            num_prompts: Number of prompts.
            execution_batch_size: Number of rows of a decode call.
            max_gen_length: Maximum number of tokens of a prompt.
        """
        pad = self.tokenizer.pad_token_id
        self.generated_ids = np.full((num_prompts, max_gen_length), pad, np.int64)
        self.decode_input_ids, self.decode_pos_ids, self.generation_len = (
            np.zeros((execution_batch_size, 1), np.int64) for _ in range(3)
        )

    def prepare_decode_inputs(self) -> dict[str, Array]:
        """Return the inputs of the first decode call."""
        inputs = {_TOKENS: self.decode_input_ids, _POSITIONS: self.decode_pos_ids}
        return inputs if self.batch_index is None else {**inputs, _SLOTS: self.batch_index}

    def run_prefill(
        self,
        prompt: str | Sequence[str],
        generation_len: int | None,
        prefill_logit_bs: int = 1,
        decode_batch_id: Array | None = None,
    ) -> tuple[dict[str, Array], Array, int]:
        """Run prompts, in chunks of the compiled length.

        Args:
            prompt: A prompt, or one for each row.
            generation_len: Number of tokens to generate; None for as many as the context holds.
            prefill_logit_bs: Number of rows of logits.
            decode_batch_id: Batch slot of the prompt, (1, 1); None without continuous batching.

        Returns:
            Outputs of the last chunk, the position of the next token in each row, and the number of tokens.

        Raises:
            ValueError: There is neither a context length nor a number of tokens, or no room for any.
        """
        longest = self.tokenizer(prompt, return_tensors="np", padding=True)[_TOKENS].shape[1]
        chunks = -(-longest // self._prefill_seq_len)
        width = chunks * self._prefill_seq_len
        encoded = self.tokenizer(
            prompt, return_tensors="np", padding="max_length", max_length=width
        )
        mask = encoded["attention_mask"]
        inputs = {
            _TOKENS: encoded[_TOKENS].astype(np.int64),
            _POSITIONS: np.where(mask, np.arange(width), -1).astype(np.int64),
        }
        generation_len = self._fetch_generation_len(
            generation_len, (self._ctx_len or 0) - int(mask.sum(1).max())
        )
        slots = {} if decode_batch_id is None else {_SLOTS: decode_batch_id}
        self._set_output_buffers(batch_size=prefill_logit_bs, sequence_length=1)
        outputs: dict[str, Array] = {}
        for start in range(0, width, self._prefill_seq_len):
            chunk = slice(start, start + self._prefill_seq_len)
            outputs = self._session.run(
                {**{name: array[:, chunk] for name, array in inputs.items()}, **slots}
            )
        return outputs, mask.sum(1, keepdims=True).astype(np.int64), generation_len

    def _fetch_generation_len(self, generation_len: int | None, most: int) -> int:
        if generation_len is None and self._ctx_len is None:
            raise ValueError(
                "There is neither ctx_len nor generation_len; expected one. Give one of them."
            )
        wanted = most if generation_len is None else generation_len
        if wanted <= 0:
            raise ValueError(
                f"{wanted} tokens cannot be generated; expected at least one. Shorten the prompt, or compile a longer "
                "ctx_len."
            )
        if self._ctx_len is not None and wanted > most:
            warnings.warn(
                f"generation_len {wanted:,} is more than the {most:,} tokens that the context has left.",
                stacklevel=3,
            )
        return wanted

    def _set_output_buffers(self, batch_size: int = 1, sequence_length: int = 1) -> None:
        """Set the shape of the logits."""
        shape = (batch_size, sequence_length, self._vocab_size)
        self._session.set_buffers({_LOGITS: np.zeros(shape, np.float32)})

    def _fetch_next_token_id(self, outputs: Mapping[str, Array]) -> Array:
        """Return the best token of each row and column."""
        logits = outputs[_LOGITS]
        tokens: Array = (logits[:, None] if logits.ndim == 2 else logits).argmax(2)
        return tokens

    def update_decode_input(
        self,
        outputs: Mapping[str, Array],
        position_ids: Array,
        generation_len: int,
        decode_batch_id: int | None = None,
    ) -> Array:
        """Set the first token after prompts; return it.

        Args:
            outputs: Outputs of `run_prefill`.
            position_ids: Positions of the token.
            generation_len: Number of tokens to generate.
            decode_batch_id: Batch slot; None for all rows.
        """
        tokens = self._fetch_next_token_id(outputs)
        rows = slice(None) if decode_batch_id is None else decode_batch_id
        self.decode_input_ids[rows], self.decode_pos_ids[rows] = tokens, position_ids
        self.generated_ids[rows, 0] = tokens[:, -1] if decode_batch_id is None else tokens[0, -1]
        self.generation_len[rows] = generation_len
        return tokens

    def run_prefill_for_all_inputs(
        self, prompt_queue: deque[str], generation_len: int | None
    ) -> None:
        """Run a prompt for each batch slot, and take them from the queue.

        Args:
            prompt_queue: Prompts.
            generation_len: Number of tokens to generate for each.
        """
        assert self.full_batch_size
        for slot in range(min(self.full_batch_size, len(prompt_queue))):
            self._begin(slot, prompt_queue.popleft(), generation_len)

    def _begin(self, slot: int, prompt: str, generation_len: int | None) -> Array:
        outputs, positions, length = self.run_prefill(
            prompt, generation_len, decode_batch_id=np.array([[slot]], np.int64)
        )
        return self.update_decode_input(outputs, positions, length, slot)

    def run_decode(
        self,
        decode_inputs: dict[str, Array],
        generation_len: int,
        automation: bool = False,
        streamer: Any = None,
    ) -> int:
        """Generate tokens until all rows have EOS; return the number of calls.

        Args:
            decode_inputs: Result of `prepare_decode_inputs`; it is advanced.
            generation_len: Maximum number of tokens.
            automation: Whether EOS ends nothing.
            streamer: Streamer of transformers for the first row.
        """
        count = 0
        for tokens in self.generate_decode_stream(decode_inputs, generation_len, automation):
            count += 1
            if streamer:
                streamer.put(tokens[0])
        return count - 1

    def generate_decode_stream(
        self, decode_inputs: dict[str, Array], generation_len: int, automation: bool = False
    ) -> Iterator[Array]:
        """Yield the newest tokens, (rows, 1), until all rows have EOS.

        Args:
            decode_inputs: Result of `prepare_decode_inputs`; it is advanced.
            generation_len: Maximum number of tokens.
            automation: Whether EOS ends nothing.
        """
        eos = self.tokenizer.eos_token_id
        rows = len(decode_inputs[_TOKENS])
        self._set_output_buffers(batch_size=rows, sequence_length=self._decode_seq_len)
        ended = decode_inputs[_TOKENS] == eos
        for step in range(1, generation_len):
            yield decode_inputs[_TOKENS]
            if ended.all() and not automation:
                return
            tokens = self._fetch_next_token_id(self._session.run(decode_inputs))[:, -1:]
            decode_inputs[_TOKENS] = tokens
            decode_inputs[_POSITIONS][:, -1] += 1
            self.generated_ids[:rows, step] = tokens[:, 0]
            ended = ended | (tokens == eos)
        yield decode_inputs[_TOKENS]

    def run_continuous_batching_decode(
        self, prompt_queue: deque[str], generation_len: int | None
    ) -> None:
        """Generate for the prompts of all batch slots, and for those of the queue as soon as a slot is free.

        Args:
            prompt_queue: Further prompts.
            generation_len: Number of tokens to generate for each.
        """
        assert self.full_batch_size
        slots = range(self.full_batch_size)
        if self.batch_index is None:
            self.batch_index = np.array(slots, np.int64)[:, None]
        self._set_output_buffers(self.full_batch_size, self._decode_seq_len)
        prompts = {slot: slot for slot in slots}  # prompt of each slot
        counts = dict.fromkeys(slots, 1)  # tokens of it
        inputs, following = self.prepare_decode_inputs(), self.full_batch_size
        running = {*slots}
        while running:
            tokens = self._fetch_next_token_id(self._session.run(inputs))[:, -1]
            for slot in sorted(running):
                is_over = counts[slot] >= self.generation_len[slot, 0]
                if not is_over and tokens[slot] != self.tokenizer.eos_token_id:
                    self.generated_ids[prompts[slot], counts[slot]] = tokens[slot]
                    inputs[_TOKENS][slot], counts[slot] = tokens[slot], counts[slot] + 1
                    inputs[_POSITIONS][slot] += 1
                elif prompt_queue:
                    first = self.generated_ids[slot, 0]
                    token = self._begin(slot, prompt_queue.popleft(), generation_len)
                    self.generated_ids[slot, 0] = first  # of another prompt
                    self.generated_ids[following, 0] = token[0, -1]
                    prompts[slot], counts[slot], following = following, 1, following + 1
                    self._set_output_buffers(self.full_batch_size, self._decode_seq_len)
                else:
                    running.remove(slot)
