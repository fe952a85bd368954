# SPDX-License-Identifier: Apache-2.0
"""QEfficient's classes of models with adapters (LoRA): several in a batch, or one at a time that is swapped."""

import os
from collections.abc import Sequence
from typing import Any

from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.errors import AdapterError, GenerationError
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute
from qeff_zoo.qefficient.exported import Source
from qeff_zoo.qefficient.processor_outputs import rows_of

from . import translation

#: What a mapping of prompts calls the model as it is.
BASE = "base"


class QEffAutoLoraModelForCausalLM(QEFFAutoModelForCausalLM):
    """A model that answers each prompt with an adapter of its own, or with none.

    Example:
        >>> model = QEffAutoLoraModelForCausalLM.from_pretrained("org/model")  # doctest: +SKIP
        >>> model.load_adapter("org/sql-lora", "sql")  # doctest: +SKIP
        >>> model.compile(batch_size=2)  # doctest: +SKIP
        >>> model.generate(
        ...     prompts=[...], prompt_to_adapter_mapping=["sql", "base"]
        ... )  # doctest: +SKIP
    """

    def __init__(self, source: Source, **loaded: Any) -> None:
        super().__init__(source, **loaded)
        self._adapters: dict[str, str] = {}

    def load_adapter(self, adapter_model_id: str | os.PathLike[str], adapter_name: str) -> int:
        """Load an adapter, before `compile` or after it.

        Args:
            adapter_model_id: Hub id or folder.
            adapter_name: Name for `generate`.

        Returns:
            Its number, as `get_adapter_id`.

        Raises:
            ZooError: There is no such adapter, or the package has no room for it.
        """
        if adapter_name == BASE:
            raise AdapterError(
                f"An adapter cannot be called {BASE!r}, which is the model as it is; expected another name. Choose one."
            )
        source = os.fspath(adapter_model_id)
        open_adapter(source)
        if self._session is not None and self._is_held(adapter_name):
            self._session.adapters.load(adapter_name, source)
        self._adapters[adapter_name] = source
        return self.get_adapter_id(adapter_name)

    def unload_adapter(self, adapter_name: str) -> bool:
        """Unload an adapter.

        Returns:
            True; False without a loaded adapter of that name, as in QEfficient.
        """
        if adapter_name not in self._adapters:
            return False
        if self._session is not None and adapter_name in self._session.adapters:
            self._session.adapters.unload(adapter_name)
        del self._adapters[adapter_name]
        return True

    def get_adapter_id(self, adapter_name: str) -> int:
        """Return the number of an adapter: its slot, or the one that it will have; 0 for `base`.

        Raises:
            AdapterError: There is none of that name.
        """
        if adapter_name == BASE:
            return 0
        self._require(adapter_name)
        if self._session is not None and adapter_name in self._session.adapters:
            return int(self._session.adapters[adapter_name].slot)
        return 1 + [*self._adapters].index(adapter_name)

    def compile(self, **choices: Any) -> str:
        """Build a package that takes the adapters that are loaded, or find it in the store.

        Args:
            **choices: See `QEFFAutoModelForCausalLM.compile`. By default `max_loras` is the number of the adapters,
                and `max_lora_rank` the largest of their ranks.

        Returns:
            The package's folder.

        Raises:
            ZooError: See `qeff_zoo.build`.
        """
        ranks = [
            rank
            for source in self._adapters.values()
            for rank in open_adapter(source).modules.values()
        ]
        usual = {
            "max_loras": max(1, len(self._adapters)),
            **({"max_lora_rank": max(ranks)} if ranks else {}),
        }
        return super().compile(**{**usual, **choices})

    def generate(
        self,
        tokenizer: Any = None,
        prompts: str | Sequence[str] | None = (),
        device_id: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        *,
        prompt_to_adapter_mapping: Sequence[str] | None = None,
        stream: bool = True,
        **choices: Any,
    ) -> CloudAI100ExecInfo:
        """Answer prompts, each with its adapter, in the same calls.

        Args:
            tokenizer: Turns prompts into token ids; None for the package's own.
            prompts: Texts, or token ids.
            device_id: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            prompt_to_adapter_mapping: Name of an adapter for each prompt, or "base"; None for "base" everywhere.
            stream: Print prompts and answers.
            **choices: `generation_len`, `sampling`, `stop` and `chat` as for `QEFFAutoModelForCausalLM.generate`.

        Raises:
            ZooError: The model is not compiled, or a prompt cannot be answered.
        """
        known = {"generation_len", "sampling", "stop", "chat"}
        others = {name: value for name, value in choices.items() if name not in known}
        translation.refuse("generate", others, translation.GENERATING)
        given = [prompts] if isinstance(prompts, str) else [*(prompts or ())]
        names = [BASE] * len(given)
        if prompt_to_adapter_mapping is not None:
            names = [*prompt_to_adapter_mapping]
        if len(names) != len(given):
            raise GenerationError(
                f"prompt_to_adapter_mapping has {len(names)} names for {len(given)} prompts; expected one for each. "
                f"Give {BASE!r} for the model as it is."
            )
        return execute(
            self._opened(device_id, runtime_ai100),
            given,
            tokenizer=tokenizer,
            stream=stream,
            each=[{} if name == BASE else {"adapter": name} for name in names],
            **{
                name: value
                for name, value in choices.items()
                if name in known and value is not None
            },
        )

    def _opened(self, device_ids: Sequence[int] | None, runtime_ai100: bool) -> Any:
        session = super()._opened(device_ids, runtime_ai100)
        adapters = session.adapters
        for name in filter(self._is_held, self._adapters):
            if name in adapters:
                continue
            spare = [adapter for adapter in adapters if not self._is_held(adapter)]
            if spare and len(adapters) >= adapters.slots:
                adapters.unload(spare[0])
            adapters.load(name, self._adapters[name])
        return session

    def _is_held(self, name: str) -> bool:
        """Return whether the next `generate` requires an adapter in a slot."""
        return True

    def _require(self, name: str) -> None:
        if name not in self._adapters:
            here = ", ".join(map(repr, self._adapters)) or "none"
            raise AdapterError(
                f"There is no adapter {name!r}; expected one of those that are loaded: {here}. Load it first."
            )


