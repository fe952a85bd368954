# SPDX-License-Identifier: Apache-2.0
"""Assistants as transformers computes them: the reference of a package's program `assistant`.

Only the reference process imports this. What the model wrote into transformers' own cache is cut at each place of a
text, and transformers' own forward of the assistant reads it, as `generate(assistant_model=…)` lets it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from qeff_zoo.validation.reference.layers import DraftLayerLogits
from qeff_zoo.validation.trial.cases import LAYER_ANSWERS

_CLUSTERS = "masked_embedding."


class Assistant(DraftLayerLogits):
    """Logits of an assistant; a context in which the model's forward runs.

    Args:
        model: Hugging Face's.
        config: Config of the assistant.
        stored: Tensors of the assistant, in float32.
    """

    def __init__(self, model: Any, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
        super().__init__(model, [model.get_output_embeddings()])
        of_all = {**config, "use_ordered_embeddings": False}
        parsed = CONFIG_MAPPING[config["model_type"]].from_dict(of_all)
        classes: Any = AutoModelForCausalLM._model_mapping
        with all_shared(type(parsed.text_config)):
            assistant, loaded = classes[type(parsed)].from_pretrained(
                None,
                config=parsed,
                state_dict={name: stored[name] for name in stored if _CLUSTERS not in name},
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        if missing := {*loaded["missing_keys"]} | {*loaded["unexpected_keys"]}:
            raise ValueError(f"The assistant's tensors are others than {sorted(missing)[:5]}.")
        self._assistant = assistant.eval()
        # Under the names that they have in the package.
        model.speculator.inner = inner = nn.Module()
        inner.model, inner.lm_head = assistant.model, assistant.lm_head
        for name in ("pre_projection", "post_projection"):
            setattr(model.speculator, name, getattr(assistant, name))
        text = model.config.get_text_config()
        own = text.layer_types[: text.num_hidden_layers - text.num_kv_shared_layers]
        self._layers = {kind: layer for layer, kind in enumerate(own)}  # the last of each
        self._cache: Any = None

    def __enter__(self) -> "Assistant":
        """Begin to read the model's states, its keys and values among them."""
        super().__enter__()

        def caching(_: nn.Module, args: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
            self._cache = DynamicCache()  # of all positions, also where a window slides
            return args, {**given, "past_key_values": self._cache}

        decoder = self.model.get_decoder()
        self._hooks.append(decoder.register_forward_pre_hook(caching, with_kwargs=True))
        return self

    def logits(
        self,
        input_ids: Tensor,
        rows: Sequence[int],
        columns: Sequence[int],
        after: Sequence[Sequence[int]],
    ) -> Tensor:
        """As of `DraftLayerLogits`."""
        (read,), logits = self._read, []
        embed = self.model.get_input_embeddings()
        for row, column, tokens in zip(rows, columns, after, strict=True):
            state, answers = read[row, column][None, None], list[Tensor]()
            before = slice(column + 1)  # the newest is not among them
            shared = {
                kind: tuple(
                    one[row : row + 1, :, before]
                    for one in (self._cache.layers[layer].keys, self._cache.layers[layer].values)
                )
                for kind, layer in self._layers.items()
            }
            for token in tokens:
                embeds = torch.cat([embed(torch.tensor([[token]])), state], -1)
                output = self._assistant(
                    inputs_embeds=embeds,
                    position_ids=torch.tensor([[column + 1]]),
                    shared_kv_states=shared,
                    use_cache=False,
                )
                answers.append(output.logits[0, 0])
                state = output.last_hidden_state
            logits.append(torch.stack(answers + answers[-1:] * (LAYER_ANSWERS - len(answers))))
        return torch.stack(logits)


@contextmanager
def all_shared(kind: Any) -> Iterator[None]:
    """Let transformers make a model whose layers all read another's keys and values: 5.23's configuration refuses."""
    before = kind.kv_sharing_modes
    kind.kv_sharing_modes = property(lambda config: ["reuse"] * config.num_hidden_layers)
    try:
        yield
    finally:
        kind.kv_sharing_modes = before
