# SPDX-License-Identifier: Apache-2.0
"""Damage to the files of a package: stored weights, tokenizer, chat template, settings."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

WEIGHTS, TOKENIZER, TEMPLATE = "weights.safetensors", "tokenizer.json", "chat_template.jinja"
GENERATION = "generation_config.json"
_ROWS = 16

#: Changes a folder in place; each file of it may be a link to another package's.
FileDamage = Callable[[Path], None]


def _rewrite(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # it is a link
    path.write_bytes(content)


# --- weights ----------------------------------------------------------------------------------------


def header_of(path: Path) -> tuple[dict[str, Any], int]:
    """Return the tensors of a safetensors file, and the first byte of their data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def _rows(
    name: str, change: Callable[[list[bytes]], list[bytes]], first: int, count: int
) -> FileDamage:
    """Change some rows of a tensor, given as bytes."""

    def damage(folder: Path) -> None:
        path = folder / WEIGHTS
        header, data = header_of(path)
        start, stop = header[name]["data_offsets"]
        size = (stop - start) // header[name]["shape"][0]
        content = bytearray(path.read_bytes())
        begin = data + start + first * size
        rows = [bytes(content[begin + at * size : begin + (at + 1) * size]) for at in range(count)]
        content[begin : begin + count * size] = b"".join(change(rows))
        _rewrite(path, bytes(content))

    return damage


def _zeroed(rows: list[bytes]) -> list[bytes]:
    return [bytes(len(row)) for row in rows]


def _flipped(rows: list[bytes]) -> list[bytes]:
    """Change one bit of the first row: the lowest of a value, but one that is large enough in half of all bytes."""
    return [bytes([rows[0][0] ^ 0x04]) + rows[0][1:], *rows[1:]]


def weight_faults(names: Collection[str], config: Mapping[str, Any]) -> dict[str, FileDamage]:
    """Return damage to the weight file, by its words; what the model does not have is left out.

    Args:
        names: Of the tensors in the file.
        config: Of the text model.
    """
    table = next(
        name
        for name in (
            "model.embed_tokens.weight",
            "lm_head.weight",
            "model.embed_tokens.weight.bits8",
        )
        if name in names
    )
    scales = f"{table}.scales" if f"{table}.scales" in names else table
    middle = config["vocab_size"] // 2
    found = {
        f"{_ROWS} rows of the embedding zeroed": _rows(scales, _zeroed, middle, _ROWS),
        "two rows of the embedding exchanged": both(
            *(_rows(one, lambda rows: rows[::-1], middle, 2) for one in {table, scales})
        ),
        "one bit of the embedding": _rows(table, _flipped, middle, 1),
    }
    layers = [name for name in sorted(names) if re.search(r"\.layers\.\d+\..*_proj", name)]
    if layers:  # of a checkpoint with several files, a tensor of the last one
        last = max(layers, key=lambda name: int(name.partition(".layers.")[2].split(".")[0]))
        found["one bit of the last layer"] = _rows(last, _flipped, 0, 1)
    experts = [name for name in sorted(names) if ".experts." in name and name.endswith(".scales")]
    if experts:
        down = next(expert for expert in experts if ".down_proj" in expert)
        found["one row of an expert x0"] = _rows(down, _zeroed, 0, 1)
        other = down.replace(".0.scales", ".1.scales")
        found["scales of two experts exchanged"] = (
            _rows(down, lambda rows: rows[::-1], 0, 2) if other == down else _exchanged(down, other)
        )
    return found


def _exchanged(first: str, second: str) -> FileDamage:
    def damage(folder: Path) -> None:
        path = folder / WEIGHTS
        header, data = header_of(path)
        content = bytearray(path.read_bytes())
        one, other = (
            slice(data + start, data + stop)
            for start, stop in (header[name]["data_offsets"] for name in (first, second))
        )
        content[one], content[other] = content[other], content[one]
        _rewrite(path, bytes(content))

    return damage


