# SPDX-License-Identifier: Apache-2.0
"""Static embeddings: a vector for each token, without an encoder (StaticEmbedding of sentence-transformers, model2vec).

A text has the mean of the vectors of its tokens, as any encoder with that pooling.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class StaticEmbeddingConfig(PreTrainedConfig):
    """Sizes of the table of vectors.

    Args:
        vocab_size: Number of tokens.
        hidden_size: Number of values of a vector.
        **options: Options of every config.
    """

    model_type = "static_embedding"

    def __init__(self, vocab_size: int = 32, hidden_size: int = 8, **options: Any) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**options)


class StaticEmbeddingModel(PreTrainedModel):
    """A table of vectors.

    Args:
        config: Config of the model.
    """

    config: StaticEmbeddingConfig
    config_class = StaticEmbeddingConfig
    base_model_prefix = "static"

    def __init__(self, config: StaticEmbeddingConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the table."""
        return self.embedding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """Return the vectors of tokens."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


def register() -> None:
    """Register config and model with transformers."""
    AutoConfig.register("static_embedding", StaticEmbeddingConfig, exist_ok=True)
    AutoModel.register(StaticEmbeddingConfig, StaticEmbeddingModel, exist_ok=True)
