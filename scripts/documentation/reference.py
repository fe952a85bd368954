# SPDX-License-Identifier: Apache-2.0
"""Reference tables: options of commands, fields of the manifest, errors, and metrics and formats of a server."""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from documentation.tables import table
from qeff_zoo import cli
from qeff_zoo.errors import ZooError
from qeff_zoo.runtime import Stats
from qeff_zoo.runtime.text.chat_output.formats import CALL_FORMATS, REASONING_FORMATS
from qeff_zoo.serving.monitoring.metrics import Metrics

SCHEMA = Path(__file__).parents[2] / "qeff_zoo" / "package" / "package.schema.json"


def options() -> str:
    """Return the page of all commands and their options, from the parser."""
    parts = [
        "# Options of every command",
        "What `qeff-zoo COMMAND --help` prints. [Commands](commands.md) describes output, exit codes and variables.",
    ]
    parts += [part for name, parser in commands(cli.parser()) for part in _command(name, parser)]
    return "\n\n".join(parts) + "\n"


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command that has no subcommands, by its whole name, and its parser."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not found:
        yield parser.prog, parser
    for action in found:
        for child in action.choices.values():
            yield from commands(child)


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    if parser.description:
        yield f"{parser.description[0].upper()}{parser.description[1:]}."
    yield _options(parser)


def options_of(command: str) -> str:
    """Return the table of the options of one command, such as "serve"."""
    return _options(dict(commands(cli.parser()))[f"qeff-zoo {command}"])


def _options(parser: argparse.ArgumentParser) -> str:
    rows = [_option(action) for action in parser._actions if action.help != argparse.SUPPRESS]
    return table(["option", "meaning"], [row for row in rows if "`-h`" not in row[0]])


def _option(action: argparse.Action) -> tuple[str, str]:
    metavar = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if action.choices is not None and action.metavar is None:
        metavar = "|".join(map(str, action.choices))
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    names = [f"`{name}`" for name in action.option_strings] or [f"`{value}`"]
    if action.option_strings and value:
        names[-1] = f"{names[-1][:-1]} {value}`"
    text = (action.help or "") % {**vars(action), "prog": ""}
    return ", ".join(names), text.replace("<", "&lt;").replace("*", "\\*")


def errors() -> str:
    """Return the table of errors, each below its base class."""
    return table(["error", "cause"], _errors(ZooError, 0))


def _errors(error: type[ZooError], depth: int) -> Iterator[tuple[str, str]]:
    cause = " ".join((error.__doc__ or "").partition("\n\n")[0].split())
    yield f"{'&emsp;' * depth}`{error.__name__}`", cause
    for child in error.__subclasses__():
        if child.__module__ == error.__module__:
            yield from _errors(child, depth + 1)


def chat_formats() -> str:
    """Return the names of the formats of tool calls and reasoning, by the option that takes them."""
    formats = {"--tool-parser": CALL_FORMATS, "--reasoning-parser": REASONING_FORMATS}
    rows = [
        [f"`{option}`", ", ".join(f"`{name}`" for name in sorted(names))]
        for option, names in formats.items()
    ]
    return table(["option", "formats"], rows)


def metrics() -> str:
    """Return the table of a server's metrics, from an idle server."""
    zeros: dict[str, Any] = dict.fromkeys([field.name for field in dataclasses.fields(Stats)], 0)
    adapters: dict[str, Any] = {
        "adapter_slots": 1, "running_adapters": (), "waiting_adapters": (),
    }  # fmt: skip
    idle = Stats(**{**zeros, **adapters, "finished": {}, "drafts": {}, "steps": {}})
    rows = [
        [f"`{one.name}{'_total' * (one.type == 'counter')}`", one.type, one.documentation]
        for one in Metrics(lambda: idle).collect()
    ]
    return table(["metric", "type", "content"], rows)


#: Metrics of vLLM 0.33.0 that a server lacks, by reason.
_MISSING_METRICS = {
    "KV cache in blocks": (
        *("cache_config_info", "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds"),
        "kv_block_reuse_gap_seconds",
    ),
    "KV cache on other machines": (
        *("external_prefix_cache_queries_total", "external_prefix_cache_hits_total"),
        *("prompt_tokens_by_source_total", "prompt_tokens_cached_by_source_total"),
        "num_requests_kv_fetch_by_stage",
    ),
    "diffusion models": (
        *("diffusion_num_canvas_positions_total", "diffusion_num_committed_tokens_total"),
        "diffusion_num_denoising_steps_total",
    ),
    "states of its engine": (
        *("corrupted_requests_total", "watermark_requests_total", "admission_rejections_total"),
    ),
    "sleep mode, weights that change, and work of a GPU": (
        *("sleep_mode_operation_duration_seconds", "rl_weight_update_operation_duration_seconds"),
        *("estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total"),
        "estimated_write_bytes_per_gpu_total",
    ),
}


def missing_metrics() -> str:
    """Return the table of vLLM's metrics that a server lacks."""
    rows = [
        [reason, ", ".join(f"`{name}`" for name in names)]
        for reason, names in _MISSING_METRICS.items()
    ]
    return table(["about", "missing metrics of vLLM 0.33.0, `vllm:…`"], rows)


def manifest() -> str:
    """Return the page of the manifest's fields, from its schema."""
    schema = json.loads(SCHEMA.read_bytes())
    rows = [[f"`{name}`", kind, text] for name, kind, text in fields(schema, schema, "")]
    return (
        f"# Manifest\n\n`manifest.json` of a package ({schema['title']}). {schema['description']} "
        "`qeff-zoo inspect PACKAGE --json` prints it; qeff_zoo/package/package.schema.json is the JSON schema.\n\n"
        f"{table(['field', 'type', 'content'], rows)}\n"
    )


def fields(
    schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the path, type and description of each property of an object, depth first; `*` is any other name.

    Args:
        schema: Schema of the object.
        root: Whole schema, which has `$defs`.
        prefix: Path of the object, empty or with a dot at its end.
    """
    rest = schema.get("additionalProperties")
    others = {"*": rest} if isinstance(rest, Mapping) and "$ref" in rest else {}
    for name, found in {**schema.get("properties", {}), **others}.items():
        part = _resolved(found, root)
        path, kind = (
            f"{prefix}{name}",
            part.get("type", "constant" if "const" in part else "one of several"),
        )
        yield path, kind if isinstance(kind, str) else " or ".join(kind), _described(part)
        yield from fields(part, root, f"{path}.")
        if isinstance(items := part.get("items"), Mapping):
            yield from fields(_resolved(items, root), root, f"{path}[].")


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**root["$defs"][name], **schema} if name else schema


def _described(schema: Mapping[str, Any]) -> str:
    text: str = schema.get("description", "")
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    words = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "; ".join(filter(None, [text, ", ".join(f"`{word}`" for word in words)]))
