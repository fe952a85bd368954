# SPDX-License-Identifier: Apache-2.0
"""Torch modules of draft layers for the exporter: transformers' own layer, joined as the papers define.

Such a layer reads for each token the hidden state of the one before, and predicts the next; its output for a draft
token replaces the hidden state that the model has not computed.
"""

from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo import registry
from qeff_zoo.checkpoint.draft_heads.dflash import CONTEXT_ID, MASK_ID
from qeff_zoo.export.loader import load_meta
from qeff_zoo.export.transforms.modules import give


class Eagle3(nn.Module):
    """A layer of Llama whose attention reads embeddings and hidden states side by side.

    Args:
        settings: Description, see `qeff_zoo.checkpoint.draft_heads.eagle3`.
        model: Target model.
    """

    def __init__(self, settings: Mapping[str, Any], model: Any) -> None:
        super().__init__()
        config = settings["config"]
        self.inner: Any = load_meta(config, registry.recipe_for(config))
        layer, size = self.inner.model.layers[0], config["hidden_size"]
        for name in ("q_proj", "k_proj", "v_proj"):
            before = getattr(layer.self_attn, name)
            wide = nn.Linear(2 * size, before.out_features, bias=before.bias is not None)
            setattr(layer.self_attn, name, wide)
        layer.hidden_norm = deepcopy(layer.input_layernorm)
        layer.normed_first = bool(settings.get("norm_before_residual"))
        give(layer, _side_by_side)
        self._vocab_size = settings["vocab_size"]
        if "d2t" in settings["own"]:
            self.d2t = nn.Parameter(torch.zeros(config["vocab_size"]), requires_grad=False)
        if "embed_tokens" in settings["own"]:
            self.embed_tokens = nn.Embedding(settings["vocab_size"], size)

    @property
    def head(self) -> Any:
        """Output head of the layer."""
        return self.inner.lm_head

    def forward(self, embed: Any, input_ids: Tensor, hidden_states: Tensor, **cache: Any) -> Any:
        """Return logits (batch, seq, vocab), and replacements of hidden states, (batch, seq, size).

        Args:
            embed: Token embedding of the model.
            input_ids: (batch, seq).
            hidden_states: Hidden states of the tokens before, (batch, seq, size).
            **cache: Cache and positions for transformers' models.
        """
        embeds = getattr(self, "embed_tokens", embed)(input_ids)
        handed: list[Tensor] = []
        watch = self.inner.model.norm.register_forward_pre_hook(
            lambda _, args: handed.append(args[0])
        )
        try:
            both = torch.cat([embeds, hidden_states], -1)
            output = self.inner(inputs_embeds=both, use_cache=True, **cache)
        finally:
            watch.remove()
        return SimpleNamespace(logits=self._widened(output.logits), handed=handed[0])

    def _widened(self, logits: Tensor) -> Tensor:
        """Map logits of a reduced vocabulary to the model's; missing ones are the lowest of all."""
        if not hasattr(self, "d2t"):
            return logits
        tokens = torch.arange(logits.shape[-1]) + self.d2t.long()
        least = logits.amin(-1, keepdim=True).expand(-1, -1, self._vocab_size)
        return least.scatter(-1, tokens.expand(logits.shape), logits)


def _side_by_side(self: Any, hidden_states: Tensor, **given: Any) -> Tensor:
    """Compute a layer of Llama (its class's `forward`) whose attention reads two states of each token."""
    embeds, hidden = hidden_states.chunk(2, -1)
    normed = self.hidden_norm(hidden)
    joined = torch.cat([self.input_layernorm(embeds), normed], -1)
    attended, _ = self.self_attn(hidden_states=joined, **given)
    hidden = (normed if self.normed_first else hidden) + attended
    result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
    return result


class DFlash(nn.Module):
    """Layers of Qwen3 that draft a block of tokens, which attend to each other and to the model's hidden states.

    Args:
        description: Description, see `qeff_zoo.checkpoint.draft_heads.dflash`.
        model: Target model.
    """

    def __init__(self, description: Mapping[str, Any], model: Any) -> None:
        super().__init__()
        config = description["config"]
        self.inner: Any = load_meta(config, registry.recipe_for(config))
        self.hidden_norm = deepcopy(self.inner.model.norm)
        for layer in self.inner.model.layers:
            give(layer, _behind_context)
        #: Number of tokens that a block drafts.
        self.count = description["block_size"] - 1
        self._mask = description["mask_token_id"]
        self._head = [model.get_output_embeddings()]  # not a submodule of this one

    @property
    def head(self) -> Any:
        """Output head of the model."""
        return self._head[0]

    def forward(self, embed: Any, input_ids: Tensor, hidden_states: Tensor, **cache: Any) -> Any:
        """Return logits (batch, needed, vocab).

        Args:
            embed: Token embedding of the model.
            input_ids: Tokens, `CONTEXT_ID` or `MASK_ID`, (batch, seq).
            hidden_states: Hidden states of the model where the input id is `CONTEXT_ID`, (batch, seq, size).
            **cache: Cache and positions for transformers' models.
        """
        cache["past_key_values"].bidirectional = True
        tokens = torch.where(input_ids == MASK_ID, self._mask, input_ids).clamp(min=0)
        output = self.inner.model(
            inputs_embeds=embed(tokens),
            use_cache=True,
            context=self.hidden_norm(hidden_states),
            is_context=(input_ids == CONTEXT_ID)[:, :, None],
            **cache,
        )
        return SimpleNamespace(logits=self.head(output.last_hidden_state))


