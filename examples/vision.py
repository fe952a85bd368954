#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ask a model that sees about a picture.

python examples/vision.py MODEL PICTURE QUESTION   # without, a tiny LLaVA of random weights, and a picture made here
"""

import json
import sys
import tempfile
from pathlib import Path

from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from qeff_zoo import QEFFAutoModelForImageTextToText


def make_llava(folder: Path) -> str:
    """Write a checkpoint as transformers does, with a tokenizer of ten words, a chat template and a processor."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    torch.manual_seed(0)
    sees = CLIPVisionConfig(num_attention_heads=2, image_size=28, patch_size=14, **sizes)
    says = LlamaConfig(num_attention_heads=2, vocab_size=10, **sizes)
    Llava(LlavaConfig(vision_config=sees, text_config=says, image_token_index=9)).save_pretrained(
        folder
    )
    words = ["<unk>", "what", "is", "this", "?", "a", "sunset", "sea", "sky", "<image>"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}"
    )
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    processor = {"image_processor_type": "CLIPImageProcessor", **size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(folder)


def main() -> None:
    """Do it."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "sunset.png")
        Image.linear_gradient("L").convert("RGB").save(made)
        tiny = not sys.argv[1:]
        given = [make_llava(Path(folder, "tiny-llava")), str(made), "what is this ?"]
        name, picture, question = given if tiny else sys.argv[1:]
        model = QEFFAutoModelForImageTextToText.from_pretrained(name)
        print("package:", model.compile(prefill_seq_len=32, ctx_len=64 if tiny else 2048))
        info = model.generate(prompts=[question], images=[picture], generation_len=8)
        print(f"{question} -> {info.generated_texts[0]!r}", info, sep="\n")


if __name__ == "__main__":
    main()
