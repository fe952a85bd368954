# SPDX-License-Identifier: Apache-2.0
import copy
import json
import math
import shutil
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from package_builder import SPEC

from qeff_zoo.package.identity import (
    arch_digest,
    build_key,
    canonical,
    digest,
    is_key,
    program_key,
    tree_digest,
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "rope_theta": 500000.0,
    "sliding_window": None,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "_name_or_path": "/home/someone/llama",
}
PROGRAM: dict[str, Any] = {
    "graph": "sha256:" + "8" * 64,
    "tensors": "sha256:" + "9" * 64,
    "flags": {"mxfp6_matmul": True},
    "compiler": {"name": "onnxruntime", "version": "1.31.0"},
}

words = st.text(st.characters(codec="utf-8", exclude_characters="\x7f\\"), max_size=6).filter(
    lambda text: not text.startswith(("/", "~")) and text[1:2] != ":"
)
numbers = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), words, numbers),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
specs = st.dictionaries(words, values, max_size=5)
few = settings(max_examples=40)


# A change here takes its name from every package in every store and hub. Give the domain a new
# number and the key a new prefix instead.
def test_golden_build_key() -> None:
    expected = "qz1-1be4cee3dc46d3bdaa29f42c0e5d1e1704622c8abc54d66f0c6d6088a68b9af2"
    assert build_key(SPEC) == expected


def test_golden_program_key() -> None:
    expected = "qp1-160e21da10880811c4a5a0dd89cb6da9b88a61d7c0da69275aa21b3b343d4a51"
    assert program_key(**PROGRAM) == expected


def test_golden_arch_digest() -> None:
    expected = "91b08d4a7665440a1d5148ca714b9f1d93d63b75eb474621ca53778dad00a566"
    assert arch_digest(CONFIG) == expected


def test_golden_tree_digest() -> None:
    files = [
        {"path": "b", "digest": "sha256:1", "size": 3},
        {"path": "a", "digest": "x", "size": 0},
    ]
    expected = "sha256:76bb1fd4c94fd0ef1304f5ae4e2816960b3f9999826d7d62d40f1353291640a0"
    assert tree_digest(files) == expected
    assert tree_digest(reversed(files)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        ({"a": None, "b": {}, "c": [], "d": {"e": None}}, b"{}"),
        ({"a": False, "b": 0, "c": ""}, b'{"a":false,"b":0,"c":""}'),
        ([None, [], {}, {"a": None}], b"[null,[],{},{}]"),
        ((1, 2.0, -0.0, 0.1), b"[1,2,0,0.1]"),
        ([1e-5, 1e300], b'["1e-05","1e+300"]'),
        ("é\n", b'"\xc3\xa9\\n"'),
    ],
)
def test_canonical_form(value: Any, expected: bytes) -> None:
    assert canonical(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "finite"),
        (math.inf, "finite"),
        (-math.inf, "finite"),
        (2**53, "2\\*\\*53"),
        (10**400, "2\\*\\*53"),
        ("/home/a/npi.yaml", "path of this machine"),
        ("~/npi.yaml", "path of this machine"),
        ("C:/npi.yaml", "path of this machine"),
        ("a\\b", "path of this machine"),
        ("a\x7f", "DEL"),
    ],
)
def test_what_has_no_identity_is_refused_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)\$\.build\.flags\[1\] = .*{reason}"):
        canonical({"build": {"flags": [0, value]}})


@pytest.mark.parametrize("value", [b"x", {1}, object(), {1: 2}])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        canonical({"a": value})


@few
@given(specs, st.randoms())
def test_order_of_keys_is_no_matter(spec: dict[str, Any], random: Any) -> None:
    assert canonical(_shuffled(spec, random)) == canonical(spec)


@few
@given(specs)
def test_canonical_form_survives_json(spec: dict[str, Any]) -> None:
    form = canonical(spec)
    assert canonical(json.loads(form)) == form
    assert canonical(json.loads(json.dumps(spec, indent=3))) == form


@few
@given(specs, words, st.sampled_from([None, {}, [], {"a": None}]))
def test_restating_a_default_is_no_change(spec: dict[str, Any], key: str, empty: Any) -> None:
    assert build_key({key: empty, **spec}) == build_key(spec)