def _behind_context(
    self: Any, hidden_states: Tensor, *, context: Tensor, is_context: Tensor, **given: Any
) -> Tensor:
    """Compute a layer of Qwen3 (its class's `forward`) whose keys and values are, in some columns, of a context."""
    read = torch.where(is_context, context, self.input_layernorm(hidden_states))
    attended, _ = self.self_attn(hidden_states=read, **given)
    hidden = hidden_states + attended
    result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
    return result


class Mtp(nn.Module):
    """A layer of the model's own kind, which reads tokens and hidden states joined by a matrix.

    Args:
        settings: Description, see `qeff_zoo.checkpoint.draft_heads.mtp`.
        model: Target model.
    """

    def __init__(self, settings: Mapping[str, Any], model: Any) -> None:
        super().__init__()
        config, size = settings["config"], settings["hidden_size"]
        self.inner: Any = load_meta(config, registry.recipe_for(config))
        if "without" in settings:
            _WITHOUT[settings["without"]](self.inner)
        norm = last_norm(self.inner)
        self.token_norm, self.hidden_norm = deepcopy(norm), deepcopy(norm)
        self.join = nn.Linear(2 * size, size, bias=False)
        if "embed" in settings["own"]:
            self.embed_tokens = nn.Embedding(settings["vocab_size"], size)
        self._normed = bool(settings.get("normed"))
        self._hidden_first = bool(settings.get("hidden_first"))
        # Not a submodule of this one if it is the model's.
        self._head = [(self.inner if "head" in settings["own"] else model).get_output_embeddings()]

    @property
    def head(self) -> Any:
        """Output head of the layer."""
        return self._head[0]

    def forward(self, embed: Any, input_ids: Tensor, hidden_states: Tensor, **cache: Any) -> Any:
        """Return logits and replacements of hidden states, see `Eagle3`."""
        embeds = getattr(self, "embed_tokens", embed)(input_ids)
        pair = [self.token_norm(embeds), self.hidden_norm(hidden_states)]
        joined = torch.cat(pair[::-1] if self._hidden_first else pair, -1)
        decoder, handed = self.inner.get_decoder(), list[Tensor]()
        norm = last_norm(self.inner)
        watch = norm.register_forward_pre_hook(lambda _, args: handed.append(args[0]))
        try:
            output = decoder(inputs_embeds=self.join(joined), use_cache=True, **cache)
        finally:
            watch.remove()
        state = output.last_hidden_state
        return SimpleNamespace(logits=self.head(state), handed=state if self._normed else handed[0])


def last_norm(model: Any) -> nn.Module:
    """Return the norm before a model's logits."""
    decoder = model.get_decoder()
    norm: nn.Module = getattr(decoder, "norm", None) or decoder.norm_f
    return norm


class _Stream(nn.Module):
    """Reader of several streams of hidden states, for a single one.

    Args:
        writes: Whether to return the weights of updates as well.
    """

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self._writes = writes

    def forward(self, streams: Tensor) -> Any:
        """Return the stream, of (batch, seq, 1, size); a layer adds its output to it once."""
        (stream,) = streams.unbind(2)
        return (streams.new_ones(streams.shape[:3]), stream) if self._writes else stream


def _drop_streams(model: Any) -> None:
    """Reduce a Hunyuan 4 to one stream of hidden states."""
    model.model.hc_head = _Stream(writes=False)
    for layer in model.model.layers:
        layer.attn_hc, layer.ffn_hc = _Stream(writes=True), _Stream(writes=True)


def _drop_half(model: Any) -> None:
    """Reduce layers of LongCat-Flash to one attention and one MLP, without experts."""
    for layer in model.model.layers:
        del layer.mlp
        for name in ("self_attn", "mlps", "input_layernorm", "post_attention_layernorm"):
            setattr(layer, name, getattr(layer, name)[:1])
        give(layer, _half)


def _half(self: Any, hidden_states: Tensor, **given: Any) -> Tensor:
    """Compute the first half of a layer of LongCat-Flash (its class's `forward`), without the shortcut."""
    attended, _ = self.self_attn[0](hidden_states=self.input_layernorm[0](hidden_states), **given)
    hidden = hidden_states + attended
    result: Tensor = hidden + self.mlps[0](self.post_attention_layernorm[0](hidden))
    return result


_WITHOUT: Mapping[str, Any] = MappingProxyType({"streams": _drop_streams, "half": _drop_half})
_LAYERS: Mapping[str, Any] = MappingProxyType({"dflash": DFlash, "eagle3": Eagle3, "mtp": Mtp})


def build(settings: Mapping[str, Any], model: Any) -> Any:
    """Build the module of a draft layer, without its values."""
    return _LAYERS[settings["kind"]](settings, model)
