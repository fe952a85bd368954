# SPDX-License-Identifier: Apache-2.0
"""Draft layers as their papers define them: the reference of a package's program `draft`.

Only the reference process imports this. What the package computes token by token on a cache is computed here for all
positions of a text at once: of each, what follows its own token and the one after it, and what follows if the layer
goes on from its own state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from qeff_zoo.validation.trial.cases import LAYER_ANSWERS


class DraftLayerLogits:
    """Logits of a layer that drafts; a context in which the model's forward runs, whose states it reads.

    Args:
        model: Hugging Face's, in float32.
        watched: Modules whose inputs are the states that it reads.
    """

    def __init__(self, model: Any, watched: Sequence[nn.Module]) -> None:
        self.model, self._watched = model, watched
        self._read: list[Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> "DraftLayerLogits":
        """Begin to read the model's states."""

        def keep(_: nn.Module, args: tuple[Tensor, ...], given: Mapping[str, Tensor]) -> None:
            self._read.append(args[0] if args else given["hidden_states"])

        self._read = []
        self._hooks = [
            one.register_forward_pre_hook(keep, with_kwargs=True) for one in self._watched
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Read no more."""
        for hook in self._hooks:
            hook.remove()

    def logits(
        self,
        input_ids: Tensor,
        rows: Sequence[int],
        columns: Sequence[int],
        after: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return (positions, tokens, vocab) of some positions, given the next tokens; fewer repeat the last."""
        read = torch.cat(self._read, -1)  # (rows, positions, …)
        following = torch.cat([input_ids[:, 1:], input_ids[:, :1]], 1)
        following[rows, columns] = torch.tensor(
            [one[0] for one in after]
        )  # behind the end of a text come the other arguments
        every = [self.of_row(read[row], following[row]) for row in range(len(read))]
        logits, most = [], LAYER_ANSWERS
        for row, column, tokens in zip(rows, columns, after, strict=True):
            state, cache = every[row]
            answers = [self.head(state[column])]
            states, keys = state[column], [one[: column + 1] for one in cache]
            for step, token in enumerate(tokens[1:], 1):
                next_ids = torch.tensor([token])
                states, own = self.layer(next_ids, states[None], column + step, keys)
                states, keys = states[0], own
                answers.append(self.head(states))
            logits.append(torch.stack(answers + answers[-1:] * (most - len(answers))))
        return torch.stack(logits)

    def of_row(self, read: Tensor, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the layer on a text; return its states (positions, size), and the keys and values of its attention."""
        return self.layer(tokens, self.joined(read), 0, None)

    def joined(self, read: Tensor) -> Tensor:
        """Return what the layer reads of the model's states."""
        raise NotImplementedError

    def layer(
        self, tokens: Tensor, states: Tensor, start: int, cache: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run tokens with states of those before them behind what a cache has; return states and the cache."""
        raise NotImplementedError

    def head(self, state: Tensor) -> Tensor:
        """Return the logits of a state, (size,) -> (vocab,)."""
        raise NotImplementedError


def put(
    model: Any, name: str, tensor: Tensor, kind: Callable[[int, int], nn.Module] = nn.Linear
) -> Any:
    """Make a tensor the parameter of that name of what drafts, of a module of its own, and return the module."""
    *path, last = name.split(".")
    owner = model.speculator
    for part in path:
        if part not in owner._modules:
            module = kind(1, 1) if part == path[-1] else nn.Module()
            for unset in list(module._parameters):
                setattr(module, unset, None)
            owner.add_module(part, module)
        owner = owner._modules[part]
    setattr(owner, last, nn.Parameter(tensor, requires_grad=False))
    return owner


def layers_of(model: Any) -> nn.ModuleList:
    """Return the layers of a model's decoder."""
    count = model.config.get_text_config().num_hidden_layers
    every = (
        module for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList)
    )
    return next(one for one in every if len(one) == count)


def normalize(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return values of root mean square 1, times a weight."""
    return values / torch.sqrt((values * values).mean(-1, keepdim=True) + epsilon) * weight


def rotate(values: Tensor) -> Tensor:
    """Return the halves of the last axis swapped, the second one negated."""
    one, other = values.chunk(2, -1)
    return torch.cat([-other, one], -1)


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Let the last positions see all before them: (positions, heads, size); keys have more of them, and fewer heads."""
    times, length = query.shape[1] // key.shape[1], len(key)
    key, value = (
        projection.repeat_interleave(times, 1).transpose(0, 1) for projection in (key, value)
    )
    scores = query.transpose(0, 1) @ key.mT / math.sqrt(query.shape[-1])
    index = torch.arange(length)
    hidden = index[None] > index[length - len(query) :, None]
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ value).transpose(0, 1).flatten(1)


class Eagle3(DraftLayerLogits):
    """EAGLE-3 (arXiv 2503.01840): a layer of Llama that reads tokens beside three states of the model.

    Args:
        model: Hugging Face's.
        config: Config of the layer.
        stored: Tensors of the draft head.
    """

    def __init__(self, model: Any, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
        layers = layers_of(model)
        count, inside = len(layers), config.get("eagle_config") or {}
        inputs = config.get("eagle_aux_hidden_state_layer_ids")
        out = [one + 1 for one in inside.get("eagle_aux_hidden_state_layer_ids") or ()]
        super().__init__(
            model, [layers[one] for one in inputs or out or (2, count // 2, count - 3)]
        )
        self._config = config = {**config, **config.get("transformer_layer_config", {})}
        self._size = (
            config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        )
        sizes = {name: config[name] for name in ROTATED if config.get(name) is not None}
        self._rotary = LlamaRotaryEmbedding(LlamaConfig(**sizes, head_dim=self._size))
        self._parts: dict[str, Any] = {}
        for name, tensor in stored.items():
            plain = name.removeprefix("model.").replace("midlayer.", "layers.0.")
            path = f"inner.model.{plain}" if plain.startswith(("layers.", "norm.")) else plain
            path = f"inner.{plain}" if plain.startswith("lm_head.") else path
            if plain not in ("d2t", "t2d"):
                part = plain.rpartition(".")[0].removeprefix("layers.0.")
                kind = nn.Embedding if part == "embed_tokens" else nn.Linear
                self._parts[part] = put(model, path, tensor, kind)
        self._offsets = stored.get("d2t")

    def joined(self, read: Tensor) -> Tensor:
        """Return the three states, joined by a matrix."""
        joined: Tensor = self._parts["fc"](read)
        return joined

    def layer(
        self, tokens: Tensor, states: Tensor, start: int, cache: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the layer of Llama."""
        embed = self._parts.get("embed_tokens") or self.model.get_input_embeddings()
        normed = self._normed(states, "hidden_norm")
        both = torch.cat([self._normed(embed(tokens), "input_layernorm"), normed], -1)
        query, key, value = (
            self._parts[f"self_attn.{letter}_proj"](both).unflatten(-1, (-1, self._size))
            for letter in "qkv"
        )
        positions = torch.arange(start, start + len(tokens))[None]
        cos, sin = (one[0, :, None].to(both.dtype) for one in self._rotary(both, positions))
        query, key = (one * cos + rotate(one) * sin for one in (query, key))
        if cache:
            key, value = (torch.cat(pair) for pair in zip(cache, (key, value), strict=True))
        attended = self._parts["self_attn.o_proj"](_attended(query, key, value))
        states = (normed if self._config.get("norm_before_residual") else states) + attended
        inner = self._normed(states, "post_attention_layernorm")
        gate, up, down = (self._parts[f"mlp.{one}_proj"] for one in ("gate", "up", "down"))
        return states + down(functional.silu(gate(inner)) * up(inner)), [key, value]

    def _normed(self, values: Tensor, name: str) -> Tensor:
        weight: Tensor = self._parts[name].weight
        return normalize(values, weight, self._config["rms_norm_eps"])

    def head(self, state: Tensor) -> Tensor:
        """Return logits; tokens that it does not know have the least of them."""
        logits: Tensor = self._parts["lm_head"](self._normed(state, "norm"))
        if self._offsets is None:
            return logits
        every = logits.min().repeat(self._config["vocab_size"])
        every[torch.arange(len(logits)) + self._offsets.long()] = logits
        return every


class Mtp(DraftLayerLogits):
    """MTP (arXiv 2412.19437): a layer of the model's own class, behind a matrix that joins tokens and hidden states.

    Args:
        model: Hugging Face's.
        entry: Description of the layer, from `Speculator.located`.
        stored: Tensors of the draft layers, in float32.
    """

    def __init__(self, model: Any, entry: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
        super().__init__(model, [model.get_output_embeddings()])
        settings = entry["settings"]
        multimodal = "text_config" in settings["config"]
        kind = type(model.config if multimodal else model.config.get_text_config())
        config = kind.from_dict(kind._decode_special_floats(settings["config"]))
        auto: Any = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        classes = auto._model_mapping
        self._inner, loaded = classes[kind].from_pretrained(
            None,
            config=config,
            state_dict={
                name: stored[tensor] for name, tensor in entry["layer"].items() if tensor in stored
            },
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        unread = ("lm_head.weight", "embed_tokens.weight", "embeddings.weight")
        without = _WITHOUT.get(settings.get("without"), {})
        missing = {key for key in loaded["missing_keys"] if not key.endswith(unread)}
        missing = {one for one in missing if not any(part in one for part in without)}
        missing = {one for one in missing if not multimodal or ".language_model." in one}
        if missing := missing or {*loaded["unexpected_keys"]}:
            raise ValueError(f"The layer's tensors are others than {sorted(missing)[:5]}.")
        if hasattr(self._inner, "set_experts_implementation"):
            self._inner.set_experts_implementation("eager")
        for part, value in without.items():
            for name, parameter in self._inner.named_parameters():
                if part in name:
                    nn.init.constant_(parameter, value)
        model.speculator.inner = self._inner.eval()
        decoder = self._inner.get_decoder()
        self._norm = getattr(decoder, "norm", None) or decoder.norm_f
        kinds = {"embed_tokens": nn.Embedding, "join": nn.Linear}
        self._front: dict[str, Any] = {}
        for name, tensor in entry["sources"].items():
            part = name.partition(".")[0]
            norm = deepcopy(self._norm)
            module = self._front[part] = kinds[part](1, 1) if part in kinds else norm
            module.weight = nn.Parameter(stored[tensor], requires_grad=False)
            if part == "join":
                module.bias = None
            model.speculator.add_module(part, module)
        self._own_head, self._normed = "head" in settings["own"], bool(settings.get("normed"))
        self._hidden_first = bool(settings.get("hidden_first"))

    def joined(self, read: Tensor) -> Tensor:
        """Return what logits are made of, as it is."""
        return read

    def layer(
        self, tokens: Tensor, states: Tensor, start: int, cache: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the model of one layer on all that it has read; the cache is that."""
        embed = self._front.get("embed_tokens") or self.model.get_input_embeddings()
        pair = self._front["token_norm"](embed(tokens)), self._front["hidden_norm"](states)
        read = self._front["join"](torch.cat(pair[::-1] if self._hidden_first else pair, -1))
        read = torch.cat([*(cache or ()), read])
        decoder, before = self._inner.get_decoder(), list[Tensor]()
        watch = self._norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        after = decoder(inputs_embeds=read[None], use_cache=False).last_hidden_state
        watch.remove()
        return (after if self._normed else before[0])[0, start:], [read]

    def head(self, state: Tensor) -> Tensor:
        """Return logits, of a state of the one or the other side of the last norm."""
        state = state if self._normed else self._norm(state[None])[0]
        head = (self._inner if self._own_head else self.model).get_output_embeddings()
        logits: Tensor = head(state)
        return logits


#: Of what a layer is without, parts of names, and values of parameters with which transformers' class adds nothing by
#: them: what a stream is read and written with is 1, and half a layer hands on what it is given.
_WITHOUT: Mapping[Any, Mapping[str, float]] = MappingProxyType(
    {
        "streams": {
            **{f"hc{dot}{name}": 0.0 for dot in "._" for name in ("fn", "scale")},
            **{f"hc{dot}base": 100.0 for dot in "._"},
        },
        "half": {".mlp.": 0.0, "self_attn.1.": 0.0, "mlps.1.": 0.0, "layernorm.1.": 1.0},
    }
)
#: What the rotations of a layer follow from.
ROTATED = (
    *("hidden_size", "num_attention_heads", "max_position_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters"),
)
