# SPDX-License-Identifier: Apache-2.0
"""QEfficient's own session class, unmodified, on the stand-in of the card's runtime that our driver is tested on.

It shows that the stand-in takes calls as QEfficient makes them, and that our QPCs' names and shapes are what it
expects; of a card it shows nothing. QEfficient is on no package registry, and none of its code is here: the test runs
where QEFFICIENT_CLOUD_INFER is the path of its generation/cloud_infer.py, or QEfficient is installed.
"""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fixtures_qaic_runtime import LENGTH, PROMPTS, SIZES, rt
from toy_qpc import VOCAB, toy_answer, toy_package

__all__ = ["rt"]
VARIABLE = "QEFFICIENT_CLOUD_INFER"
WIDTH, CONTEXT = 8, 64
STATES = ("past_key.0", "recurrent_state.1")


def cloud_infer() -> Path | None:
    """Find QEfficient's module, without importing QEfficient."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    spec = importlib.util.find_spec("QEfficient")
    folders = (spec and spec.submodule_search_locations) or []
    found = (Path(folder) / "generation" / "cloud_infer.py" for folder in folders)
    return next((path for path in found if path.is_file()), None)


pytestmark = pytest.mark.skipif(
    cloud_infer() is None,
    reason=f"QEfficient is not installed, and {VARIABLE} does not name its generation/cloud_infer.py",
)


@pytest.fixture
def module(rt: Any) -> ModuleType:
    """Import it, with the stand-in in place of the SDK."""
    path = cloud_infer()
    assert path is not None
    spec = importlib.util.spec_from_file_location("qefficient_cloud_infer", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def qpc(folder: Path, *, states: str = "float16", **sizes: Any) -> Path:
    """Make a stub QPC of the toy, whose states are listed; return its folder."""
    precise = {f"{state}{end}": states for state in STATES for end in ("", "_RetainedState")}
    options = {"split-retained-state-io": True, "aic-num-cores": 8}
    package = toy_package(folder, sizes=sizes, custom_io=precise, options=options)
    return package.path / package.programs[0].path


def call(tokens: Sequence[int], start: int, width: int, row: int | None) -> dict[str, Any]:
    """Make the inputs of a call for one row, padded on the right."""
    ids, positions = np.zeros((1, width), np.int64), np.full((1, width), -1, np.int64)
    ids[0, : len(tokens)] = tokens
    positions[0, : len(tokens)] = np.arange(start, start + len(tokens))
    slots = {} if row is None else {"batch_index": np.array([[row]], np.int64)}
    return {"input_ids": ids, "position_ids": positions, **slots}


def chunks(prompt: Sequence[int], row: int | None) -> list[dict[str, Any]]:
    return [
        call(prompt[start : start + WIDTH], start, WIDTH, row)
        for start in range(0, len(prompt), WIDTH)
    ]


def states_of(session: Any) -> list[str]:
    return [
        name
        for name in [*session.input_names, *session.output_names]
        if name.startswith(STATES) or name.endswith("_RetainedState")
    ]


@pytest.mark.parametrize("slots", [False, True], ids=["row", "slots"])
def test_session_of_one_qpc_generates_the_tokens_of_the_model(
    slots: bool, module: ModuleType, tmp_path: Path
) -> None:
    sizes = SIZES["slots"] if slots else SIZES["one row"]
    session = module.QAICInferenceSession(qpc(tmp_path / "p", **sizes), device_ids=[0])
    session.skip_buffers(states_of(session))
    session.set_buffers({"logits": np.zeros((1, 1, VOCAB), np.float32)})
    rows = sizes.get("full_batch_size", 1)
    for number, prompt in enumerate(PROMPTS):
        row = number % rows if slots else None
        for inputs in chunks(prompt, row):
            logits = session.run(inputs)["logits"]
        tokens = [int(logits[0, 0].argmax())]
        if slots:  # the other slots stay idle
            session.set_buffers({"logits": np.zeros((rows, 1, VOCAB), np.float32)})
        while len(tokens) < LENGTH:
            inputs = call(tokens[-1:], len(prompt) + len(tokens) - 1, 1, row)
            if slots:
                wide = {name: np.full((rows, 1), -1, np.int64) for name in inputs}
                wide["input_ids"][:], wide["batch_index"][:, 0] = 0, range(rows)
                for name, array in inputs.items():
                    wide[name][row] = array[0]
                inputs = wide
            tokens.append(int(session.run(inputs)["logits"][row or 0, 0].argmax()))
        assert tokens == toy_answer(prompt, LENGTH)
        session.set_buffers({"logits": np.zeros((1, 1, VOCAB), np.float32)})
    session.deactivate()


def test_session_hands_over_from_a_prefill_qpc_to_a_decode_qpc(
    module: ModuleType, tmp_path: Path
) -> None:
    """By its own slices, in one slot: it refuses those of one of several, which its examples make."""
    prefill, decode = (
        module.QAICInferenceSession(
            qpc(tmp_path / half, batch_size=1, **{half: True}),
            device_ids=[0],
            kv_dma_share=True,
            cluster_id=half.removesuffix("_only"),
        )
        for half in ("prefill_only", "decode_only")
    )
    names = [name for name, _ in decode.decode_buff_map]
    assert names == [name for name, _ in prefill.decode_rs_full_buff_map] == [*STATES]
    kept = [np.zeros(shape, kind) for shape, kind in decode.kv_cache_info]
    for prompt in PROMPTS:
        *first, last = chunks(prompt, None)
        for inputs in first:
            prefill.complete_inf(prefill.np_run(inputs), is_prefill=True)
        index = prefill.np_run_pipeline(last, last_chunk=True, kv_cache_buffers=kept)
        prefill.complete_inf(index, is_prefill=True)
        tokens = [int(prefill.get_outputs(index)["logits"][0, 0].argmax())]
        while len(tokens) < LENGTH:
            inputs = call(tokens[-1:], len(prompt) + len(tokens) - 1, 1, None)
            given = dict(zip(names, [one.copy() for one in kept], strict=True))
            decode.set_data_for_kv_handoff(
                kept, [("batch_index", 0), ("ctx_start", 0)], 0, decode.decode_rs_kv_only_buff_map
            )
            index = decode.np_run({**inputs, **given}, is_prefill=False)
            decode.complete_inf(index, is_prefill=False)
            tokens.append(int(decode.get_outputs(index)["logits"][0, 0].argmax()))
        assert tokens == toy_answer(prompt, LENGTH)
