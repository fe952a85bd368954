# SPDX-License-Identifier: Apache-2.0
"""Embeddings of texts and images by Qwen3-VL-Embedding, call by call, by the name of QEfficient's helper."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qeff_zoo.qefficient.generation.cloud_infer import QAICInferenceSession
from qeff_zoo.qefficient.generation.retrieval import format_model_input, tokenize_conversation
from qeff_zoo.runtime.decoding.decoder import EMBEDDING


class QEffQwen3VLEmbedder:
    """Embeddings of texts and images by Qwen3-VL-Embedding.

    Args:
        processor: transformers' processor of the checkpoint.
        model: `QEFFAutoModelForImageTextToText`, loaded with qaic_config={"export_embedding": True}.

    Example:
        >>> embedder = QEffQwen3VLEmbedder(processor, model)  # doctest: +SKIP
        >>> sizes = embedder.get_compile_specs(inputs, ctx_len=2048)  # doctest: +SKIP
        >>> embedder.process(
        ...     inputs, model.compile(**sizes), sizes["prefill_seq_len"]
        ... )  # doctest: +SKIP
    """

    def __init__(self, processor: Any, model: Any) -> None:
        self.processor, self.model = processor, model

    def get_compile_specs(
        self,
        inputs: Sequence[Mapping[str, Any]],
        ctx_len: int,
        prefill_seq_len: int | None = None,
    ) -> dict[str, int]:
        """Return arguments of `compile` that suffice for inputs.

        Args:
            inputs: `text`, `image` and `instruction` of each.
            ctx_len: Context length.
            prefill_seq_len: Tokens of a call; None for those of the longest input.
        """
        tokenized = [self._tokenized(one) for one in inputs]
        longest = max(encoding["input_ids"].shape[1] for encoding in tokenized)
        grids = [
            encoding["image_grid_thw"][:, 1:].amax(0)
            for encoding in tokenized
            if "image_grid_thw" in encoding
        ]
        patch = self.model.model.config.vision_config.patch_size
        sizes = torch.stack([*grids, torch.tensor([22, 34])]).amax(0) * patch
        height, width = sizes.tolist()
        return {
            "prefill_seq_len": prefill_seq_len or longest,
            "ctx_len": ctx_len,
            "img_size": max(height, width),
            "height": height,
            "width": width,
        }

    def process(
        self,
        inputs: Sequence[Mapping[str, Any]],
        qpc_paths: Mapping[str, str],
        prefill_seq_len: int,
        normalize: bool = True,
    ) -> torch.Tensor:
        """Return the embeddings of inputs, (inputs, hidden).

        Args:
            inputs: `text`, `image` and `instruction` of each.
            qpc_paths: Result of `compile`.
            prefill_seq_len: Tokens of a call.
            normalize: Whether to scale each embedding to length 1.
        """
        vision, language = (
            QAICInferenceSession(qpc_paths[f"{name}_qpc_path"]) for name in ("vision", "lang")
        )
        names = language.input_names + language.output_names
        language.skip_buffers([name for name in names if name.startswith("past_")])
        rows = []
        for one in inputs:
            given = self._tokenized(one)
            features = {}
            if "pixel_values" in given:
                named = ("pixel_values", "image_grid_thw")
                features = vision.run({name: given[name].numpy() for name in named})
            given = self.model.model.prepare_inputs_for_generation(given, prefill_seq_len)
            rows.append(self._embedding(language, given, features, prefill_seq_len))
        embeddings = torch.from_numpy(np.stack(rows))
        return torch.nn.functional.normalize(embeddings, dim=-1) if normalize else embeddings

    def _tokenized(self, given: Mapping[str, Any]) -> Any:
        names = ("text", "image", "video", "instruction")
        chat = format_model_input(**{name: given.get(name) for name in names})
        return tokenize_conversation(self.processor, chat)

    @staticmethod
    def _embedding(
        language: QAICInferenceSession, given: Any, features: Mapping[str, Any], width: int
    ) -> Any:
        """Return the embedding of a prompt, which is given in calls of a width."""
        tokens, positions = (given[name].numpy() for name in ("input_ids", "position_ids"))
        tokens = np.pad(tokens, ((0, 0), (0, positions.shape[-1] - tokens.shape[1])))
        state = {"image_idx": np.zeros((1, 1), np.int64), **features}
        for at in range(0, tokens.shape[1], width):
            part = slice(at, at + width)
            call = {"input_ids": tokens[:, part], "position_ids": positions[..., part]}
            outputs = language.run({**state, **call})
            state["image_idx"] = outputs["image_idx_output"]
        return outputs[EMBEDDING][0, 0]
