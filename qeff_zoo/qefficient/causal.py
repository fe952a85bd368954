# SPDX-License-Identifier: Apache-2.0
"""QEfficient's class of models that generate text."""

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import qeff_zoo
from qeff_zoo.checkpoint.draft_heads import open_speculator
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT, TEXT_GENERATION
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.plan.task import recipe_of
from qeff_zoo.qefficient.configs import ModelView
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute, prompts_of
from qeff_zoo.qefficient.exported import Source
from qeff_zoo.qefficient.recording import records_calls
from qeff_zoo.qefficient.sampler import samplings
from qeff_zoo.qefficient.specializations import SpecializedDecoder
from qeff_zoo.targets.qaic.options import SAMPLER, TOP_K_IDS

from . import blocking, kv_heads, translation

_LATENTS, _REPLICATED = "mla_absorption", "replicate_kv_heads"
#: Keys of `qaic_config` that `compile` reads.
_OF_COMPILE = {*blocking.KEYS, _LATENTS, _REPLICATED}
_TURBO = "turbo"
#: The shortest compute context that is chosen, up to which `ctx_len`; beyond both, the last.
_SHORTEST = ((4096, 32_768), (8192, 65_536), (16_384, None))


def usual_lengths(ctx_len: int) -> list[int] | None:
    """Return compute contexts that double up to the whole context, four at most; None where it is short anyway."""
    length = next(first for first, most in _SHORTEST if most is None or ctx_len <= most)
    lengths = list[int]()
    while length < ctx_len and len(lengths) < 4:
        lengths.append(length)
        length *= 2
    return lengths or None


