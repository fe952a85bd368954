# SPDX-License-Identifier: Apache-2.0
"""What is to be quantized: the matrices of a model, and how many bits they may take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.floats import FLOATS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.export.streaming import Streamed
from qeff_zoo.export.unstacking import Place
from qeff_zoo.quantizer.budget import cheapest, distance
from qeff_zoo.quantizer.grids import Scheme
from qeff_zoo.quantizer.options import MEASURED, QuantizeOptions
from qeff_zoo.quantizer.writing import scale_dtype, torch_dtype

from . import texts


@dataclass
class Subject:
    """A model, the texts, and the options.

    Args:
        checkpoint: Float checkpoint.
        streamed: Model with streamed layers.
        read: The texts.
        options: Options.
    """

    checkpoint: Checkpoint
    streamed: Streamed
    read: texts.Texts
    options: QuantizeOptions

    def __post_init__(self) -> None:
        model, expressions = self.streamed.model, self.streamed.expressions
        modules = dict(model.named_modules())
        names = {id(module): name for name, module in modules.items()}
        self.inputs = self.read.inputs()
        self.embedding = names[id(model.get_input_embeddings())]
        head = model.get_output_embeddings()
        self.head = None if head is None else names[id(head)]
        self.tied = self.head is not None and (
            expressions.get(f"{self.head}.weight") == expressions[f"{self.embedding}.weight"]
        )
        inside = f"{self.streamed.path}."
        linear = {
            name
            for name, module in modules.items()
            if type(module) is nn.Linear and name.startswith(inside)
        }
        if self.options.embeddings:
            linear |= {self.embedding} | ({self.head} if self.head and not self.tied else set())
        #: Modules whose matrix can be stored in integers, and where the checkpoint has that.
        self.sources: dict[str, Place] = {}
        for name in modules:
            source = self._place(name) if name in linear else None
            if source is not None and self._fits(source):
                self.sources[name] = source
        self.names = list(modules)
        text_config = model.config.get_text_config()
        heads = getattr(text_config, "num_attention_heads", 1)
        self.head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
        self.measured = self._measured()

    def _place(self, name: str) -> Place | None:
        """Return where the checkpoint has a module's matrix; None where it has it in another form."""
        if name in self.streamed.unstacked:
            return self.streamed.unstacked[name]
        source = self.streamed.expressions.get(f"{name}.weight")
        if not isinstance(source, str) or not source.endswith(".weight"):
            return None
        shape = self.checkpoint.stored[source].shape
        return Place(tensor=source, rows=shape[0], columns=shape[1]) if len(shape) == 2 else None

    def _fits(self, source: Place) -> bool:
        info = self.checkpoint.stored[source.tensor]
        return source.columns % self.options.group_size == 0 and info.dtype in FLOATS

    def _measured(self) -> list[int]:
        """Return the numbers of the first texts, whose answers are compared."""
        tokens, numbers = 0, list[int]()
        for number, sequence in enumerate(self.read.sequences):
            if not numbers or tokens + len(sequence) <= MEASURED:
                numbers.append(number)
                tokens += len(sequence)
        return numbers

    def schemes_for(self, names: Sequence[str]) -> list[Scheme]:
        """Return the schemes that matrices may have; 8 bits need few scales."""
        size = self.options.group_size
        if self.options.budget is None:
            return [Scheme(self.options.bits, size, self.options.zero_points)]
        columns = [self.sources[name].columns for name in names]
        wide = (one for one in (128, 64, 32) if one >= size and not any(n % one for n in columns))
        return [Scheme(4, size, self.options.zero_points), Scheme(8, next(wide, size))]

    def check(self) -> None:
        """Refuse what cannot work, before anything is computed."""
        if not self.sources:
            raise UnsupportedModelError(
                f"{self.checkpoint.name!r} has no matrix in its layers that can be quantized in groups of "
                f"{self.options.group_size}. Expected linear layers whose columns that divides. Change --group-size, "
                "or build with `--weights int4` or `int8`."
            )
        if self.options.budget is not None:
            least = self.bits({name: cheapest(self.schemes_for([name])) for name in self.sources})
            if least > self.options.budget:
                more = (
                    "" if self.options.embeddings else ", or quantize embeddings too (--embeddings)"
                )
                raise PlanError(
                    [
                        f"{self.checkpoint.name!r} takes {least:.3f} bits per weight in the fewest bits, more than "
                        f"{self.options.budget:g}. Expected a budget of at least that; matrices that stay floats "
                        f"count. Raise --budget, or --group-size{more}."
                    ]
                )

    def matrices(self) -> dict[str, int]:
        """Return the number of weights of every matrix of the checkpoint, and of every stack of them."""
        stacks = {place.tensor for place in self.streamed.unstacked.values()}
        return {
            name: math.prod(info.shape)
            for name, info in self.checkpoint.stored.items()
            if (len(info.shape) == 2 or name in stacks) and info.dtype in FLOATS
        }

    def bits(self, schemes: Mapping[str, Scheme]) -> float:
        """Return bits per weight of all matrices."""
        return self.total(schemes) / sum(self.matrices().values())

    def total(self, schemes: Mapping[str, Scheme]) -> float:
        """Return bits of all matrices."""
        by_source = {self.sources[name].tensor: scheme for name, scheme in schemes.items()}
        return sum(
            by_source[name].bits_per_weight * weights
            if name in by_source
            else 8 * self.checkpoint.stored[name].nbytes
            for name, weights in self.matrices().items()
        )

    def called(self, name: str) -> str:
        """Return the name of a linear layer; of an expert's, which has none in the model, that in the checkpoint."""
        source = self.streamed.unstacked.get(name)
        return name if source is None else source.path

    def weights(self, name: str) -> int:
        """Return the number of a module's weights."""
        return self.sources[name].rows * self.sources[name].columns

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a module's scales."""
        return torch_dtype(scale_dtype(self.checkpoint.stored[self.sources[name].tensor]))

    def distance(self, expected: Sequence[Tensor], hidden: Sequence[Tensor]) -> float:
        """Compare answers to the measured texts; all but the layers is loaded.

        Args:
            expected: Output of the float model.
            hidden: Output of the last layer.
        """
        streamed, total, tokens = self.streamed, 0.0, 0
        for one, text, states in zip(expected, self.measured, hidden, strict=True):
            answer = streamed.finish(self.inputs[text], states)
            total += len(one) * distance(one, answer, is_decoder=streamed.is_decoder)
            tokens += len(one)
        return total / tokens
