# SPDX-License-Identifier: Apache-2.0
"""GPTQModel's GPTQ on an encoder, which GPTQModel itself has no definition of.

Its class `GPTQ` rounds one linear layer, given its inputs. It is called here as GPTQModel calls it of a Llama: layer
by layer, those of one input together, each given what the rounded ones before it make of the texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

_ORDER = (
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    ("attention.output.dense",),
    ("intermediate.dense",),
    ("output.dense",),
)


def quantized(
    model: nn.Module, texts: Sequence[Mapping[str, Tensor]], choices: Mapping[str, Any]
) -> tuple[float, dict[str, Tensor]]:
    """Round the linear layers of a BERT.

    Args:
        model: With its weights of floats, which are changed.
        texts: To calibrate on.
        choices: Of GPTQModel's `QuantizeConfig`.

    Returns:
        Bits that are stored of each weight that was rounded, and the model's weights, dequantized.
    """
    from gptqmodel.quantization import GPTQ, QuantizeConfig

    for layer in model.encoder.layer:  # type: ignore[union-attr]
        for paths in _ORDER:
            modules = [layer.get_submodule(path) for path in paths]
            makers = []
            for module in modules:
                maker = GPTQ(module, QuantizeConfig(device="cpu", **choices))
                maker.quantizer.configure(perchannel=True)
                makers.append(maker)

            def note(
                _: nn.Module, given: tuple[Tensor], made: Tensor, makers: list[Any] = makers
            ) -> None:
                for maker in makers:
                    maker.add_batch(given[0].data, made.data)

            hook = modules[0].register_forward_hook(note)
            for text in texts:
                model(**text)
            hook.remove()
            for module, maker in zip(modules, makers, strict=True):
                rounded, scales, *_ = maker.quantize()
                module.weight.data = _stored(rounded, scales)
                maker.free()
    # A scale in float16 and a zero point for each group.
    bits = choices["bits"] * (1 + 1 / choices["group_size"]) + 16 / choices["group_size"]
    return bits, {name: value.clone() for name, value in model.state_dict().items()}


def _stored(rounded: Tensor, scales: Tensor) -> Tensor:
    """Return what scales of float16 leave of a matrix: each group is a multiple of its scale."""
    groups = rounded.float().reshape(len(rounded), scales.shape[1], -1)
    wide = scales.float()[..., None]
    integers = (groups / wide).round()
    return (integers * wide.half().float()).reshape(rounded.shape)
