# SPDX-License-Identifier: Apache-2.0
"""Part of the reference: texts as sentence-transformers reads them where it is installed, by its prompts and lengths.

In: a checkpoint's folder, and transformers' model of it. Out, in JSON values: texts with prompts and kinds, each with
its token ids and the number of them that are a prompt; of a CrossEncoder pairs too, and scores of logits; for late
interaction the number of attended tokens, and the indices of compared tokens.

Only the reference process imports this.
"""

import importlib.metadata
import importlib.util
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from qeff_zoo import contract
from qeff_zoo.checkpoint.sentence_transformers.colbert import read_colbert, translated
from qeff_zoo.checkpoint.sentence_transformers.files import SETTINGS, files_of, reader_of

_TEXTS = (
    "a",
    "Hello World",
    "The harbour was quiet before the storm; fishermen pulled their boats up. " * 12,
    "naïve Ångström İstanbul ŒŸ ΣΑΣ",
    "天空很蓝。孩子们在河边放风筝。",
    string.punctuation,  # which late interaction skips
)
_SINGLE, _SCORES = "SentenceTransformer", "CrossEncoder"
_SPARSE, _SEVERAL = "SparseEncoder", "MultiVectorEncoder"
_FREE = "Represent this: "
_KINDS = (None, "query", "document")


def answer(request: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """Return how the library reads texts; None without it, for one that it did not save, or with another pooling.

    Args:
        request: Request with `checkpoint`, and `text` for a package with a tokenizer.
        model: transformers' model of the checkpoint.
    """
    folder = Path(request["checkpoint"])
    saved = all((folder / name).is_file() for name in (SETTINGS, "modules.json"))
    read = reader_of(files_of(folder))
    kind = translated(read)(SETTINGS).get("model_type") or _SINGLE
    if kind not in _kinds_of(request["task"]):
        return None
    if (
        not ((saved or read_colbert(read)) and request.get("text"))
        or "pooling" in request["settings"]
    ):
        return None
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    scored = kind == _SCORES
    opened = open_around(folder, model, kind)
    texts = [*_TEXTS, *(zip(_TEXTS, reversed(_TEXTS), strict=True) if scored else ())]
    prompts = [(None, None), (_FREE, None), ("", None), *((None, name) for name in opened.prompts)]
    return {
        "library": f"sentence-transformers {importlib.metadata.version('sentence-transformers')}",
        "reference": kind,
        "transformers": transformers.__version__,
        "read": [
            {"text": text, "kind": kind, "prompt": prompt, "prompt_name": name}
            | _read(opened, text, kind, opened._resolve_prompt(prompt, name))
            for text in texts
            for kind in (_KINDS[:1] if scored else _KINDS)
            for prompt, name in prompts
        ],
        **({"scores": _scores(opened)} if scored else {}),
    }


def _kinds_of(task: str) -> tuple[str, ...]:
    """Return the library's classes of models of a task."""
    if contract.scores_texts(task):
        return (_SCORES,)
    return (_SPARSE,) if task == contract.SPARSE_EMBEDDING else (_SINGLE, _SEVERAL)


def _scores(opened: Any) -> list[dict[str, Any]]:
    """Return logits, a number for each label, with the scores that a CrossEncoder makes of them."""
    logits = torch.linspace(-4, 4, 5 * opened.num_labels).reshape(opened.num_labels, 5).T
    scores = opened.activation_fn(logits)
    pairs = zip(logits.tolist(), scores.tolist(), strict=True)
    return [{"logits": one, "scores": other} for one, other in pairs]


def _read(opened: Any, text: str, kind: str | None, prompt: str | None) -> dict[str, Any]:
    """Return the tokens of a text, and how many of them a pooling leaves out."""
    tokens = opened.preprocess([text], prompt=prompt, **({"task": kind} if kind else {}))
    left_out = any(getattr(module, "include_prompt", True) is False for module in opened)
    skipped = int(tokens.get("prompt_length") or 0) if left_out else 0
    ids = tokens["input_ids"]  # of a static embedding all texts in one row
    read = {"ids": (ids if ids.dim() == 1 else ids[0]).tolist(), "skipped": skipped}
    masks = [module for module in opened if type(module).__name__ == "MultiVectorMask"]
    if masks:
        read["attended"] = int(tokens["attention_mask"].sum())
        compared = masks[0](dict(tokens), task=kind)["attention_mask"][0]
        read["compared"] = compared.nonzero().flatten().tolist()
    return read


def open_around(folder: Path, model: Any, kind: str) -> Any:
    """Open a checkpoint by a class of the library, around a model that is loaded already."""
    import sentence_transformers

    opens = getattr(sentence_transformers, kind)
    with _loaded(model):
        return opens(str(folder), device="cpu", local_files_only=True)


@contextmanager
def _loaded(model: Any) -> Iterator[None]:
    """Let the library take a model in place of loading its weights once more."""
    from sentence_transformers.base.modules import Transformer

    load = Transformer._load_model
    Transformer._load_model = lambda *_, **__: model
    try:
        yield
    finally:
        Transformer._load_model = load
