# SPDX-License-Identifier: Apache-2.0
r"""Names that follow from content: canonical JSON, its digests, and the keys made from them.

In: plans, configs and file lists as plain JSON values. Out: digests that are the same on every
machine, because no path, host name or time can enter. Anyone can recompute a package's key:

    (printf 'qz-build-1\0'; jq -cjS .spec manifest.json) | sha256sum
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

BUILD_DOMAIN = "qz-build-1"
PROGRAM_DOMAIN = "qz-program-1"
ARCH_DOMAIN = "qz-arch-1"
TREE_DOMAIN = "qz-tree-1"

_EXACT_INTEGERS = 2**53  # beyond it, JSON readers that use doubles disagree
_KEY_NAMED = re.compile(r"(?:qz1-)?([0-9a-f]{8,64})")  # what fewer digits begin is chance
_HOST_PATH = re.compile(r"[/~]|[A-Za-z]:[/\\]")

# What a config.json says about its origin, its training or sampling: the graph sees none of it.
_NOT_STRUCTURAL = """
_name_or_path _commit_hash _attn_implementation _attn_implementation_autoset transformers_version
torch_dtype dtype use_cache output_attentions output_hidden_states output_router_logits return_dict
initializer_range initializer_factor attention_dropout attention_probs_dropout_prob hidden_dropout
hidden_dropout_prob attn_pdrop embd_pdrop resid_pdrop classifier_dropout gradient_checkpointing
router_aux_loss_coef problem_type label2id task_specific_params finetuning_task unsloth_version
unsloth_fixed quantization_config do_sample temperature top_k top_p repetition_penalty max_length min_length num_beams
"""
# A decoder meets these in its inputs and its stop condition alone. Other models compute with them
# (RoBERTa's positions start after the padding id, CLIP pools at the EOS id), so there they stay.
_DECODER_TOKEN_IDS = """
bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id
"""


def canonical(value: Any) -> bytes:
    """Return the one byte string that stands for a JSON value.

    Keys are sorted, nothing is spaced, text is UTF-8. Members that are None, `{}` or `[]` are
    dropped, so that restating a default is no change; integral floats become integers. Floats that
    need an exponent become strings, because jq's versions print them differently.

    Args:
        value: Mappings with text keys, lists, tuples, text, numbers, booleans and None.

    Raises:
        ValueError: The value has NaN, infinities, integers beyond 2**53 or paths of this machine.
        TypeError: The value has any other type.

    Example:
        >>> canonical({"ctx_len": 4096.0, "batch_size": 1, "npi": None})
        b'{"batch_size":1,"ctx_len":4096}'
    """
    return _dump(_normal(value, "$"))


def _dump(value: Any, *, allow_nan: bool = False) -> bytes:
    separators = (",", ":")
    text = json.dumps(
        value, sort_keys=True, separators=separators, ensure_ascii=False, allow_nan=allow_nan
    )
    return text.encode()


def _normal(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _normal_text(value, where)
    if isinstance(value, int | float):
        return _normal_number(value, where)
    if isinstance(value, list | tuple):
        return [_normal(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        members = {_key(key, where): _normal(item, f"{where}.{key}") for key, item in value.items()}
        return {key: item for key, item in members.items() if item not in (None, {}, [])}
    raise TypeError(
        f"Cannot identify {where} = {value!r} of type {type(value).__name__}; expected a JSON "
        "value. Convert it before it enters the plan."
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return key
    raise TypeError(
        f"Cannot identify the key {key!r} of {where}; expected text. Convert it to a string."
    )


def _normal_text(value: str, where: str) -> str:
    if _HOST_PATH.match(value) or "\\" in value:
        raise ValueError(
            f"Cannot identify {where} = {value!r}: it looks like a path of this machine; expected "
            "a value that is the same everywhere. Use a digest of the file's content."
        )
    if "\x7f" in value:  # jq escapes it and Python does not
        raise ValueError(
            f"Cannot identify {where} = {value!r}: it holds a DEL character; expected printable "
            "text. Remove the character."
        )
    return value


def _normal_number(value: int | float, where: str) -> int | float | str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"Cannot identify {where} = {value!r}; expected a finite number. Leave the value out, "
            "or name it with a string."
        )
    if abs(value) < _EXACT_INTEGERS:
        whole = int(value)
        return whole if whole == value else _decimal(float(value))
    if isinstance(value, float):
        return repr(value)
    raise ValueError(
        f"Cannot identify {where} = {value!r}; expected an integer within 2**53. Write it as a "
        "string."
    )


def _decimal(value: float) -> float | str:
    text = repr(value)
    return text if "e" in text else value


def digest(value: Any, domain: str) -> str:
    """Hash a JSON value's canonical form, apart from equal values of other domains.

    Args:
        value: Argument of `canonical`.
        domain: Purpose of the digest, such as "qz-build-1".

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(domain.encode() + b"\0" + canonical(value)).hexdigest()


