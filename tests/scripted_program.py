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
from qeff_zoo.package import Package
from qeff_zoo.runtime.program import Array, Program

TEMPLATE = "{{ bos_token }}" + TEMPLATES["hermes"]
#: Context length of the program; it computes nothing, so length is free.
CTX_LEN = 8192
_USER, _ASSISTANT, _TOOL, _END = "<|user|>\n", "<|assistant|>\n", "<|tool|>\n", "<|end_of_turn|>\n"
_STEP = re.compile(r"^(?:call|say) .*$", re.MULTILINE)
_CALL = re.compile(r"call (\w+) (.*)")


def following(prompt: str) -> str:
    """Return the output for a prompt: the step after the last tool result.

    Args:
        prompt: Rendered chat.
    """
    plan, *turns = prompt.rpartition(_USER)[2].split(_END)
    results = [turn.removeprefix(_TOOL) for turn in turns if turn.startswith(_TOOL)]
    last, done = (results or ["nothing"])[-1], 0
    for step in _STEP.findall(plan):
        calls = [_CALL.fullmatch(one) for one in step.split(" & ")]
        if done == len(results):
            return _written(step, calls, last)
        done += len(calls)
    return f"The result is {last}."


def _written(step: str, calls: Sequence[re.Match[str] | None], result: str) -> str:
    if step.startswith("say "):
        return step.removeprefix("say ").replace("RESULT", result)
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
    """

    memory = None

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self._end = self._tokenizer.token_to_id(settings["eos_token"])
        self._tokens: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    @property
    def specializations(self) -> list[dict[str, Any]]:
        """Specializations of the package, with a longer context."""
        longer = {"ctx_len": str(CTX_LEN)}
        return [
            {**one, "symbols": {**one["symbols"], **longer}}
            for one in self._program.specializations
        ]

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Return logits with one maximum for each batch slot."""
        shape = (len(rows), 1, int(self._program.outputs["logits"].shape[-1]))
        logits = np.zeros(shape, np.float32)
        for place, row in enumerate(rows):
            new = inputs["position_ids"][place] >= 0
            start = int(inputs["position_ids"][place][0])
            known = self._tokens.get(row, [])[:start]
            self._tokens[row] = known + inputs["input_ids"][place][new].tolist()
            logits[place, 0, self._next(self._tokens[row])] = 1000.0
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


def opening(package: Package) -> Any:
    """Return the opener of the program for `qeff_zoo.runtime.open_session`.

    Args:
        package: Package of examples/tiny-llama.
    """

    def opened(role: str, **_: Any) -> Any:
        program = targets.find(package.target).open(package, role, threads=1)
        return ScriptedProgram(program, package.path)

    return opened
