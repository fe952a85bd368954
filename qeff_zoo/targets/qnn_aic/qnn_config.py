# SPDX-License-Identifier: Apache-2.0
"""Content of `--qnn-config`: more arguments of QNN's two tools, and values of its compiler.

In: its text. Out: arguments for each tool, and keys of the backend's file; or its unsupported entries. A user cannot
override the options that a build sets, since the manifest would then differ from the compiled program.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.package.option import flag_of
from qeff_zoo.targets.qnn_aic.options import SPELLED

CONVERTER, GENERATOR = "converter_args_extension", "context_binary_generator_args_extension"
BACKEND, SKIP = "qnn_compilation_backend", "SKIP_QNN_CONVERTER_STEP"
#: By key, the arguments that a build gives; those of QEfficient's list first.
IMMUTABLE: Mapping[str, tuple[str, ...]] = {
    CONVERTER: (
        *("--input_network", "--output_path", "--config", "--float_bias_bitwidth"),
        *("--float_bitwidth", "--preserve_io_datatype", "--onnx_skip_simplification"),
        "--target_backend",
    ),
    GENERATOR: (
        *("--binary_file", "--backend_binary", "--output_dir", "--backend", "--model"),
        *("--dlc_path", "--config_file", "--data_format_config"),
    ),
}
#: Keys of the backend's file that follow from the plan.
_WRITTEN = (
    *("graph_names", "compiler_retained_state", "compiler_convert_to_FP16"),
    "compiler_mdp_load_partition_config",
)
#: Choices that a manifest or the runtime reads.
_CHOSEN = ("mxfp6_matmul", "num_cores")
_LONGEST = 1000  # characters of one text in an index of packages


@dataclass(frozen=True, kw_only=True)
class QnnConfig:
    """Content of a file.

    Args:
        converter: Words for qairt-converter.
        generator: Words for qnn-context-binary-generator.
        backend: Keys of the backend's file.
    """

    converter: tuple[str, ...] = ()
    generator: tuple[str, ...] = ()
    backend: Mapping[str, Any] = field(default_factory=dict)


def read(options: Mapping[str, Any]) -> QnnConfig:
    """Read the file among the options of a target, for which there are no `problems`."""
    config = json.loads(options.get("qnn_config", "{}"))
    return QnnConfig(
        converter=tuple(shlex.split(config.get(CONVERTER, ""))),
        generator=tuple(shlex.split(config.get(GENERATOR, ""))),
        backend=config.get(BACKEND, {}),
    )


def problems(options: Mapping[str, Any]) -> list[str]:
    """List the unsupported entries of a file, one sentence each.

    Args:
        options: Options of the target, by name.
    """
    text = options.get("qnn_config", "{}")
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        return [f"--qnn-config is {text!r:.100}, expected the text of a JSON object. Correct it."]
    if len(text) > _LONGEST or not text.isprintable() or "\\" in text:
        return [
            f"--qnn-config holds {len(text)} characters; expected at most {_LONGEST}, all printable, and neither "
            "quotes nor backslashes within a value. Shorten it."
        ]
    return [f"--qnn-config: {problem}" for problem in _problems(config, options)]


def _problems(config: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if key in IMMUTABLE and isinstance(value, str):
            yield from _of_words(key, value)
        elif key == BACKEND and isinstance(value, dict):
            yield from _of_backend(value, options)
        elif key == SKIP and isinstance(value, bool):
            if value:
                yield f"{SKIP} is true, but a package is compiled from its own graph. Leave it out."
        else:
            yield (
                f"{key!r} is {value!r}; expected texts for {CONVERTER} and {GENERATOR}, an object for {BACKEND}, true "
                f"or false for {SKIP}. Correct it."
            )


def _of_words(key: str, text: str) -> Iterator[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        yield f"{key} is {text!r}: {error}; expected words as for a shell. Correct it."
        return
    for word in words:
        name, _, value = word.partition("=")
        # The tools also take the beginning of a name.
        if same := [one for one in IMMUTABLE[key] if len(name) > 2 and one.startswith(name)]:
            yield f"{key} has {name!r}, but {same[0]} follows from the other choices. Leave it out."
        elif re.match("-[A-Za-z]", name):
            yield f"{key} has {word!r}; expected arguments by their long names. Write it so."
        yield from _of_paths(key, value or word)


def _of_backend(config: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        name = SPELLED.get(key, "")
        if key in _WRITTEN:
            yield f"{key} follows from the other choices. Leave it out."
        elif name in _CHOSEN or name in options:
            yield f"{key} is a choice of its own. Use {flag_of(name)}."
        elif not isinstance(value, bool | int | str):
            yield f"{key} is {value!r}; expected a text, a whole number, true or false. Correct it."
        else:
            yield from _of_paths(key, value)


def _of_paths(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and re.match("[/~]", value):
        yield (
            f"{key} has {value!r}, a path of this machine, which a package cannot hold. Expected what means the same "
            "everywhere. Leave it out."
        )