def build_key(spec: Mapping[str, Any]) -> str:
    """Name a package by everything that was chosen before it was built.

    Args:
        spec: The plan as JSON values.

    Returns:
        "qz1-" and 64 hexadecimal digits.
    """
    return "qz1-" + digest(spec, BUILD_DOMAIN)


def is_key(reference: str, key: str) -> bool:
    """Whether a reference is a build key: its first 8 hex digits or more, with `qz1-` or without.

    Args:
        reference: Reference as the user wrote it.
        key: A build key.
    """
    named = _KEY_NAMED.fullmatch(reference)
    return named is not None and key.removeprefix("qz1-").startswith(named[1])


def program_key(
    *, graph: str, tensors: str, flags: Mapping[str, Any], compiler: Mapping[str, Any]
) -> str:
    """Name a compiled program by what its compiler really read, known only after export.

    The key stays the same when transformers or a recipe moved and the graph did not, so that the
    compiled program can be used again.

    Args:
        graph: Digest of the graph, constants included.
        tensors: Digest of the exported weights.
        flags: Specializations and options given to the compiler.
        compiler: Name and version of the compiler.

    Returns:
        "qp1-" and 64 hexadecimal digits.
    """
    parts = {"graph": graph, "tensors": tensors, "flags": flags, "compiler": compiler}
    return "qp1-" + digest(parts, PROGRAM_DOMAIN)


def arch_digest(config: Mapping[str, Any], keep: Collection[str] = ()) -> str:
    """Digest the structure in a raw config.json, which fine-tunes of one model share.

    None is kept apart from absent: an absent `sliding_window` means 4096 to a Mistral config, and
    a null means none.

    Args:
        config: The content of config.json, not a config object with its defaults filled in.
        keep: Keys that matter to this architecture although they usually do not.

    Returns:
        64 hexadecimal digits.
    """
    ignored = set(_NOT_STRUCTURAL.split())
    names = [str(name) for name in config.get("architectures") or ()]
    if names and all(name.endswith("ForCausalLM") for name in names):
        ignored.update(_DECODER_TOKEN_IDS.split())
    structure = _structure(config, ignored.difference(keep))
    # Configs hold what plans may not: infinities (Mamba's time_step_limit), nulls, big numbers.
    return hashlib.sha256(
        ARCH_DOMAIN.encode() + b"\0" + _dump(structure, allow_nan=True)
    ).hexdigest()


def _structure(value: Any, ignored: Collection[str]) -> Any:
    if isinstance(value, Mapping):
        # A classifier's head has a row for each label; what the labels are called does not matter.
        return {
            str(key): len(item) if key == "id2label" and item else _structure(item, ignored)
            for key, item in value.items()
            if key not in ignored
        }
    if isinstance(value, list | tuple):
        return [_structure(item, ignored) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def tree_digest(files: Iterable[Mapping[str, Any]]) -> str:
    """Digest a folder's content as a whole, whatever the order of its files.

    Args:
        files: One mapping a file with `path`, `digest` and `size`.

    Returns:
        "sha256:" and 64 hexadecimal digits.
    """
    content = {file["path"]: [file["digest"], file["size"]] for file in files}
    return "sha256:" + digest(content, TREE_DOMAIN)
