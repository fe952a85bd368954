# SPDX-License-Identifier: Apache-2.0
"""What can be chosen about a build for target `qaic`: the flags of its compiler. `qnn-aic` has some of them too.

Names are those of QEfficient's `compile`, and `spelling` is that of qaic-compile; what has no spelling is said to the
compiler in a file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from qeff_zoo.plan.option import option

#: Cores of a device.
CORES = 16
#: What attention is cut into blocks of, as QEfficient calls it.
MODES = ("kv", "q", "h", "qkv", "hq", "hkv", "hqkv")
#: Tokens that a sampler on a card draws from at most, unless it is told otherwise.
TOP_K_IDS = 512
#: Choices of a sampler on a card.
SAMPLER = ("include_sampler", "max_top_k_ids", "include_guided_decoding", "return_pdfs")
#: Choices that are about the graph, and no flags of a compiler.
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
#: Flags that come before or after all others, or have a path.
_PLACED = ("aic-hw-version", "sub-functions", "node-precision-info")
#: Flags of the compiler that no choice has, since the build writes them.
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
    """Fields of `Request` that are for target `qaic`, some of them for `qnn-aic` as well."""

    aic_hw_version: str | None = _option(
        "aic_hw_version",
        "generation of the card: ai100 or ai200 (default: ai100)",
        "aic-hw-version",
        allowed=("ai100", "ai200"),
        default="ai100",
        short="",
    )
    num_devices: int | None = _common(
        "num_devices",
        "devices that the model is sliced over (default: 1)",
        least=1,
        default=1,
        short="devices",
    )
    mxfp6_matmul: bool | None = _common(
        "mxfp6_matmul", "hold constant matrices of products in MXFP6", "mxfp6-matmul"
    )
    num_cores: int | None = _common(
        "num_cores",
        f"cores of each device: 1 to {CORES} (default: {CORES})",
        "aic-num-cores",
        least=1,
        most=CORES,
        default=CORES,
        short="cores",
    )
    mxint8_kv_cache: bool | None = _common(
        "mxint8_kv_cache", "keep keys and values in MXINT8, not in float16", of="decoder"
    )
    blocking_mode: str | None = _option(
        "blocking_mode",
        "compute attention in blocks: kv of the cache, q of a call's tokens, h of heads, or several of them",
        allowed=MODES,
        of="decoder",
        short="blocked",
    )
    num_kv_blocks: int | None = _option(
        "num_kv_blocks",
        "of --blocking-mode kv, blocks of the cache",
        least=2,
        of="decoder",
        short="kvb",
    )
    num_q_blocks: int | None = _option(
        "num_q_blocks",
        "of --blocking-mode q, blocks of a call's tokens",
        least=2,
        of="decoder",
        short="qb",
    )
    head_block_size: int | None = _option(
        "head_block_size",
        "of --blocking-mode h, heads of a block",
        least=1,
        of="decoder",
        short="hb",
    )
    single_program: bool | None = _option(
        "single_program",
        "read pictures in the program that writes, as QEfficient does with kv_offload=False, and not in one of its own",
        of="vision",
        short="single",
    )
    include_sampler: bool | None = _option(
        "include_sampler",
        "draw tokens on the card, which then returns them in place of logits",
        of="decoder",
        short="sampler",
    )
    max_top_k_ids: int | None = _option(
        "max_top_k_ids",
        f"of --include-sampler, tokens that are drawn from at most: the likeliest (default: {TOP_K_IDS})",
        least=1,
        of="decoder",
        short="top",
    )
    include_guided_decoding: bool | None = _option(
        "include_guided_decoding",
        "of --include-sampler, take with every call which tokens may come, for answers of a given form",
        of="decoder",
        short="guided",
    )
    return_pdfs: bool | None = _option(
        "return_pdfs",
        "of --include-sampler, return the probabilities that tokens are drawn by as well",
        of="decoder",
        short="pdfs",
    )
    mdp_num_partitions: int | None = _option(
        "mdp_num_partitions",
        "stages of a pipeline of layers, each on its share of the devices (default: 1)",
        least=1,
        short="stages",
    )
    mos: int | None = _common(
        "mos", "degree to which weights are split over the cores", "mos", least=1
    )
    mdts_mos: int | None = _option(
        "mdts_mos",
        "the same with slicing over devices; retained states then lose their pairs",
        "mdts-mos",
        least=1,
    )
    ols: int | None = _option("ols", "factor by which operators are split", "ols", least=1)
    aic_enable_depth_first: bool | None = _common(
        "aic_enable_depth_first", "compute depth first", "aic-enable-depth-first"
    )
    aic_depth_first_mem: int | None = _option(
        "aic_depth_first_mem", "memory for it, in MB", "aic-depth-first-mem", least=1
    )
    allow_mxint8_mdp_io: bool | None = _common(
        "allow_mxint8_mdp_io", "pass MXINT8 between devices", "allow-mxint8-mdp-io"
    )
    split_retained_state_io: bool | None = _option(
        "split_retained_state_io",
        "give every slice of a retained state an input and an output of its own",
        "split-retained-state-io",
        of="decoder",
    )
    user_tiled: bool | None = _option(
        "user_tiled", "take the tiling that the graph has", "user-tiled"
    )
    multicast_weights: bool | None = _option(
        "multicast_weights", "read shared weights once for all cores", "multicast-weights"
    )
    size_split_granularity: int | None = _option(
        "size_split_granularity",
        "size to which tensors are split, in KiB",
        "size-split-granularity",
        least=1,
    )
    allocator_dealloc_delay: int | None = _option(
        "allocator_dealloc_delay",
        "how long memory is kept before it is used again",
        "allocator-dealloc-delay",
        least=0,
    )
    stats_level: int | None = _common(
        "stats_level", "detail of the statistics that are recorded", "stats-level", least=0
    )
    stats_batchsize: int | None = _common(
        "stats_batchsize", "batch that statistics are scaled to", "stats-batchsize", least=1
    )
    node_precision_info: tuple[str, ...] | None = _option(
        "node_precision_info",
        "operators or names of nodes, * for any text, that are computed in float32; may be repeated",
        "node-precision-info",
        short="fp32",
    )
    sub_functions: bool | None = _option(
        "sub_functions", "compile repeated functions once", "sub-functions"
    )
    compiler_flag: tuple[str, ...] | None = _option(
        "compiler_flag",
        "another flag of qaic-compile, without its dash: NAME or NAME=VALUE; may be repeated",
        short="with",
    )


#: Flag of the compiler -> the choice that has it.
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
    """List what is wrong with unlisted flags, one sentence each.

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