@few
@given(specs, specs)
def test_equal_keys_mean_equal_specs(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (build_key(a) == build_key(b)) == (canonical(a) == canonical(b))


def test_domains_keep_equal_values_apart() -> None:
    assert digest({"a": 1}, "one") != digest({"a": 1}, "two")


def test_integral_floats_are_integers() -> None:
    spec = copy.deepcopy(SPEC)
    spec["shape"]["ctx_len"] = 4096.0
    assert build_key(spec) == build_key(SPEC)


@pytest.mark.parametrize("field", ["recipe", "shape", "target", "toolchain", "sources"])
def test_every_part_of_a_plan_counts(field: str) -> None:
    assert build_key({**SPEC, field: {"other": 1}}) != build_key(SPEC)


def test_order_of_a_list_counts() -> None:
    spec = copy.deepcopy(SPEC)
    spec["recipe"]["transforms"].reverse()
    assert build_key(spec) != build_key(SPEC)


@pytest.mark.parametrize("part", list(PROGRAM))
def test_every_part_of_a_program_counts(part: str) -> None:
    other: Any = "sha256:" + "7" * 64 if isinstance(PROGRAM[part], str) else {"x": 1}
    assert program_key(**{**PROGRAM, part: other}) != program_key(**PROGRAM)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_key_can_be_recomputed_with_jq() -> None:
    spec = {**SPEC, "eps": 1e-5, "ratio": 0.125, "text": 'naïve ± 日本\n\t"q"', "n": 2**53 - 1}
    manifest = json.dumps({"spec": json.loads(canonical(spec))}, indent=1)
    command = r"(printf 'qz-build-1\0'; jq -cjS .spec) | sha256sum"
    result = subprocess.run(command, shell=True, input=manifest.encode(), capture_output=True)
    assert "qz1-" + result.stdout.decode()[:64] == build_key(spec)


def test_key_can_be_recomputed_without_us() -> None:
    import hashlib

    form = json.dumps(SPEC, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert "qz1-" + hashlib.sha256(b"qz-build-1\0" + form.encode()).hexdigest() == build_key(SPEC)


@pytest.mark.parametrize(
    "change",
    [
        {"_name_or_path": "another"},
        {"torch_dtype": "float16", "dtype": "float32"},
        {"transformers_version": "5.23.0"},
        {"eos_token_id": [128001, 128008, 128009], "pad_token_id": 0},
        {"rope_theta": 500000},
        {"use_cache": False, "attention_dropout": 0.1, "unsloth_version": "2026.1"},
    ],
)
def test_fine_tunes_share_their_architecture(change: dict[str, Any]) -> None:
    assert arch_digest({**CONFIG, **change}) == arch_digest(CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 8192},
        {"sliding_window": 4096},
        {"rope_scaling": {"rope_type": "llama3"}},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"time_step_limit": [0.0, math.inf]},
        {"layer_types": []},
    ],
)
def test_structure_counts(change: dict[str, Any]) -> None:
    assert arch_digest({**CONFIG, **change}) != arch_digest(CONFIG)


def test_a_null_is_not_a_default() -> None:
    absent = {key: value for key, value in CONFIG.items() if key != "sliding_window"}
    assert arch_digest(absent) != arch_digest(CONFIG)


def test_token_ids_count_where_they_are_computed_with() -> None:
    clip = {"architectures": ["CLIPModel"], "text_config": {"eos_token_id": 2, "dtype": "float16"}}
    other = {"architectures": ["CLIPModel"], "text_config": {"eos_token_id": 49407}}
    assert arch_digest(clip) != arch_digest(other)
    assert arch_digest(CONFIG, keep=["eos_token_id"]) != arch_digest(
        {**CONFIG, "eos_token_id": 2}, keep=["eos_token_id"]
    )


def test_number_of_labels_counts_and_their_names_do_not() -> None:
    base = {"architectures": ["BertForSequenceClassification"]}
    two = arch_digest({**base, "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0}})
    assert two == arch_digest({**base, "id2label": {"0": "A", "1": "B"}})
    assert two != arch_digest({**base, "id2label": {"0": "A", "1": "B", "2": "C"}})


def test_import_is_light() -> None:
    code = "import sys, qeff_zoo.package.identity; print([m for m in sys.modules if '.' not in m])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert {"torch", "transformers", "jsonschema", "numpy"}.isdisjoint(eval(result.stdout))


def _shuffled(value: Any, random: Any) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: _shuffled(value[key], random) for key in keys}
    return [_shuffled(item, random) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("qz1-" + "0123456789abcdef" * 4, True),
        ("0123456789abcdef" * 4, True),
        ("qz1-01234567", True),
        ("01234567", True),
        ("0123456", False),
        ("qz1-0123456", False),
        ("q", False),
        ("", False),
        ("qz1-", False),
        ("12345678", False),
        ("01234567 ", False),
        ("01234567\n", False),
        ("QZ1-01234567", False),
    ],
)
def test_a_key_is_named_by_enough_of_its_digits(reference: str, named: bool) -> None:
    assert is_key(reference, "qz1-" + "0123456789abcdef" * 4) == named