def _reads_images(name: str | os.PathLike[str], source: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is a vision-language model, which `kv_offload` is for."""
    location = {field: source[field] for field in Source.BESIDE if field in source}
    return recipe_of(open_checkpoint(os.fspath(name), **location)).task == IMAGE_TEXT_TO_TEXT


class QEFFAutoModelForCausalLM(SpecializedDecoder):
    """A model that generates text.

    Example:
        >>> model = QEFFAutoModelForCausalLM.from_pretrained("gpt2")  # doctest: +SKIP
        >>> model.compile(num_cores=16)  # doctest: +SKIP
        >>> model.generate(prompts=["My name is"])  # doctest: +SKIP
    """

    _task = TEXT_GENERATION

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        continuous_batching: bool = False,
        qaic_config: Mapping[str, Any] | None = None,
        *,
        trust_remote_code: bool = False,
        full_batch_size: int | None = None,
        **source: Any,
    ) -> "QEFFAutoModelForCausalLM":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder, or a GGUF file.
            continuous_batching: Answers begin and end by themselves; `compile` then takes `full_batch_size`.
            qaic_config: QEfficient's options of a graph: `ccl_enabled`; `include_sampler`, `max_top_k_ids`,
                `include_guided_decoding` and `return_pdfs`; `enable_blocking` and its options, see `compile`;
                `mla_absorption`, by its `cache_compressed`; `replicate_kv_heads`, for as many KV heads as
                `num_devices` of `compile` share evenly; and `speculative_model_type`: "target", or "turbo" with
                the heads that lie in `pretrained_model_name_or_path` (default: beside the model); the others are
                refused by name.
            trust_remote_code: Needed by no model that is supported: code of a checkpoint is never run.
            full_batch_size: QEfficient's older option for `continuous_batching`.
            **source: `revision`, `gguf_file`, `config_from`; `config`, or `num_hidden_layers` for the first layers
                alone; QEfficient's others are refused by name.

        Raises:
            ZooError: There is no such checkpoint, or no recipe for it, or an argument means nothing here.
        """
        if source.get("kv_offload") is not None and _reads_images(
            pretrained_model_name_or_path, source
        ):
            return qeff_zoo.QEFFAutoModelForImageTextToText.from_pretrained(
                pretrained_model_name_or_path,
                continuous_batching=continuous_batching,
                qaic_config=qaic_config,
                **source,
            )
        config = dict(qaic_config or {})
        if source.pop("ccl_enabled", None):
            config["ccl_enabled"] = True
        compute_contexts = bool(config.pop("ccl_enabled", False))
        sampler = {name: one for name in SAMPLER if (one := config.pop(name, None))}
        heads = None
        if config.get("speculative_model_type") == _TURBO:
            beside = config.pop("pretrained_model_name_or_path", None)
            heads = os.fspath(beside or pretrained_model_name_or_path)
        options = {name: config.pop(name) for name in [*config] if name in _OF_COMPILE}
        translation.refuse("qaic_config", config, translation.CONFIG)
        model = cls._load(pretrained_model_name_or_path, source)
        model._options = options
        model._heads = heads
        model._slots = 1 if continuous_batching or full_batch_size else None
        model._compute_contexts = compute_contexts
        model._checks_drafts = bool(config.get("speculative_model_type") or source.get("is_tlm"))
        model._sampler = sampler
        return model

    @property
    def is_tlm(self) -> bool:
        """Whether the model verifies drafted tokens."""
        return self._checks_drafts

    @property
    def model(self) -> ModelView:
        """See `Model`; `config.speculative_config` has the number of draft tokens of a model with draft heads."""
        view = super().model
        if self._heads is not None:
            view.config = deepcopy(view.config)
            count = open_speculator(self._heads).settings["heads"]
            view.config.speculative_config = {"num_speculative_tokens": count}
        return view

    #: Folder or Hub id of heads that draft for it.
    _heads: str | None = None
    #: Whether `compile` sets compute contexts.
    _compute_contexts: bool = False
    #: Whether it sets how many drafted tokens a call verifies.
    _checks_drafts: bool = False
    #: Keys of `qaic_config` that `compile` reads.
    _options: Mapping[str, Any] = MappingProxyType({})
    #: What a card's program is to draw tokens by; nothing where the host draws.
    _sampler: Mapping[str, Any] = MappingProxyType({})

    def compile(
        self,
        *,
        prefill_seq_len: int = 32,
        ctx_len: int = 128,
        batch_size: int = 1,
        full_batch_size: int | None = None,
        kv_cache_batch_size: int | None = None,
        num_devices: int = 1,
        num_cores: int = 16,
        mxfp6_matmul: bool = False,
        mxint8_kv_cache: bool = False,
        num_speculative_tokens: int | Sequence[int] | None = None,
        comp_ctx_lengths_prefill: Sequence[int] | None = None,
        comp_ctx_lengths_decode: Sequence[int] | None = None,
        qaic_config: Mapping[str, Any] | None = None,
        target: str | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        **compiler_options: Any,
    ) -> str:
        """Build a package, or find it in the store.

        Args:
            prefill_seq_len: Prompt tokens taken by one call.
            ctx_len: Prompt and generated tokens together.
            batch_size: Prompts answered at a time, without continuous batching.
            full_batch_size: The same with it.
            kv_cache_batch_size: Equal to the batch slots; more have no effect, since equal prompt prefixes share
                their states.
            num_devices: Cards that the model is sliced over.
            num_cores: Number of cores of each card.
            mxfp6_matmul: Matrices in MXFP6, on a card.
            mxint8_kv_cache: Keys and values in MXINT8, on a card.
            num_speculative_tokens: Drafted tokens that one decode call checks, one number or several.
            comp_ctx_lengths_prefill: Rows of the cache that prefill calls read; without any, `ccl_enabled` has
                `usual_lengths`.
            comp_ctx_lengths_decode: The same of decode calls.
            qaic_config: Blocked attention on a card: `enable_blocking`, `blocking_mode`, `num_kv_blocks`,
                `num_q_blocks` and `head_block_size`; `mla_absorption` and `replicate_kv_heads`.
            target: Target of the build; None for a card if SDK and runtime are here, else `ort`. A card's target
                without its SDK leaves a prepared folder.
            compile_dir: Also copy the package there; of a prepared folder, where it is left.
            **compiler_options: `enable_qnn`, `qnn_config`, `device_group`; fields of `qeff_zoo.plan.request.Request`;
                all else is a flag of the card's compiler.

        Returns:
            The package's folder, or the prepared one.

        Raises:
            ZooError: See `qeff_zoo.build`; or an argument has no meaning here.
        """
        self._check_batches(full_batch_size, kv_cache_batch_size, batch_size)
        if self._checks_drafts and not (num_speculative_tokens or self._heads):
            raise PlanError(
                [
                    "The model was loaded to check drafted tokens, and num_speculative_tokens is "
                    f"{num_speculative_tokens!r}; expected how many a call checks. Give it, such as 3."
                ]
            )
        if self._compute_contexts and not (comp_ctx_lengths_prefill or comp_ctx_lengths_decode):
            comp_ctx_lengths_prefill = comp_ctx_lengths_decode = usual_lengths(ctx_len)
        given = {
            "prefill_seq_len": prefill_seq_len,
            "ctx_len": ctx_len,
            "batch_size": None if full_batch_size and batch_size == 1 else batch_size,
            "full_batch_size": full_batch_size,
            "num_devices": num_devices,
            "num_cores": num_cores,
            "mxfp6_matmul": mxfp6_matmul,
            "mxint8_kv_cache": mxint8_kv_cache,
            "num_speculative_tokens": num_speculative_tokens or None,
            "draft_heads": self._heads,
            "comp_ctx_lengths_prefill": comp_ctx_lengths_prefill,
            "comp_ctx_lengths_decode": comp_ctx_lengths_decode,
            # Beside a card the host draws; what it does not return is refused.
            **{
                name: value
                for name, value in self._sampler.items()
                if target in (None, "qaic") or name == "return_pdfs"
            },
        }
        given |= self._configured(qaic_config, given | compiler_options)
        return self._compile(target, compile_dir, given | compiler_options)

    def _configured(
        self, qaic_config: Mapping[str, Any] | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the options of a build that `qaic_config` of `compile` or of `from_pretrained` selects."""
        config = {**self._options, **(qaic_config or {})}
        others = {name: config.pop(name) for name in [*config] if name not in _OF_COMPILE}
        translation.refuse("qaic_config", others, translation.COMPILE_CONFIG)
        options = dict[str, Any]()
        if latents := config.pop(_LATENTS, None):
            options["expanded_kv"] = not latents.get("cache_compressed", False) or None
        if config.pop(_REPLICATED, False) and given.get("kv_heads") is None:
            text_config = self._opened_checkpoint().text_config
            options["kv_heads"] = kv_heads.replicated(text_config, given["num_devices"] or 1)
        if config:
            sizes = {name: given.get(name) for name in blocking.SIZES}
            sizes["batch_size"] = given.get("full_batch_size") or given.get("batch_size")
            text_config = self._opened_checkpoint().text_config
            options |= blocking.options_of(config, text_config, sizes)
        return options

    def _check_batches(
        self, full_batch_size: int | None, kv_cache_batch_size: int | None, batch_size: int
    ) -> None:
        problems = []
        if self._slots and not full_batch_size:
            problems.append(
                "continuous_batching is True, and full_batch_size is not given; expected the number of prompts to "
                "answer at a time. Give it to `compile`."
            )
        if full_batch_size and not self._slots:
            problems.append(
                f"full_batch_size is {full_batch_size}, and the model was loaded without continuous batching. Load it "
                "with continuous_batching=True, or give batch_size."
            )
        if kv_cache_batch_size not in (None, full_batch_size or batch_size):
            problems.append(
                f"`compile`: kv_cache_batch_size is {kv_cache_batch_size!r}, which means nothing here. Leave it out: "
                "prompts that begin alike share their states by themselves."
            )
        if problems:
            raise PlanError(problems)

    @records_calls
    def generate(
        self,
        tokenizer: Any = None,
        prompts: str | Sequence[str] | None = (),
        device_id: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        *,
        prompts_txt_file_path: str | None = None,
        generation_len: int | None = None,
        stream: bool = True,
        sampling: Any = None,
        sampling_params: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
        grammar: Any = None,
        chat: bool = False,
        **others: Any,
    ) -> CloudAI100ExecInfo | Path:
        """Answer prompts, any number of them.

        Args:
            tokenizer: Turns prompts into token ids; None for the package's own.
            prompts: Texts, or token ids.
            device_id: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            prompts_txt_file_path: File with one prompt a line, in place of `prompts`.
            generation_len: Tokens for each at most; None for as many as the context holds.
            stream: Print prompts and answers, a single one as it grows.
            sampling: A `qeff_zoo.runtime.Sampling`; None to take the most likely token each time.
            sampling_params: QEfficient's arrays in place of it, with a row for each prompt.
            stop: Strings that end an answer before them.
            grammar: A `qeff_zoo.runtime.Grammar`, the form of the answers; None for any.
            chat: Apply the chat template.
            **others: `artifact_only` (or `artifacts`) writes the first call's inputs as files for qaic-runner, and
                returns their folder; QEfficient's others change nothing here or are refused.

        Raises:
            ZooError: The model is not compiled, or a prompt cannot be answered.
        """
        if translation.pop_only_files(others):
            choices = {
                "sampling": sampling, "sampling_params": sampling_params, "grammar": grammar,
                "chat": chat, "generation_len": 1, "stream": False, **others,
            }  # fmt: skip
            return self._write_inputs(
                lambda: self.generate(tokenizer, prompts, **choices), role="decoder"
            )
        if self._sampler.get("return_pdfs"):  # as it was loaded
            others.pop("return_pdfs", None)
        prompts = others.pop("prompt", None) or prompts  # as in cloud_ai_100_exec_kv
        translation.refuse("generate", others, translation.GENERATING)
        if None not in (sampling, sampling_params):
            raise GenerationError(
                f"sampling is {sampling!r}, and sampling_params {sampling_params!r}; expected one. Leave one out."
            )
        if prompts_txt_file_path is not None:
            prompts = prompts_of(prompts or None, prompts_txt_file_path)
        given = [prompts] if isinstance(prompts, str) else [*(prompts or ())]
        each: list[Any] = [sampling] * len(given)
        if sampling_params is not None:
            usual = TOP_K_IDS if self._sampler else None
            most = self._sampler.get("max_top_k_ids", usual)
            each = samplings(sampling_params, len(given), most)
        return execute(
            self._opened(device_id, runtime_ai100),
            given,
            tokenizer=tokenizer,
            stream=stream,
            each=[{} if one is None else {"sampling": one} for one in each],
            generation_len=generation_len,
            stop=stop,
            grammar=grammar,
            chat=chat,
        )
