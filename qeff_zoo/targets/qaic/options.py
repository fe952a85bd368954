# SPDX-License-Identifier: Apache-2.0
"""Options of a build for target `qaic`: flags of its compiler, and changes of its graph. `qnn-aic` has some of them.

Names are those of QEfficient's `compile`, and `spelling` is the flag of qaic-compile; options without a spelling are
written to the compiler's files, or change the graph.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from qeff_zoo.package.option import option

#: Cores of a device.
CORES = 16
#: Modes of blocked attention, by QEfficient's names.
MODES = ("kv", "q", "h", "qkv", "hq", "hkv", "hqkv")
#: Default maximum number of candidate tokens of a sampler on a card.
TOP_K_IDS = 512
#: Options of a sampler on a card.
SAMPLER = ("include_sampler", "max_top_k_ids", "include_guided_decoding", "return_pdfs")
#: Options that change the graph, and are no flags of a compiler.
OF_GRAPHS = frozenset(
    {
        "blocking_mode",
        "num_kv_blocks",
        "num_q_blocks",
        "head_block_size",
        "single_program",
        *SAMPLER,
    }
)
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:=(.+))?")
#: Flags that are written elsewhere: before or after all others, or with the path of a file.
_PLACED = ("aic-hw-version", "sub-functions", "node-precision-info")
#: Flags of the compiler without an option, since the build writes them.
_WRITTEN = (
    *("m", "model", "aic-hw", "aic-binary-dir", "network-specialization-config"),
    *("custom-IO-list-file", "mdp-load-partition-config", "retained-state", "convert-to-fp16"),
    *("compile-only", "onnx-define-symbol"),
)


def _option(name: str, text: str, spelling: str | None = None, **facts: Any) -> Any:
    facts = {"targets": ("qaic",), **facts}
    return option(f"target.{name}", text, spelling=spelling, **facts)


def _common(name: str, text: str, spelling: str | None = None, **facts: Any) -> Any:
    return _option(name, text, spelling, targets=("qaic", "qnn-aic"), **facts)


@dataclass(frozen=True, kw_only=True)
class QaicOptions:
    """Fields of `Request` for target `qaic`, some of them for `qnn-aic` as well."""

    aic_hw_version: str | None = _option(
        "aic_hw_version",
        "device generation: ai100 or ai200 (default: ai100)",
        "aic-hw-version",
        allowed=("ai100", "ai200"),
        default="ai100",
        short="",
    )
    num_devices: int | None = _common(
        "num_devices",
        "number of devices for tensor slicing (default: 1)",
        least=1,
        default=1,
        short="devices",
    )
    mxfp6_matmul: bool | None = _common(
        "mxfp6_matmul", "constant matrices of matrix products in MXFP6", "mxfp6-matmul"
    )
    num_cores: int | None = _common(
        "num_cores",
        f"cores per device: 1 to {CORES} (default: {CORES})",
        "aic-num-cores",
        least=1,
        most=CORES,
        default=CORES,
        short="cores",
    )
    mxint8_kv_cache: bool | None = _common(
        "mxint8_kv_cache", "KV cache in MXINT8 instead of float16", of="decoder"
    )
    blocking_mode: str | None = _option(
        "blocking_mode",
        "blocked attention: kv (blocks of the KV cache), q (of a call's tokens), h (of heads), or a combination",
        allowed=MODES,
        of="decoder",
        short="blocked",
    )
    num_kv_blocks: int | None = _option(
        "num_kv_blocks",
        "number of KV cache blocks, with --blocking-mode kv",
        least=2,
        of="decoder",
        short="kvb",
    )
    num_q_blocks: int | None = _option(
        "num_q_blocks",
        "number of token blocks per call, with --blocking-mode q",
        least=2,
        of="decoder",
        short="qb",
    )
    head_block_size: int | None = _option(
        "head_block_size",
        "heads per block, with --blocking-mode h",
        least=1,
        of="decoder",
        short="hb",
    )
    single_program: bool | None = _option(
        "single_program",
        "one program for vision encoder and language model, as in QEfficient with kv_offload=False",
        of="vision",
        short="single",
    )
    include_sampler: bool | None = _option(
        "include_sampler",
        "sampling on the device, which returns tokens instead of logits",
        of="decoder",
        short="sampler",
    )
    max_top_k_ids: int | None = _option(
        "max_top_k_ids",
        f"largest number of candidate tokens (default: {TOP_K_IDS}), with --include-sampler",
        least=1,
        of="decoder",
        short="top",
    )
    include_guided_decoding: bool | None = _option(
        "include_guided_decoding",
        "token mask as an input of every call, for structured output, with --include-sampler",
        of="decoder",
        short="guided",
    )
    return_pdfs: bool | None = _option(
        "return_pdfs",
        "probabilities of the candidate tokens as an output, with --include-sampler",
        of="decoder",
        short="pdfs",
    )
    mdp_num_partitions: int | None = _option(
        "mdp_num_partitions",
        "pipeline stages of layers, each on its share of the devices (default: 1)",
        least=1,
        short="stages",
    )
    mos: int | None = _common("mos", "degree of weight splitting over the cores", "mos", least=1)
    mdts_mos: int | None = _option(
        "mdts_mos",
        "degree of weight splitting with slicing over devices, without paired retained states",
        "mdts-mos",
        least=1,
    )
    ols: int | None = _option("ols", "operator splitting factor", "ols", least=1)
    aic_enable_depth_first: bool | None = _common(
        "aic_enable_depth_first", "depth-first computation", "aic-enable-depth-first"
    )
    aic_depth_first_mem: int | None = _option(
        "aic_depth_first_mem",
        "memory for depth-first computation, in MB",
        "aic-depth-first-mem",
        least=1,
    )
    allow_mxint8_mdp_io: bool | None = _common(
        "allow_mxint8_mdp_io", "MXINT8 for transfers between devices", "allow-mxint8-mdp-io"
    )
    split_retained_state_io: bool | None = _option(
        "split_retained_state_io",
        "separate input and output for every slice of a retained state",
        "split-retained-state-io",
        of="decoder",
    )
    user_tiled: bool | None = _option("user_tiled", "the graph's own tiling", "user-tiled")
    multicast_weights: bool | None = _option(
        "multicast_weights", "one read of shared weights for all cores", "multicast-weights"
    )
    size_split_granularity: int | None = _option(
        "size_split_granularity",
        "granularity of tensor splitting, in KiB",
        "size-split-granularity",
        least=1,
    )
    allocator_dealloc_delay: int | None = _option(
        "allocator_dealloc_delay",
        "delay before released memory is used again",
        "allocator-dealloc-delay",
        least=0,
    )
    stats_level: int | None = _common(
        "stats_level", "level of recorded statistics", "stats-level", least=0
    )
    stats_batchsize: int | None = _common(
        "stats_batchsize", "batch size for scaled statistics", "stats-batchsize", least=1
    )
    node_precision_info: tuple[str, ...] | None = _option(
        "node_precision_info",
        "operators or node names (* for any text) to compute in float32; repeatable",
        "node-precision-info",
        short="fp32",
    )
    sub_functions: bool | None = _option(
        "sub_functions", "one compilation of repeated functions", "sub-functions"
    )
    compiler_flag: tuple[str, ...] | None = _option(
        "compiler_flag",
        "additional flag of qaic-compile, without its dash: NAME or NAME=VALUE; repeatable",
        short="with",
    )


#: Names of options by the flag of the compiler.
SPELLED: Mapping[str, str] = MappingProxyType(
    {
        item.metadata["spelling"]: item.name
        for item in fields(QaicOptions)
        if item.metadata["spelling"]
    }
)


def flags_of(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of the chosen options in the order of the fields, except flags that are placed elsewhere.

    Args:
        options: Values by name.
    """
    for spelling, name in SPELLED.items():
        value = None if spelling in _PLACED else options.get(name)
        if value is True:
            yield f"-{spelling}"
        elif isinstance(value, int | str) and value is not False:
            yield f"-{spelling}={value}"
    for flag in options.get("compiler_flag", ()):
        yield f"-{flag}"


