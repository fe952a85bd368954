# SPDX-License-Identifier: Apache-2.0
"""Reference for text generation: logits of the next token from transformers' models, with or without media tokens.

Only the reference process imports this.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from qeff_zoo.validation.reference import heads
from qeff_zoo.validation.reference.damage import inputs_of, narrow_window
from qeff_zoo.validation.reference.layers import DraftLayerLogits
from qeff_zoo.validation.reference.losses import MOST, Losses
from qeff_zoo.validation.reference.media import Media, of_tokens
from qeff_zoo.validation.reference.routing import unwatched
from qeff_zoo.validation.reference.runs import Answers, hooked, padded, tick
from qeff_zoo.validation.trial.cases import tokens_after, tokens_of_layer
from qeff_zoo.validation.trial.faults import Fault

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class DecoderReference(Answers):
    """Outputs of a causal language model: logits at the compared positions.

    Args:
        model: Hugging Face model.
        request: Request with `sequences` and `positions`.
        arrays: Images or audio in the sequences, see `Media`.
    """

    #: Whether the model's only inputs are the decoder tokens, and multimodal inputs among them.
    reads_tokens_alone = True

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(request["sequences"], model)
        self._model, self._media = model, Media(request, arrays, model)
        self._shown: Mapping[str, Tensor] = {}  # to the newest call
        self._heads, self._drafted = heads.attach(model, request.get("speculator"))
        # A position occurs once for its own logits, and once for those of each head.
        self._positions = [position[:: 1 + self._drafted] for position in request["positions"]]
        self._fault: Fault | None = None
        self._scored: tuple[int, list[Tensor]] | None = None  # sequence, and its predictions

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        if len(numbers) > 1 and not self._media.together:
            return [row for number in numbers for row in self._run([number], length)]
        inputs = padded([self._beginning(number, length) for number in numbers])
        wanted = [
            [at for at in self._positions[number] if length is None or at < length]
            for number in numbers
        ]
        scored = 0
        if self._scored and [self._scored[0]] == numbers:
            scored = min(MOST, len(self._sequences[numbers[0]]) - 1)
            wanted = [[*range(scored), *wanted[0]]]
        rows = [row for row, positions in enumerate(wanted) for _ in positions]
        columns = [position for positions in wanted for position in positions]
        if self._fault:
            starts = [self._fault.starts.get(number, 0) for number in numbers]
            inputs = inputs_of(self._fault, inputs, starts)
            columns = [column + (self._fault.kind == "extra") for column in columns]

        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            # Some models also return outputs for the image before the tokens.
            before = args[0].shape[1] - inputs["input_ids"].shape[1]
            hidden.append(args[0][rows, [before + column for column in columns]])
            return (hidden[0][None],)  # (1, all positions, hidden)

        hidden: list[Tensor] = []
        layer = self._heads if isinstance(self._heads, DraftLayerLogits) else None
        # The layer's states are read first: `keep` leaves few of them.
        head = self._model.get_output_embeddings()
        # Some models expose it on their decoder alone.
        head = self._model.get_decoder().get_output_embeddings() if head is None else head
        with layer or nullcontext(), hooked(head, keep):
            logits = self._call(numbers, inputs, use_cache=False).logits[0]
        if self._heads:
            pairs = [(numbers[row], column) for row, column in zip(rows, columns, strict=True)]
            if layer:
                after = [tokens_of_layer(self._sequences[one], at) for one, at in pairs]
                with unwatched():  # its own choices are not the model's
                    drafted = layer.logits(inputs["input_ids"], rows, columns, after)
            else:
                assert callable(self._heads)
                after = [tokens_after(self._sequences[one], at, self._drafted) for one, at in pairs]
                drafted = self._heads(hidden[0], torch.tensor(after))
            logits = torch.cat([logits[:, None], drafted], 1).flatten(0, 1)
        tick(sum(len(self._beginning(number, length)) for number in numbers))
        if scored and self._scored:
            self._scored[1].append(logits[:scored])
            logits, wanted = logits[scored:], [wanted[0][scored:]]
        ends = np.cumsum([len(positions) * (1 + self._drafted) for positions in wanted])
        return list(np.split(logits.float().numpy(), ends[:-1]))

    def faulty(self, fault: Fault) -> dict[int, Array]:
        """Run the sequences of a stage with its fault, for text that only a decoder reads."""
        takes = inspect.signature(of_tokens(self._model).forward).parameters
        if not self.plain or (fault.kind == "position" and "position_ids" not in takes):
            return {}
        self._fault = fault if fault.kind != "window" else None
        narrow = narrow_window(self._model) if fault.kind == "window" else nullcontext()
        try:
            with narrow:
                return {
                    number: self._run([number], stop)[0] for number, stop in fault.stops.items()
                }
        except (IndexError, RuntimeError):  # beyond the positions that the model has
            return {}
        finally:
            self._fault = None

    @property
    def plain(self) -> bool:
        """Whether the model's only inputs are the decoder tokens."""
        media = any(self._media.among(number) for number in range(len(self._sequences)))
        return self.reads_tokens_alone and not (media or self._heads)

    def tokens(self, length: int | None = None) -> int | None:
        """Return the tokens of all sequences, or of their beginnings."""
        if not self.plain:
            return None
        return sum(len(sequence[:length]) for sequence in self._sequences)

    def losses(self) -> Losses | None:
        """Start a comparison of the variants' predictions for the longest sequence."""
        number = max(range(len(self._sequences)), key=lambda number: len(self._sequences[number]))
        if not self.plain or len(self._sequences[number]) < 2:
            return None
        return Losses(number, self._sequences[number])

    @contextmanager
    def scoring(self, losses: Losses | None, variant: str) -> Iterator[dict[str, Array]]:
        """Measure losses in the pass of a block that reads the text of them by itself."""
        measured: dict[str, Array] = {}
        self._scored = (losses.number, []) if losses else None
        try:
            yield measured
            if losses and self._scored:
                (logits,) = self._scored[1]
                measured |= losses.measure(variant, logits)
        finally:
            self._scored = None

    def predict(self, input_ids: Tensor) -> Tensor:
        """Return the logits of all tokens of texts."""
        tick(input_ids.numel())
        logits: Tensor = of_tokens(self._model)(input_ids=input_ids, use_cache=False).logits
        return logits

    def _beginning(self, number: int, length: int | None) -> Any:
        # transformers takes all tokens of an image or none.
        whole = self._media.among(number)
        return self._sequences[number] if whole else super()._beginning(number, length)

    def _call(self, numbers: list[int], inputs: Mapping[str, Tensor], **more: Any) -> Any:
        """Run the forward on tokens of sequences from their start."""
        self._shown = self._media.of(numbers, inputs["input_ids"], self._model.dtype)
        model = self._model if self._shown else of_tokens(self._model)
        output = model(**{**self._shown, **inputs}, **more)
        # Some models return the cache within the output of their language model.
        return getattr(output, "language_model_outputs", None) or output

    def _go_on(self, tokens: Tensor, before: Any, **cache: Any) -> Any:
        """Run the forward on the newest tokens alone."""
        media = self._media.behind(self._shown)
        return of_tokens(self._model)(input_ids=tokens, use_cache=True, **media, **cache)

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """Continue the first sequence greedily, with transformers' own cache if there is one."""
        whole, generated = torch.tensor([prompt]), list[int]()
        output = self._call([0], {"input_ids": whole}, use_cache=True)
        while True:
            token = output.logits[:, -1:].argmax(-1)
            generated.append(int(token))
            tick()
            if len(generated) == length:
                return generated
            whole = torch.cat([whole, token], 1)
            caches = {name: output.get(name) for name in ("past_key_values", "cache_params")}
            known = {name: cache for name, cache in caches.items() if cache is not None}
            if known:
                output = self._go_on(token, output, **known)
            else:
                output = self._call([0], {"input_ids": whole}, use_cache=True)
