# SPDX-License-Identifier: Apache-2.0
"""A tiny Whisper of random weights, whose windows have one second: made by transformers' own class, without network."""

import json
from pathlib import Path
from typing import Any

WORDS = 200
#: Special tokens by name, after the words; then one for each fiftieth of a second.
_SPECIAL = {
    name: WORDS + number
    for number, name in enumerate(
        (
            *("<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|en|>", "<|de|>"),
            *("<|translate|>", "<|transcribe|>", "<|notimestamps|>"),
        )
    )
}


def write(folder: Path) -> Path:
    """Write the checkpoint.

    Args:
        folder: Folder that does not exist yet.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import WhisperFeatureExtractor

    from qeff_zoo.registry import find_recipe
    from qeff_zoo.validation import tiny_models

    recipe = find_recipe("whisper")
    tiny_models.make(recipe, recipe.tiny[0], folder)
    end, start = _SPECIAL["<|endoftext|>"], _SPECIAL["<|startoftranscript|>"]
    tokens: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    tokens["decoder_start_token_id"] = start
    config = json.loads((folder / "config.json").read_text())
    _write_json(folder / "config.json", {**config, **tokens})
    generation = {
        **tokens,
        "prev_sot_token_id": _SPECIAL["<|startofprev|>"],
        "lang_to_id": {name: _SPECIAL[name] for name in ("<|en|>", "<|de|>")},
        "task_to_id": {name: _SPECIAL[f"<|{name}|>"] for name in ("translate", "transcribe")},
        "no_timestamps_token_id": _SPECIAL["<|notimestamps|>"],
        "is_multilingual": True,
        "max_initial_timestamp_index": 40,
        "suppress_tokens": [*_SPECIAL.values()][1:],
        "begin_suppress_tokens": [end],
        "max_length": 24,
    }
    _write_json(folder / "generation_config.json", generation)
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*_SPECIAL])
    times = config["vocab_size"] - WORDS - len(_SPECIAL)
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(times)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    bins = config["num_mel_bins"]
    WhisperFeatureExtractor(feature_size=bins, chunk_length=1).save_pretrained(folder)
    return folder


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
