# SPDX-License-Identifier: Apache-2.0
"""QEfficient's arguments -> the options of a build, or a refusal that names the replacement.

In: keyword arguments as a user of QEfficient writes them. Out: fields of `qeff_zoo.plan.request.Request`. Nothing is
    dropped silently: options of cards are returned by name, and unknown arguments are refused. None is not a value.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qeff_zoo import targets
from qeff_zoo.errors import PlanError, did_you_mean
from qeff_zoo.package.option import JsonText, Option
from qeff_zoo.plan.request import OPTIONS

from . import sdks

#: QEfficient's other names of choices.
_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "aic_num_cores": "num_cores",
        "mdp_ts_num_devices": "num_devices",
        "mxfp6": "mxfp6_matmul",
        "mxint8": "mxint8_kv_cache",
        "prompt_len": "prefill_seq_len",
        "seq_len": "seq_lens",
        "use_onnx_subfunctions": "sub_functions",
    }
)
#: Option whose value may be QEfficient's file.
_PRECISION = "node_precision_info"
#: How alike two names are of which one was meant for the other.
_TYPO = 0.85


@dataclass(frozen=True)
class Foreign:
    """An argument of QEfficient's that chooses nothing here.

    Args:
        harmless: Values without an effect beyond the default; types stand for all of their values.
        instead: Advice for any other value.
    """

    harmless: tuple[Any, ...]
    instead: str


_OFF = (None, False)
_EITHER = (None, False, True)
_FOLLOWS = Foreign((None, True), "Leave it out: it follows from the other choices.")
_PARTITIONS = Foreign((None,), "Use num_devices and mdp_num_partitions, which write that file.")
_CHECKED = Foreign(
    (None, False, True),
    "Give num_speculative_tokens to `compile`, and load the package with draft=….",
)
_NOT_RECORDED = Foreign(_OFF, "Leave it out: what goes into a program is not written to files.")
_ALWAYS = Foreign(_EITHER, "Leave it out.")
#: Data types: a card computes in float16 in any case, and a CPU in float32.
_DTYPE = Foreign(
    (None, "auto", "float32", "float16", "bfloat16"),
    "Give weights='int8' or another format to `compile`; a card computes in float16.",
)
#: Room for images: each is encoded by itself, and the context alone limits their number.
_ROOM = Foreign((None, int), "Leave it out: any number fits that ctx_len has room for.")

_BLOCKS = Foreign(
    _OFF,
    "Give draft_heads=DRAFTER to `compile` of the target model, and call qeff_zoo.load(PACKAGE, draft='heads').",
)

#: Arguments of `from_pretrained`.
LOADING: Mapping[str, Foreign] = MappingProxyType(
    {
        "max_seq_len_cached": Foreign((None,), "Give ctx_len to `compile`."),
        "layerwise": _ALWAYS,  # memory never grows with the model
        "weight_free": _ALWAYS,  # weights never enter a graph
        "low_cpu_mem_usage": _ALWAYS,
        "fp8_retain_weights": Foreign(_EITHER, "Give True to keep FP8 matrices in the graph."),
        "dtype": _DTYPE,
        "torch_dtype": _DTYPE,
        "attn_implementation": Foreign(
            (None, "eager", "sdpa"), "Leave it out: the graph has its own."
        ),
        "use_cache": _ALWAYS,  # programs with a KV cache always use it
        "ignore_mismatched_sizes": _ALWAYS,  # tensors of another size are always refused
        "enable_proxy": _ALWAYS,  # with a warning
        "kv_offload": _ALWAYS,  # of models without images
        "is_tlm": _CHECKED,
        "use_auth_token": Foreign((None, False, True, str), "Give token."),
        "local_files_only": Foreign(_OFF, "Set HF_HUB_OFFLINE=1."),
    }
)
#: Keys of `qaic_config`.
CONFIG: Mapping[str, Foreign] = MappingProxyType(
    {
        "pretrained_model_name_or_path": Foreign(
            (None,), "Leave it out: it is the first argument."
        ),
        "speculative_model_type": Foreign(
            (None, False, "target", "turbo"),
            "There are 'target', a model that checks drafts, with num_speculative_tokens of `compile`, and 'turbo', a "
            "model with heads that draft.",
        ),
        **dict.fromkeys(("dflash_dlm", "target_layer_ids"), _BLOCKS),
    }
)
#: Other keys of `qaic_config` in `compile`.
COMPILE_CONFIG: Mapping[str, Foreign] = MappingProxyType(
    {
        **CONFIG,
        **{
            name: Foreign(_OFF, "Give qaic_config to `from_pretrained`.")
            for name in ("ccl_enabled", "include_sampler", "return_pdfs", "max_top_k_ids")
        },
    }
)
#: Prefix in the names of states. Without a card, `QAICInferenceSession` accepts any.
KV_CACHE_PREFIX = Foreign(
    (None, "vllmKvCache"),
    "Leave it out: with prefill_only, states are called past_key.N_vllmKvCache on a card.",
)
#: Arguments of `export`.
EXPORTING: Mapping[str, Foreign] = MappingProxyType(
    {
        "layerwise": _ALWAYS,
        "layerwise_window_size": Foreign((None, 1), "Leave it out: no windows are needed."),
        "offload_pt_weights": _ALWAYS,
        "dynamo": _ALWAYS,  # it always is
        "use_onnx_subfunctions": _ALWAYS,  # equal layers are calls of one function in every graph
        "prefill_only": _ALWAYS,  # one graph runs prompts and decodes; `compile` chooses
        "enable_chunking": _ALWAYS,  # prompts always run in chunks
        "retain_full_kv": _ALWAYS,  # states of both are laid out alike
        "moe_prefill_packed_chunk_size": Foreign((None, 256), "Leave it out."),
        "kv_cache_prefix": KV_CACHE_PREFIX,
    }
)
#: Arguments of `compile`, beside the choices of a build.
COMPILING: Mapping[str, Foreign] = MappingProxyType(
    {
        **{name: value for name, value in EXPORTING.items() if name not in {*_ALIASES, *OPTIONS}},
        "onnx_path": Foreign((None,), "Use qeff_zoo.qefficient.compile, which takes one."),
        "specializations": Foreign((None,), "Use prefill_seq_len, ctx_len and batch_size."),
        "mdp_ts_json_path": _PARTITIONS,
        "mdp_load_partition_config": _PARTITIONS,
        "mdp_dump_partition_config": _PARTITIONS,
        "mdp_compiler_dump_path": _PARTITIONS,
        "mdp_strategy": Foreign((None, "onnx"), "Leave it out: stages are made from the graph."),
        "custom_io": _FOLLOWS,
        "custom_io_file_path": Foreign((None,), "Use mxint8_kv_cache, which writes that file."),
        "retained_state": _FOLLOWS,
        "convert_to_fp16": _FOLLOWS,
        **{
            name: Foreign((None,), "Leave it out: images are arguments of `generate`.")
            for name in ("img_size", "image_path", "image_url")
        },
        **dict.fromkeys(("vision_size", "max_num_tiles", "num_patches"), _ROOM),
        "skip_vision": _ALWAYS,  # one package has both programs, and accepts text alone
        "skip_lang": _ALWAYS,
    }
)
#: Arguments of `generate` and `cloud_ai_100_exec_kv`.
GENERATING: Mapping[str, Foreign] = MappingProxyType(
    {
        "write_io": _NOT_RECORDED,
        "write_io_dir": _NOT_RECORDED,
        "artifacts": _NOT_RECORDED,
        "artifact_only": _NOT_RECORDED,
        "automation": Foreign(_OFF, "Leave it out, or use stream=False, which prints nothing."),
        "iteration": Foreign((None, 1), "Leave it out, or use `qeff-zoo bench --repeat N`."),
        "enable_debug_logs": Foreign(_OFF, "Leave it out."),
        "is_tlm": _CHECKED,
        "prompt_to_lora_id_mapping": Foreign(
            (None,),
            "Use QEffAutoLoraModelForCausalLM, which takes adapters by name.",
        ),
        "comp_ctx_lengths_prefill": Foreign((None,), "Leave it out: the package says it."),
        "comp_ctx_lengths_decode": Foreign((None,), "Leave it out: the package says it."),
        "include_sampler": _ALWAYS,
        "include_guided_decoding": _ALWAYS,
        "dtype": Foreign((None, "float32"), "Leave it out: outputs are float32."),
        "return_pdfs": Foreign(_OFF, "Use sampling=Sampling(logprobs=N)."),
        "sampling_params": Foreign((None,), "Use sampling=Sampling(…)."),
    }
)
#: Arguments of transformers' `generate`, of a class that has that form.
OF_TRANSFORMERS: Mapping[str, Foreign] = MappingProxyType(
    {
        "do_sample": Foreign(_OFF, "Use prompts=… and sampling=Sampling(…)."),
        "num_beams": Foreign((None, 1), "Leave it out: the most likely token is taken."),
        "stopping_criteria": Foreign((None,), "Use prompts=… and stop=…."),
        "use_cache": Foreign((None, True), "Leave it out."),
    }
)


def pop_only_files(given: dict[str, Any]) -> bool:
    """Remove the arguments of two releases for files in place of a run; return whether one of them is True."""
    return True in [given.pop(name, False) for name in ("artifacts", "artifact_only")]


def refuse(function: str, given: Mapping[str, Any], table: Mapping[str, Foreign]) -> None:
    """Refuse what is not a choice of a function, all of it at once.

    Args:
        function: Name.
        given: Arguments that it does not have itself.
        table: Table of QEfficient's arguments.

    Raises:
        PlanError: An option requests something.
    """
    if problems := list(_problems(function, given, table)):
        raise PlanError(problems)


def _problems(
    function: str, given: Mapping[str, Any], table: Mapping[str, Foreign]
) -> Iterator[str]:
    for name, value in given.items():
        known = table.get(name)
        if value is None:
            continue
        if known is None:
            yield f"`{function}` takes no {name!r}, which is {value!r}. Leave it out."
        elif not any(_same(value, one) for one in known.harmless):
            yield f"`{function}`: {name} is {value!r}, which means nothing here. {known.instead}"


def _same(value: Any, harmless: Any) -> bool:
    if isinstance(harmless, type):
        return type(value) is harmless
    if isinstance(harmless, str):
        return str(value).removeprefix("torch.") == harmless
    return value is harmless or (type(value) is int and value == harmless)


@dataclass(frozen=True, kw_only=True)
class Translated:
    """Translated arguments of a compilation.

    Args:
        choices: Fields of `Request`, without `target`.
        flags: Compiler flags without an option: `NAME` or `NAME=VALUE`.
    """

    choices: Mapping[str, Any]
    flags: tuple[str, ...]

    def request(self, target: str) -> tuple[dict[str, Any], list[str]]:
        """Return the fields of a request for a target, and what of it only other targets understand.

        Args:
            target: Name.
        """
        taken = {name: it for name, it in self.choices.items() if _is_for(OPTIONS[name], target)}
        left = [
            f"{name}={value!r}"
            for name, value in self.choices.items()
            if name not in taken and value != OPTIONS[name].default
        ]
        if not _is_for(OPTIONS["compiler_flag"], target):
            return {**taken, "target": target}, left + [f"-{flag}" for flag in self.flags]
        flags = (*taken.get("compiler_flag", ()), *self.flags)
        return {**taken, "target": target, "compiler_flag": flags or None}, left


def _is_for(option: Option, target: str) -> bool:
    if option.fixed and not targets.find(target).static_shapes:
        return False
    return not option.targets or target in option.targets


def translate(
    given: Mapping[str, Any],
    taken: Iterable[str],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Translated:
    """Read the arguments of `compile`.

    Args:
        given: Arguments by QEfficient's names, or ours; None and False are not chosen.
        taken: Names of what `compile` reads by itself, for who misspells one.
        defaults: Default values of arguments, which give way to the value of another name.

    Raises:
        PlanError: One means nothing here, or is misspelled, or is no value of its choice; all of them at once.
    """
    choices: dict[str, Any] = {}
    flags: list[str] = []
    problems: list[str] = []
    known = {*OPTIONS, *_ALIASES, *COMPILING, *taken, "device_group"}
    for name, value in given.items():
        option = OPTIONS.get(_ALIASES.get(name, name))
        if name == "device_group":
            option, value = OPTIONS["num_devices"], len(value) if value else None
        if name == _PRECISION:  # True: by the recipe
            value = _precision(value)
        if name == "prefill_only" and value is False:  # None is for both
            option, value = OPTIONS["decode_only"], True
        if name in COMPILING:
            problems += _problems("compile", {name: value}, COMPILING)
        elif value is None or value is False:
            continue
        elif option is not None:
            read = _read(option, value)
            if read is None:
                problems.append(
                    f"`compile`: {name} is {value!r}; expected {_kind(option)}. Correct it."
                )
            elif option.name == "num_devices" and read == 0:
                continue  # QEfficient's way to leave it to the compiler
            elif choices.get(option.name) in (None, _read(option, defaults.get(option.name))):
                choices[option.name] = read
            elif choices[option.name] != read:
                problems.append(
                    f"`compile`: {name} is {value!r}, and {option.name} is said to be {choices[option.name]!r} as well;"
                    " expected one of them. Leave one out."
                )
        elif near := did_you_mean(name, known, cutoff=_TYPO):
            problems.append(
                f"`compile` takes no {name!r}, which is {value!r}.{near} A flag of the compiler "
                "is given by compiler_flag."
            )
        else:
            flag = name.replace("_", "-")
            flags.append(flag if value is True else f"{flag}={value}")
    if problems:
        raise PlanError(problems)
    return Translated(choices=choices, flags=tuple(flags))


def _precision(value: Any) -> Any:
    is_file = isinstance(value, str) and value.endswith((".yaml", ".yml"))
    return sdks.operators_of(value) if is_file else None if value is True else value


def _kind(option: Option) -> str:
    if option.kind in (str, JsonText):
        return "a text"
    return {int: "a whole number", bool: "True or False"}.get(option.kind, "one value or a list")


def _read(option: Option, value: Any) -> Any:
    """Return a value as its choice has it, or None where it is none."""
    if option.kind is int:
        digits = isinstance(value, str) and value.isdecimal()
        return int(value) if digits or type(value) is int else None
    if option.kind is bool:
        return value if isinstance(value, bool) else None
    if option.kind in (tuple[int, ...], tuple[str, ...]):
        several = value.split(",") if isinstance(value, str) else value
        every = tuple(several) if isinstance(several, list | tuple) else (several,)
        if option.kind == tuple[str, ...]:
            return every if all(isinstance(one, str) for one in every) else None
        whole = all(type(one) is int or str(one).isdecimal() for one in every)
        return tuple(map(int, every)) if whole and every else None
    return value if isinstance(value, str) else None