class QEffAutoPeftModelForCausalLM(QEffAutoLoraModelForCausalLM):
    """A model with one adapter at a time for all prompts, swapped without compiling again.

    Example:
        >>> model = QEffAutoPeftModelForCausalLM.from_pretrained(
        ...     "org/sql-lora", "sql"
        ... )  # doctest: +SKIP
        >>> model.compile()  # doctest: +SKIP
        >>> model.generate(prompts=["How many users?"])  # doctest: +SKIP
    """

    #: Name of the adapter that `generate` uses.
    active_adapter: str = ""

    @classmethod
    def from_pretrained(  # type: ignore[override]  # an adapter in place of a checkpoint, as QEfficient has it
        cls,
        pretrained_name_or_path: str | os.PathLike[str],
        adapter_name: str = "default",
        finite_adapters: bool = False,
        **source: Any,
    ) -> QEffAutoLoraModelForCausalLM:
        """Open an adapter, and the checkpoint that its configuration names as the base.

        Args:
            pretrained_name_or_path: Hub id or folder of the adapter.
            adapter_name: Name for `set_adapter`.
            finite_adapters: Return a `QEffAutoLoraModelForCausalLM`, which has several adapters in a batch.
            **source: Arguments of `QEFFAutoModelForCausalLM.from_pretrained` for the checkpoint.

        Raises:
            ZooError: There is no such adapter, it does not name its checkpoint, or that has no recipe.
        """
        adapter = open_adapter(os.fspath(pretrained_name_or_path))
        if not adapter.base:
            raise adapter.refused(
                "it does not say what it was trained on", "base_model_name_or_path"
            )
        kind: Any = QEffAutoLoraModelForCausalLM
        if finite_adapters:
            model: Any = kind.from_pretrained(adapter.base, **source)
            model.load_adapter(pretrained_name_or_path, adapter_name)
        else:
            model = super().from_pretrained(adapter.base, **source)
            model.load_adapter(pretrained_name_or_path, adapter_name)
            model.set_adapter(adapter_name)
        return model  # type: ignore[no-any-return]

    def set_adapter(self, adapter_name: str) -> None:
        """Let `generate` use an adapter that is loaded.

        Raises:
            AdapterError: There is none of that name.
        """
        self._require(adapter_name)
        self.active_adapter = adapter_name

    def disable_adapter(self) -> None:
        """Generate without an adapter, until `set_adapter` selects one again."""
        self.active_adapter = BASE

    def _is_held(self, name: str) -> bool:
        return name == self.active_adapter

    def generate(
        self,
        tokenizer: Any = None,
        prompts: str | Sequence[str] | None = (),
        device_id: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        **choices: Any,
    ) -> Any:
        """Answer prompts with the adapter that is set.

        Args:
            tokenizer: See `QEFFAutoModelForCausalLM.generate`, also for the next three.
            prompts: Texts, or token ids.
            device_id: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            **choices: Options of `QEffAutoLoraModelForCausalLM.generate`. Or, in place of prompts, arguments of
                transformers' `generate`: `input_ids` (or `inputs`) and `attention_mask`, the output of a tokenizer;
                `max_new_tokens`, or a `generation_config` with it; and `streamer`.

        Returns:
            For `input_ids` an array of the generated tokens, (prompts, max_new_tokens), 0 behind the last.
        """
        if choices.keys().isdisjoint(("inputs", "input_ids")):
            given = [prompts] if isinstance(prompts, str) else [*(prompts or ())]
            usual = {"prompt_to_adapter_mapping": [self.active_adapter] * len(given)}
            return super().generate(
                tokenizer, given, device_id, runtime_ai100, **{**usual, **choices}
            )
        return self._generate_ids(choices.pop("device_ids", device_id), runtime_ai100, choices)

    def _generate_ids(
        self, device_ids: Sequence[int] | None, runtime_ai100: bool, choices: dict[str, Any]
    ) -> Any:
        """Return the generated tokens for the output of a tokenizer."""
        import numpy as np

        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: choices.pop(name, None) for name in names}
        ids = choices.pop("inputs", None)
        inputs |= {} if ids is None else {"input_ids": ids}
        streamer, config = choices.pop("streamer", None), choices.pop("generation_config", None)
        fields = ("max_new_tokens", "do_sample", "num_beams")
        choices = {**{name: getattr(config, name, None) for name in fields}, **choices}
        most = choices.pop("max_new_tokens")
        translation.refuse("generate", choices, translation.OF_TRANSFORMERS)
        if most is None or most < 1:
            raise GenerationError(
                f"max_new_tokens is {most!r}; expected at least 1. Give it to `generate`."
            )
        rows = rows_of(inputs)
        info = execute(
            self._opened(device_ids, runtime_ai100),
            rows,
            stream=streamer or False,
            echo=True,
            each=[{} if self.active_adapter == BASE else {"adapter": self.active_adapter}]
            * len(rows),
            generation_len=most,
        )
        generated = np.zeros((len(rows), most), np.int64)
        for row, tokens in zip(generated, info.generated_ids, strict=True):
            row[: len(tokens)] = tokens
        return generated
