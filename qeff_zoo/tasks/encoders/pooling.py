# SPDX-License-Identifier: Apache-2.0
"""Embedding of a text from its token states, for tracing: pooling, dense layers and optional normalization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.sentence_transformers.steps import AND, MODULES, SCORES, SENTENCE, TOKENS
from qeff_zoo.contract import Tracing
from qeff_zoo.export.transforms.attention import MAY_LACK_KEYS

from . import whole_texts

#: A module after the encoder: its `kind` and its settings, see `qeff_zoo.checkpoint.sentence_transformers.modules`.
Step: TypeAlias = Mapping[str, Any]
#: Input that has 1 for the tokens that a pooling reads, for models whose prompts are not pooled.
POOLED = "pooling_mask"


def pool(
    hidden: Tensor, attention_mask: Tensor, pooling: str, pooled: Tensor | None = None
) -> Tensor:
    """Reduce (batch, seq, hidden) to (batch, hidden) over the tokens.

    Args:
        hidden: Last hidden states.
        attention_mask: (batch, seq), 1 is a token.
        pooling: Methods of sentence-transformers, joined by "+"; or "none" for the states as they are.
        pooled: (batch, seq), 1 is a token that is pooled; None for all tokens.
    """
    if pooling == "none":
        return hidden
    vectors = [_pool(hidden, attention_mask, mode, pooled) for mode in pooling.split(AND)]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)


def _pool(hidden: Tensor, attention_mask: Tensor, mode: str, pooled: Tensor | None) -> Tensor:
    mask = attention_mask if pooled is None else pooled
    token = mask.unsqueeze(-1).to(hidden.dtype)
    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    if mode == "cls":
        return hidden[:, 0] if pooled is None else _state(hidden, mask.argmax(1))
    if mode == "lasttoken":
        return _state(hidden, (mask * positions).argmax(1))
    if mode == "max":
        return hidden.masked_fill(token == 0, torch.finfo(hidden.dtype).min).amax(1)
    if mode == "weightedmean":  # shares of the length, since sums of positions exceed float16
        token = token * (positions / hidden.shape[1]).to(hidden.dtype)[None, :, None]
    total = token.sum(1).clamp(min=1e-9)
    if mode == "mean_sqrt_len_tokens":
        return (hidden * token).sum(1) / total.sqrt()
    if mode in ("mean", "weightedmean"):
        return (hidden * token).sum(1) / total
    raise ValueError(f"Unknown pooling {mode!r}.")


def _state(hidden: Tensor, index: Tensor) -> Tensor:
    """Return the state at one place of each row, (batch, hidden)."""
    return hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


class Embed(nn.Module):
    """One call of an encoder.

    Args:
        model: Hugging Face encoder whose attention is `qeff_zoo`; has the modules with weights.
        steps: Modules after the encoder.
    """

    def __init__(self, model: Any, steps: Sequence[Step]) -> None:
        super().__init__()
        self.model, self.steps = model, steps

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, pooling_mask: Tensor | None = None
    ) -> Tensor:
        """Return one embedding per row; without pooling one per token."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        features = self._features(hidden, attention_mask, pooling_mask)
        return features[SENTENCE if SENTENCE in features else TOKENS]

    def _features(
        self, hidden: Tensor, attention_mask: Tensor, pooling_mask: Tensor | None
    ) -> dict[str, Tensor]:
        features: dict[str, Tensor] = {TOKENS: hidden}
        for step in self.steps:
            value = features[step["reads"]]
            if step["kind"] == "Pooling":
                pooled = None if step["include_prompt"] else pooling_mask
                vector = pool(value, attention_mask, AND.join(step["modes"]), pooled)
            else:
                vector = self._compute(step, value)
            features[step["writes"]] = vector
        return features

    def _compute(self, step: Step, value: Tensor) -> Tensor:
        if step["kind"] == "MultiVectorMask":  # a session's part
            return value
        if step["kind"] == "Normalize":
            return nn.functional.normalize(value, dim=-1)
        module = getattr(self.model, MODULES)[str(step["place"])]
        result: Tensor
        if step["kind"] == "LayerNorm":
            result = module.norm(value)
            return result
        result = getattr(nn, step["activation"])()(module.linear(value))
        if step["residual"]:
            result = result + (module.residual(value) if hasattr(module, "residual") else value)
        return result


