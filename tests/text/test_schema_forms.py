# SPDX-License-Identifier: Apache-2.0
"""Schemas that the documentation counts: each is refused by name, or its answers are valid."""

import json
import sys
from typing import Any

import jsonschema
import pytest
from checkout import ROOT
from drawn_outputs import drawn

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import Grammar, TextGenerationSession

sys.path.insert(0, str(ROOT / "scripts"))
from documentation.schema_forms import REFUSED, SCHEMAS


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.sampled(30)
def test_answers_are_valid_by_schemas(name: str, alone: TextGenerationSession) -> None:
    schema: dict[str, Any] = SCHEMAS[name]
    if name in REFUSED:
        with pytest.raises(GenerationError, match="Cannot hold an answer"):
            alone.guides.check(Grammar.json(schema))
        return
    found = [drawn(alone, Grammar.json(schema), seed) for seed in range(6)]
    ended = [one for one in found if one is not None]
    for text in ended:
        jsonschema.validate(json.loads(text), schema)
    assert ended