def bad_flags(flags: tuple[str, ...]) -> list[str]:
    """List the problems of unlisted flags, a sentence each.

    Args:
        flags: Value of `compiler_flag`.
    """
    return [problem for flag in flags if (problem := _problem(flag, flags))]


def _problem(flag: str, flags: tuple[str, ...]) -> str | None:
    match = _NAMED.fullmatch(flag)
    if match is None or not flag.isprintable():
        return (
            f"--compiler-flag is {flag!r}, expected NAME or NAME=VALUE, without a dash before it."
        )
    name, value = match.groups()
    if name in SPELLED:
        chosen = "--" + SPELLED[name].replace("_", "-")
        return f"--compiler-flag is {flag!r}, which is a choice of its own. Use {chosen}."
    if name in _WRITTEN:
        return f"--compiler-flag is {flag!r}, which follows from the other choices. Leave it out."
    if value and re.match(r"[/~]|.*\\", value):
        return (
            f"--compiler-flag is {flag!r}: its value is a path of this machine, which a package cannot hold. Expected "
            "a value that means the same everywhere. Leave it out."
        )
    if [_name(other) for other in flags].count(name) > 1:
        return f"--compiler-flag {name!r} is there more than once. Give it once."
    return None


def _name(flag: str) -> str:
    return flag.partition("=")[0]