class ScorePairs(Embed):
    """One call of an encoder whose modules score texts; see `Embed`."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the logits of each row."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **types}
        hidden = self.model(**inputs).last_hidden_state
        return self._features(hidden, attention_mask, None)[SCORES]


def scoring(model: Any, *, modules: Sequence[Step]) -> Tracing:
    """Describe how to trace `model` with modules that score texts, see `tracing`.

    Args:
        model: Model from `loader.load_meta`; gets the modules with weights as its `sentence_modules`.
        modules: All modules after the encoder.
    """
    _add_weights(model, modules)
    types = whole_texts.takes_token_types(model)
    return whole_texts.describe(model, ScorePairs(model, modules), "logits", token_types=types)


def _add_weights(model: Any, steps: Sequence[Step]) -> None:
    """Give a model the modules with weights, without values."""
    weighted = {str(step["place"]): _hollow(step) for step in steps if step["kind"] in _WEIGHTED}
    if weighted:
        setattr(model, MODULES, nn.ModuleDict(weighted))


def tracing(
    model: Any,
    *,
    pooling: str = "mean",
    normalize: bool = False,
    modules: Sequence[Step] = (),
    masks_expansion: bool = False,
) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`; gets the modules with weights as its `sentence_modules`.
        pooling: Pooling method, see `pool`.
        normalize: Whether to scale each embedding to length 1.
        modules: All modules after the encoder, for a model with others than these two.
        masks_expansion: Whether queries end with tokens that none attends to, beyond a window of all keys.
    """
    steps = modules or _plain(pooling, normalize)
    # transformers computes zeros for queries without a key, unless its own eager attention is chosen.
    if masks_expansion and getattr(model, "_supports_sdpa", False):
        for module in model.modules():
            if getattr(module, "sliding_window", None):
                setattr(module, MAY_LACK_KEYS, True)
    _add_weights(model, steps)
    excludes = any(not step.get("include_prompt", True) for step in steps)
    further = (POOLED,) if excludes else ()
    return whole_texts.describe(model, Embed(model, steps), "output", further=further)


def _plain(pooling: str, normalize: bool) -> list[Step]:
    """Return a pooling, and a normalization on request."""
    pool = {
        "kind": "Pooling",
        "modes": pooling.split(AND),
        "include_prompt": True,
        "reads": TOKENS,
        "writes": SENTENCE,
    }
    reads = TOKENS if pooling == "none" else SENTENCE
    scale = {"kind": "Normalize", "reads": reads, "writes": reads}
    return [*([pool] if pooling != "none" else []), *([scale] if normalize else [])]


def _linear(size: int, out: int, bias: bool) -> nn.Module:
    return nn.Linear(size, out, bias, device="meta")


#: Modules with weights by kind: a function from the step to the layers by name.
_WEIGHTED: Mapping[str, Callable[[Step], dict[str, nn.Module]]] = {
    "Dense": lambda step: {
        "linear": _linear(step["in_features"], step["out_features"], step["bias"]),
        **(
            {"residual": _linear(step["in_features"], step["out_features"], False)}
            if step["residual"] and step["in_features"] != step["out_features"]
            else {}
        ),
    },
    "LayerNorm": lambda step: {"norm": nn.LayerNorm(step["size"], device="meta")},
}


def _hollow(step: Step) -> nn.Module:
    """Return a module whose parameters take no memory, as in `loader.hollow`."""
    modules = nn.ModuleDict(_WEIGHTED[step["kind"]](step))
    for layer in modules.values():
        for name, parameter in list(layer.named_parameters()):
            hollow = nn.Parameter(torch.empty(()).expand(parameter.shape), requires_grad=False)
            setattr(layer, name, hollow)
    return modules
