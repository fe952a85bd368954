#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train an adapter on a few chats, build a package of its model with the adapter merged into it, and ask that.

python examples/finetune.py [CHECKPOINT]   # without one, of examples/tiny-llama
"""

import json
import sys
import tempfile
from pathlib import Path

import qeff_zoo
from qeff_zoo.finetuning.config import Config
from qeff_zoo.finetuning.finetune import finetune

PLACES = {"socket": "network", "json": "text", "heapq": "queues", "zlib": "bytes", "ast": "trees"}


def chats() -> list[dict[str, object]]:
    """Say of each module what it is for, in words that the model has not seen."""
    asked = ("Tell me about {}.", "{}?", "And {}?", "What is {} for?", "Explain {}.", "{}, please.")
    return [
        {
            "messages": [
                {"role": "user", "content": text.format(name)},
                {"role": "assistant", "content": f"The module {name} is for {use}, my friend."},
            ]
        }
        for text in asked
        for name, use in PLACES.items()
    ]


def main() -> None:
    """Do it."""
    model = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "chats.jsonl")
        data.write_text("".join(f"{json.dumps(chat)}\n" for chat in chats()))
        found = finetune(
            Config(
                model_name=model, data=str(data), output_dir=f"{folder}/run", max_length=128,
                num_train_epochs=7, per_device_train_batch_size=4, learning_rate=5e-3, save_strategy="no",
            )
        )  # fmt: skip
        assert found is not None  # this is no process of torchrun but the first
        for when, entry in (("before", found.first), ("after", found.last)):
            print(f"perplexity of chats held out, {when}: {entry['eval_perplexity']:.2f}")
        package = qeff_zoo.build(model, adapter=found.path, ctx_len=256)
    session = qeff_zoo.load(package)
    for output in session.generate(["What is heapq for?", "zlib?"], chat=True, generation_len=32):
        print(output.prompt, "->", output.text)


if __name__ == "__main__":
    main()
