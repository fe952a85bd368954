# SPDX-License-Identifier: Apache-2.0
"""A program that follows the plan in the user's message, for agents that need a model which calls tools.

A plan has one step a line: `call NAME {ARGUMENTS}`, several such calls joined by ` & `, or `say TEXT`. `RESULT` stands
for the last tool result. The step after the last result is generated; after the last step, the last result is.
Chats are rendered by `chat_templates.TEMPLATES["hermes"]`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chat_templates import TEMPLATES
from tokenizers import Tokenizer

from qeff_zoo import targets
from qeff_zoo.graph.states import State
from qeff_zoo.package import Package
from qeff_zoo.runtime.program import Array, Memory, Program
from qeff_zoo.targets.base import OpenOptions

TEMPLATE = "{{ bos_token }}" + TEMPLATES["hermes"]
#: Context length of the program; it computes nothing, so length is free.
CTX_LEN = 8192
#: State of the program: the tokens so far, which the prefix cache saves and restores.
_TOKENS = State(name="tokens", kind="growing", layer=0, axes=("batch_size", 1, "ctx_len", 1))
_USER, _ASSISTANT, _TOOL, _END = "<|user|>\n", "<|assistant|>\n", "<|tool|>\n", "<|end_of_turn|>\n"
_STEP = re.compile(r"^(?:call|say) .*$", re.MULTILINE)
_CALL = re.compile(r"call ([\w.-]+) (.*)")


def following(prompt: str) -> str:
    """Return the output for a prompt: the step after the last tool result.

    Args:
        prompt: Rendered chat.
    """
    turns = prompt.split(_END)
    plans = [at for at, turn in enumerate(turns) if _USER in turn and _STEP.search(turn)]
    start = plans[-1] if plans else len(turns) - 1
    plan = turns[start].rpartition(_USER)[2]
    results = [turn.removeprefix(_TOOL) for turn in turns[start:] if turn.startswith(_TOOL)]
    last, done = (results or ["nothing"])[-1], 0
    for step in _STEP.findall(plan):
        calls = [_CALL.fullmatch(one) for one in step.split(" & ")]
        if done == len(results):
            return _written(step, calls, last)
        done += len(calls)
    return f"The result is {last}."


def _written(step: str, calls: Sequence[re.Match[str] | None], result: str) -> str:
    if step.startswith("say "):
        return step.removeprefix("say ").replace("\\n", "\n").replace("RESULT", result)
    return "\n".join(
        f'<tool_call>\n{{"name": "{call[1]}", "arguments": {call[2].replace("RESULT", result)}}}\n</tool_call>'
        for call in calls
        if call
    )


class ScriptedProgram:
    """Program whose logits select the next token of `following`, of a package of examples/tiny-llama.

    Args:
        program: Program of the package, which is never run.
        folder: Folder of the package.
        ctx_len: Context length.
        prefill_seq_len: Maximum number of tokens of a call; None for the package's.
    """

    states = (_TOKENS,)

    def __init__(
        self, program: Program, folder: Path, ctx_len: int, prefill_seq_len: int | None
    ) -> None:
        self._program = program
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self._end = int(self._tokenizer.token_to_id(settings["eos_token"]) or 0)
        lengths = {"ctx_len": str(ctx_len)}
        longer = {"seq_len": str(prefill_seq_len)} if prefill_seq_len else {}
        #: Specializations of the package, with other lengths.
        self.specializations = [
            {
                **specialization,
                "symbols": {
                    **specialization["symbols"],
                    **lengths,
                    **(longer if is_prefill else {}),
                },
            }
            for specialization in program.specializations
            for is_prefill in [specialization["name"].startswith("Prefill")]
        ]
        slots = max(
            int(specialization["symbols"]["batch_size"]) for specialization in self.specializations
        )
        self.memory = Memory({_TOKENS.name: np.zeros((slots, 1, ctx_len, 1), np.float32)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Return logits with one maximum for each batch slot."""
        shape = (len(rows), 1, int(self._program.outputs["logits"].shape[-1]))
        logits = np.zeros(shape, np.float32)
        for place, row in enumerate(rows):
            new = inputs["position_ids"][place] >= 0
            start = int(inputs["position_ids"][place][0])
            known = self.memory[_TOKENS.name][row, 0, :, 0]
            end = start + int(new.sum())
            known[start:end] = inputs["input_ids"][place][new]
            logits[place, 0, self._next(known[:end].astype(int).tolist())] = 1000.0
        return {"logits": logits}

    def _next(self, tokens: Sequence[int]) -> int:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        prompt, marker, generated = text.rpartition(_ASSISTANT)
        output = following(prompt + marker)
        rest = output.removeprefix(generated) if output.startswith(generated) else ""
        return (
            int(self._tokenizer.encode(rest, add_special_tokens=False).ids[0])
            if rest
            else self._end
        )


def opening(package: Package, *, ctx_len: int = CTX_LEN, prefill_seq_len: int | None = None) -> Any:
    """Return the opener of the program for `qeff_zoo.sessions.open_session`.

    Args:
        package: Package of examples/tiny-llama.
        ctx_len: Context length, for agents with long system prompts.
        prefill_seq_len: Maximum number of tokens of a call; None for the package's.
    """

    def opened(role: str, _: OpenOptions) -> Any:
        program = targets.find(package.target).open(package, role, OpenOptions(threads=1))
        return ScriptedProgram(program, package.path, ctx_len, prefill_seq_len)

    return opened
