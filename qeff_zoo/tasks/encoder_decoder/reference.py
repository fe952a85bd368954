# SPDX-License-Identifier: Apache-2.0
"""Reference for encoder-decoders: logits of tokens from transformers' models.

Only the reference process imports this.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from qeff_zoo.tasks.text_generation.reference import DecoderReference
from qeff_zoo.validation.reference.media import processor_of
from qeff_zoo.validation.reference.runs import padded
from qeff_zoo.validation.trial.sample_images import NUMBERS, draw

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Text2TextReference(DecoderReference):
    """Outputs for texts: logits of the decoder's tokens.

    Args:
        model: Hugging Face model.
        request: Request with `sequences`, `positions` and `sources`, the text of each sequence.
        arrays: Unused.
    """

    reads_tokens_alone = False

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(model, request, {})
        self._sources: list[list[int]] = request["sources"]

    def _call(self, numbers: list[int], inputs: Mapping[str, Tensor], **more: Any) -> Any:
        if not self._model.config.is_encoder_decoder:  # their caches lack the encoder states
            more |= {"use_cache": False}
        name = "decoder_input_ids" if self._model.config.is_encoder_decoder else "input_ids"
        return self._model(**self._given(numbers), **{name: inputs["input_ids"]}, **more)

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        padding = int(self._model.config.pad_token_id or 0)
        return padded([self._sources[number] for number in numbers], padding)

    def _go_on(self, tokens: Tensor, before: Any, **cache: Any) -> Any:
        read: Any = BaseModelOutput(last_hidden_state=before.encoder_last_hidden_state)
        read.attention_mask = None  # for unpadded inputs of a model that reads it here
        return self._model(encoder_outputs=read, decoder_input_ids=tokens, use_cache=True, **cache)


class ImageToTextReference(Text2TextReference):
    """Outputs for images: logits of the decoder's tokens; transformers' own processor makes arrays of the images.

    Args:
        model: Hugging Face model.
        request: Request with `checkpoint`, `sequences`, `positions` and `sources`, as in `sample_images.draw`, each
            followed by the tokens of the encoder prompt, if there is one.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(model, request, arrays)
        self._process = processor_of(request)

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        sources = [self._sources[number] for number in numbers]
        images = [Image.fromarray(draw(*source[:NUMBERS])) for source in sources]
        pixels = self._process(images=images, return_tensors="pt")["pixel_values"]
        prompts = [source[NUMBERS:] for source in sources]
        padding = int(self._model.config.get_text_config().pad_token_id or 0)
        read = padded(prompts, padding) if all(prompts) else {}
        return {"pixel_values": pixels.to(self._model.dtype), **read}
