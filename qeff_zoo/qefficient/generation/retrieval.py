# SPDX-License-Identifier: Apache-2.0
"""Prompts and scores of Qwen3-VL-Embedding and Qwen3-VL-Reranker, by the names of QEfficient's helpers for them.

A query or document is a text, an image, or both. The texts around them are those of the published models.
"""

import os
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from qeff_zoo.errors import GenerationError

#: Messages of a chat.
Chat: TypeAlias = list[dict[str, Any]]

DEFAULT_INSTRUCTION = "Represent the user's input."
MAX_LENGTH = 8192
#: Pixels of a feature row: two patches of 16 on a side.
_ROW = 32 * 32
MIN_PIXELS, MAX_PIXELS = 4 * _ROW, 1800 * _ROW
#: Text of an empty query or document.
_EMPTY = "NULL"
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
#: Tokens at the end of a reranker's prompt, which are never cut off.
_LAST = 5


def resolve_model_source(model_name_or_path: str) -> str:
    """Return the folder of a checkpoint, which is downloaded if it is no folder.

    Args:
        model_name_or_path: Hub id or folder.
    """
    if os.path.isdir(model_name_or_path):  # noqa: PTH112 -- as given
        return model_name_or_path
    from huggingface_hub import snapshot_download

    from qeff_zoo.checkpoint.hub_access import hub_token

    return snapshot_download(model_name_or_path, token=hub_token())


def configure_embedding_model_config(
    config: Any,
    num_hidden_layers: int,
    vision_depth: int,
    deepstack_index: int | None,
    export_embedding: bool = True,
) -> Any:
    """Return a configuration with fewer layers, if the model has more; QEfficient's helper sets these numbers.

    Args:
        config: Configuration of the model, which is changed.
        num_hidden_layers: Layers of the language model at most.
        vision_depth: Layers of the vision encoder at most.
        deepstack_index: QEfficient's argument, without effect: the features of the remaining layers are used.
        export_embedding: QEfficient's argument, without effect: `qaic_config` selects the embedding.
    """
    text, vision = config.text_config, config.vision_config
    if 0 < num_hidden_layers < text.num_hidden_layers:
        text.num_hidden_layers = num_hidden_layers
    if 0 < vision_depth < vision.depth:
        vision.depth = vision_depth
        levels = [index for index in vision.deepstack_visual_indexes if index < vision_depth]
        vision.deepstack_visual_indexes = levels
    return config


def normalize_instruction(instruction: str) -> str:
    """Return an instruction that ends with punctuation.

    Args:
        instruction: Task of the embeddings.
    """
    text = instruction.strip()
    ended = not text or unicodedata.category(text[-1]).startswith("P")
    return text if ended else f"{text}."


def format_model_input(
    text: str | None = None,
    image: Any = None,
    video: Any = None,
    instruction: str | None = None,
) -> Chat:
    """Return the chat of an input to embed.

    Args:
        text: Text.
        image: Image: a URL, a path or a Pillow image.
        video: QEfficient's argument, refused.
        instruction: Task of the embeddings.

    Raises:
        GenerationError: There is a video.
    """
    system = normalize_instruction(instruction or DEFAULT_INSTRUCTION)
    return [
        {"role": "system", "content": [_text(system)]},
        {"role": "user", "content": [*_parts(text, image, video, MIN_PIXELS, MAX_PIXELS)]},
    ]


def format_mm_content(
    text: str | None,
    image: Any,
    video: Any,
    prefix: str,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    unsupported_video_error: str = "",
) -> list[dict[str, Any]]:
    """Return the parts of a query or a document in a reranker's prompt.

    Args:
        text: Text.
        image: Image.
        video: QEfficient's argument, refused.
        prefix: Text before it.
        min_pixels: Pixels of an image at least.
        max_pixels: Pixels of an image at most.
        unsupported_video_error: QEfficient's message.

    Raises:
        GenerationError: There is a video.
    """
    return [_text(prefix), *_parts(text, image, video, min_pixels, max_pixels)]


def format_mm_instruction(
    instruction: str, query: Mapping[str, Any], document: Mapping[str, Any], **limits: Any
) -> Chat:
    """Return the chat in which a reranker judges a document.

    Args:
        instruction: Task of the judgement.
        query: `text` and `image`.
        document: The same.
        **limits: Arguments of `format_mm_content`.
    """
    content = [_text(f"<Instruct>: {instruction}")]
    for prefix, one in (("<Query>:", query), ("\n<Document>:", document)):
        text, image, video = one.get("text"), one.get("image"), one.get("video")
        content += format_mm_content(text, image, video, prefix, **limits)
    return [
        {"role": "system", "content": [_text(_JUDGE)]},
        {"role": "user", "content": content},
    ]