def both(*damages: FileDamage) -> FileDamage:
    """Do several things to one folder."""

    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


# --- text and settings --------------------------------------------------------------------------------


def _edited(name: str, change: Callable[[Any], Any]) -> FileDamage:
    """Change a JSON file."""

    def damage(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_bytes())
        changed = change(content)
        content = content if changed is None else changed
        _rewrite(path, json.dumps(content).encode())

    return damage


def _last_merge(content: Any) -> None:
    del content["model"]["merges"][-1]


def _two_merges(content: Any) -> None:
    merges = content["model"]["merges"]
    merges[-2:] = merges[:-3:-1]


def _two_entries(content: Any) -> None:
    vocab = content["model"]["vocab"]
    if isinstance(vocab, list):
        vocab[-1][1], vocab[-2][1] = vocab[-2][1], vocab[-1][1]
        return
    *_, one, other = vocab
    vocab[one], vocab[other] = vocab[other], vocab[one]


def _flag(content: Any) -> None:
    content["added_tokens"][-1]["special"] ^= True


def _fewer_tokens(content: Any) -> None:
    del content["added_tokens"][-1]


def _other(part: str, kind: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        content[part] = None if content.get(part) else {"type": kind}

    return change


def _another_end(content: Any) -> None:
    ends = content.get("eos_token_id")
    content["eos_token_id"] = [*(ends if isinstance(ends, list) else [ends or 0]), 5]


def _another_penalty(content: Any) -> None:
    content["repetition_penalty"] = 1.05 * content.get("repetition_penalty", 1.0)


def _written(old: str, new: str) -> FileDamage:
    """Replace a text of the chat template everywhere."""

    def damage(folder: Path) -> None:
        path = folder / TEMPLATE
        _rewrite(path, path.read_text(encoding="utf-8").replace(old, new).encode())

    return damage


def _templates(text: str) -> dict[str, FileDamage]:
    """Return damage to a chat template, by its words; what the template does not have is left out."""
    changes = {
        "chat template without tools": ("tools", "no_tools"),
        "chat template with another role": ("assistant", "model"),
        "chat template that writes no prompt for an answer": ("add_generation_prompt", "nothing"),
        "chat template that skips the last message": ("in messages", "in messages[:-1]"),
        "chat template with blanks after contents": ("content']", "content'] ~ ' '"),
        "chat template without the first token": ("bos_token", "nothing"),
    }
    return {words: _written(*change) for words, change in changes.items() if change[0] in text}


def text_faults(folder: Path) -> dict[str, FileDamage]:
    """Return damage to the tokenizer, the chat template and the settings, by its words.

    Args:
        folder: Of the right package; what it does not have is left out.
    """
    found: dict[str, FileDamage] = {}
    if (folder / TOKENIZER).is_file():
        content = json.loads((folder / TOKENIZER).read_bytes())
        changes: dict[str, Callable[[Any], None]] = {
            "two entries of the vocabulary exchanged": _two_entries,
            "flag of an added token": _flag,
            "an added token missing": _fewer_tokens,
            "another normalizer": _other("normalizer", "NFKC"),
            "another pre-tokenizer": _other("pre_tokenizer", "Whitespace"),
            "another decoder": _other("decoder", "Fuse"),
        }
        if content.get("post_processor"):
            changes["no post-processor"] = _other("post_processor", "")
        if content["model"].get("merges"):
            changes["the last merge missing"] = _last_merge
            changes["two merges exchanged"] = _two_merges
        found |= {words: _edited(TOKENIZER, change) for words, change in changes.items()}
    if (folder / TEMPLATE).is_file():
        found |= _templates((folder / TEMPLATE).read_text(encoding="utf-8"))
    if (folder / GENERATION).is_file():
        found["generation_config.json missing"] = lambda place: (place / GENERATION).unlink()
        found["another token ends generation"] = _edited(GENERATION, _another_end)
        found["another repetition penalty"] = _edited(GENERATION, _another_penalty)
    return found