def tokenize_conversation(processor: Any, conversation: Chat) -> Any:
    """Return the output of a processor for a chat to embed.

    Args:
        processor: transformers' processor of the checkpoint.
        conversation: The chat.
    """
    return _processed(processor, conversation, truncation=True, max_length=MAX_LENGTH)


def tokenize_pair(processor: Any, pair: Chat, max_length: int) -> Any:
    """Return the output of a processor for a query and a document, whose text is cut to a length.

    Args:
        processor: transformers' processor of the checkpoint.
        pair: The chat.
        max_length: Number of tokens at most, without the last ones.
    """
    processed = _processed(processor, pair)
    tokens = processed["input_ids"][0].tolist()
    special = {*processor.tokenizer.all_special_ids}
    kept = _kept(tokens[:-_LAST], max_length, special)
    kept += range(len(tokens) - _LAST, len(tokens))
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        if name in processed:
            processed[name] = processed[name][:, kept]
    return processed


def truncate_tokens_optimized(
    tokens: Sequence[int], max_length: int, special_tokens: Collection[int]
) -> list[int]:
    """Return the first tokens of a text, with all its special tokens.

    Args:
        tokens: Token ids.
        max_length: Number of tokens at most.
        special_tokens: Tokens that are kept.
    """
    return [tokens[at] for at in _kept(tokens, max_length, {*special_tokens})]


def get_yes_no_token_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the tokens of a reranker's two answers.

    Args:
        tokenizer: transformers' tokenizer of the checkpoint.

    Raises:
        GenerationError: The vocabulary lacks one.
    """
    known = tokenizer.get_vocab()
    if missing := [word for word in ("yes", "no") if word not in known]:
        raise GenerationError(
            f"The vocabulary has no token {' and no '.join(map(repr, missing))}; expected both answers of a reranker. "
            "Use a checkpoint such as Qwen3-VL-Reranker."
        )
    return known["yes"], known["no"]


def score_from_logits(logits: Any, yes_token_id: int, no_token_id: int) -> torch.Tensor:
    """Return the probability of "yes" against "no" for each prompt.

    Args:
        logits: Logits of prompts, (prompts, vocab) or (prompts, tokens, vocab), of torch or numpy.
        yes_token_id: Token of the first answer.
        no_token_id: Token of the second.
    """
    last = torch.as_tensor(logits, dtype=torch.float32)
    last = last[:, -1] if last.dim() == 3 else last
    return torch.sigmoid(last[:, yes_token_id] - last[:, no_token_id])


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _parts(
    text: str | None, image: Any, video: Any, min_pixels: int, max_pixels: int
) -> Iterator[dict[str, Any]]:
    """Yield the parts of a query or a document: its image, then its text."""
    if video:
        raise GenerationError(
            f"The input has a video, {video!r}; expected a text, an image or both. Leave it out."
        )
    if image:
        yield {
            "type": "image",
            "image": image,
            "min_pixels": min_pixels,
            "max_pixels": max_pixels,
        }
    if text or not image:
        yield _text(text or _EMPTY)


def _processed(processor: Any, chat: Chat, **choices: Any) -> Any:
    """Return the output of a processor for a chat."""
    text = processor.apply_chat_template([chat], tokenize=False, add_generation_prompt=True)
    parts = [part for message in chat for part in message["content"] if part["type"] == "image"]
    if parts:
        limits = {name: parts[0][name] for name in ("min_pixels", "max_pixels")}
        images = {"images": [_pillow(part["image"]) for part in parts], "images_kwargs": limits}
        choices |= images
    return processor(text=text, return_tensors="pt", return_mm_token_type_ids=True, **choices)


def _pillow(image: Any) -> Any:
    """Return a Pillow image."""
    from qeff_zoo.qefficient.vision import fetched, pillow

    return pillow(fetched(image))


def _kept(tokens: Sequence[int], most: int, special: Collection[int]) -> list[int]:
    """Return the indices of the first tokens, and of all special ones."""
    room = most - sum(token in special for token in tokens)
    kept, plain = [], 0
    for at, token in enumerate(tokens):
        if token in special:
            kept.append(at)
        elif plain < room:
            kept.append(at)
            plain += 1
    return kept
