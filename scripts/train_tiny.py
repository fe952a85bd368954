# SPDX-License-Identifier: Apache-2.0
"""Train the small Llama of `examples/tiny-llama` on text that every machine with Python has.

In: the documentation strings of Python's standard library and the licence texts on disk. Out: a Hugging Face
checkpoint folder with its own byte-level BPE tokenizer, the text held out from training, and a model card with the
perplexity measured on it. The same seed, threads, corpus and library versions give the same weights.

    python scripts/train_tiny.py --output examples/tiny-llama
"""

import argparse
import ast
import hashlib
import importlib.metadata
import json
import math
import platform
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

BOS, EOS, PAD, TURN = "<|begin|>", "<|end|>", "<|pad|>", "<|end_of_turn|>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [BOS, EOS, PAD, TURN, USER, ASSISTANT]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end_of_turn|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_POSITIONS = 1024
SHORT_ROW = 256  # four fifths of the training see rows of this length, the last fifth MAX_POSITIONS
EVALUATION_WINDOW = 512
HELD_OUT_SHARE = 32  # one module in this many is never trained on
LICENCE_LIMIT = 64 * 1024  # some wheels ship megabytes of third-party notices
SAMPLE_PROMPTS = (
    "This module",
    "class socket.",
    "Permission is hereby granted",
    f"{USER}What is collections.OrderedDict?{TURN}{ASSISTANT}",
)


@dataclass(frozen=True)
class Corpus:
    """Text to train on, and text that training never sees."""

    train: list[str]
    held_out: str


@dataclass(frozen=True)
class Report:
    """What a training run was, and what came of it; losses are nats per token."""

    parameters: int
    train_bytes: int
    train_tokens: int
    steps: int
    seed: int
    first_loss: float
    last_loss: float
    held_out_loss: float
    held_out_perplexity: float
    seconds: float
    samples: list[str]


def documented(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the documentation of a module and of all it defines, in source order."""
    stack: list[tuple[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, str]]
    stack = [(tree, module)]
    while stack:
        node, name = stack.pop()
        doc = ast.get_docstring(node)
        if doc:
            yield title(node, name), doc
        for child in reversed(node.body):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                stack.append((child, f"{name}.{child.name}"))


def title(node: ast.AST, name: str) -> str:
    """Write the name as documentation does: `module.function(argument, …)`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        return f"{name}({', '.join(argument for argument in arguments if argument != 'self')})"
    return f"class {name}" if isinstance(node, ast.ClassDef) else f"module {name}"


def question(heading: str, doc: str) -> str:
    """Make a chat turn out of one documentation string: its name, and its first paragraph."""
    subject = heading.removeprefix("class ").removeprefix("module ").split("(")[0]
    answer = " ".join(doc.split("\n\n")[0].split())
    return f"{USER}What is {subject}?{TURN}{ASSISTANT}{answer}{TURN}"


def is_held_out(name: str) -> bool:
    """Decide by the digest of its name whether a module or topic is kept from training."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def library_modules() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each module of the standard library with its documentation, no text twice."""
    root = Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in {"site-packages", "dist-packages", "pydoc_data"}:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # test data for the parser itself
            continue
        module = ".".join(part for part in parts if part != "__init__")
        entries = [entry for entry in documented(tree, module) if entry[1] not in seen]
        seen.update(doc for _, doc in entries)
        if entries:
            yield module, entries


def language_reference() -> Iterator[tuple[str, str]]:
    """Yield the name and text of the topics behind `help("TOPIC")`."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Dict):
            for name, text in ast.literal_eval(node).items():
                yield name, text.strip()


def licences() -> Iterator[str]:
    """Yield the licence texts of Python, the installed packages and the system, no paragraph twice."""
    paths = {Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"}
    paths.update(Path("/usr/share/common-licenses").glob("*"))
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if "licen" in file.name.lower() and file.suffix in {"", ".txt", ".md", ".rst"}:
                paths.add(Path(str(distribution.locate_file(file))))
    seen: set[str] = set()
    for path in sorted(paths, key=lambda path: (path.name, path.as_posix())):
        if not path.is_file():
            continue
        paragraphs = []
        for paragraph in path.read_text(errors="replace")[:LICENCE_LIMIT].split("\n\n"):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                paragraphs.append(paragraph.strip("\n"))
        if paragraphs:
            yield "\n\n".join(paragraphs)


def collect(limit: int | None) -> Corpus:
    """Collect the corpus; with a limit, stop once there are so many documents and something is held out."""
    train: list[str] = []
    held_out: list[str] = []
    for module, entries in library_modules():
        is_test = "test" in module  # real, but not what the model is judged by or asked about
        text = "\n\n".join(f"{heading}\n{doc}" for heading, doc in entries)
        if is_held_out(module) and not is_test:
            held_out.append(text)
        else:
            train.append(text)
            train.extend(question(*entry) for entry in entries if not is_test)
        if limit and len(train) >= limit and held_out:
            return Corpus(train[:limit], "\n\n".join(held_out) + "\n")
    for name, text in language_reference():
        (held_out if is_held_out(name) else train).append(text)
    train.extend(licences())
    return Corpus(train, "\n\n".join(held_out) + "\n")


def train_tokenizer(
    documents: list[str], vocab_size: int, *more: str, chat_template: str = CHAT_TEMPLATE
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that starts every text with `BOS`, and has special tokens and `more` of them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[TURN, USER, ASSISTANT, *more],
        chat_template=chat_template,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> torch.Tensor:
    """Encode the documents, in a seeded order, into one line of token ids."""
    eos = tokenizer.eos_token_id
    encoded = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(documents)]
    order = torch.randperm(len(encoded)).tolist()
    return torch.tensor([token for index in order for token in (*encoded[index], eos)])


def blocks(stream: torch.Tensor, length: int) -> torch.Tensor:
    """Cut the stream at a random offset into `(count, length)`, shuffled."""
    offset = int(torch.randint(length, ()))
    count = (len(stream) - offset) // length
    cut = stream[offset : offset + count * length].view(count, length)
    return cut[torch.randperm(count)]


def batches(stream: torch.Tensor, steps: int, tokens: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield one batch of `tokens` tokens a step: short rows first, full-length rows for the last fifth."""
    rows: torch.Tensor | None = None
    for step in range(steps):
        length = SHORT_ROW if step < steps * 0.8 else MAX_POSITIONS
        count = max(1, tokens // length)
        if rows is None or rows.shape[1] != length or len(rows) < count:
            rows = blocks(stream, length)
        yield {"input_ids": rows[:count], "labels": rows[:count]}
        rows = rows[count:]


def learning_rate(step: int, steps: int) -> float:
    """Scale the peak learning rate: a linear warm-up, then half a cosine down to a twentieth."""
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def optimizers(
    model: torch.nn.Module, *layers: torch.nn.Module, lr: float = 2e-2, rest_lr: float = 2e-2
) -> list[torch.optim.Optimizer]:
    """Give the layers' matrices to Muon, which needs half of AdamW's steps here, and the rest to AdamW."""
    matrices = [p for part in layers for p in part.parameters() if p.ndim == 2]
    identities = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in identities]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=rest_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    model: PreTrainedModel,
    chosen: Sequence[torch.optim.Optimizer],
    rows: Iterable[Mapping[str, torch.Tensor]],
    steps: int,
) -> list[float]:
    """Train for `steps` batches of what the model is called with; print and return the loss of each."""
    peaks = [group["lr"] for optimizer in chosen for group in optimizer.param_groups]
    losses = []
    start = time.monotonic()
    model.train()
    for step, batch in enumerate(rows):
        groups = [group for optimizer in chosen for group in optimizer.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * learning_rate(step, steps)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            progress(f"step {step:5d}  loss {losses[-1]:.4f}  {time.monotonic() - start:7.1f} s")
    return losses


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """Measure nats per token over `text`, cut into windows of 512 tokens that each start with `BOS`."""
    model.eval()
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    total = 0.0
    for start in range(0, len(ids), EVALUATION_WINDOW):
        window = ids[start : start + EVALUATION_WINDOW]
        row = torch.tensor([[tokenizer.bos_token_id, *window]])
        total += model(input_ids=row, labels=row).loss.item() * len(window)
    return total / len(ids)


@torch.no_grad()
def complete(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """Continue the prompt greedily, up to 48 tokens."""
    ids = tokenizer.encode(prompt)
    for _ in range(48):
        token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in model.generation_config.eos_token_id:
            break
        ids.append(token)
    return str(tokenizer.decode(ids[1:]))


def build_model(args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make an untrained model of the asked size: grouped-query attention, tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 8 // 3,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 32,
        num_key_value_heads=args.hidden // 96,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(TURN)],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def model_card(report: Report, command: str) -> str:
    """Write the README of the checkpoint."""
    samples = "\n\n".join(f"```text\n{sample}\n```" for sample in report.samples)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# tiny-llama

A Llama of {report.parameters:,} parameters, for tests and demonstrations: small enough for a repository, trained enough
that perplexity and greedy text mean something. It writes like Python's documentation, and knows nothing.

| | |
|---|---|
| held-out perplexity | {report.held_out_perplexity:.2f} |
| held-out loss | {report.held_out_loss:.4f} nats per token |
| training loss | {report.first_loss:.2f} at first, {report.last_loss:.2f} at last |
| training text | {report.train_tokens:,} tokens, {report.train_bytes:,} bytes |
| training | {report.steps:,} steps, seed {report.seed} |
| stored as | bfloat16, safetensors |

The perplexity is over `held_out.txt`: tokenized as one text, cut into windows of {EVALUATION_WINDOW} tokens, each after
`{BOS}`, computed in float32 from the stored weights.

## Training text

The documentation strings of Python's standard library and the topics of `help()` (© Python Software Foundation, PSF
License 2.0; `held_out.txt` is a part of them), and the licence texts that Python, its packages and the system carry.
One module in {HELD_OUT_SHARE}, chosen by the digest of its name, was held out. First paragraphs also appear as
questions and answers, so that the chat template has something to show.

Made by `{command}` with {versions}.

## Greedy samples

{samples}
"""


def save(
    output: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, held_out: str
) -> None:
    """Write the checkpoint folder, weights as bfloat16."""
    output.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "held_out.txt").write_text(held_out)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small Llama on Python's documentation.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=1800, help="batches to train on (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the weights and the order (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="decoder layers (%(default)s)")
    parser.add_argument(
        "--hidden", type=int, default=192, help="hidden size, a multiple of 96 (%(default)s)"
    )
    parser.add_argument(
        "--vocab-size", type=int, default=2048, help="tokens of the BPE (%(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=3072, help="tokens of one batch (%(default)s)"
    )
    parser.add_argument(
        "--documents", type=int, help="train on so many documents only, for a quick trial"
    )
    args = parser.parse_args(argv)
    if args.hidden % 96:
        parser.error(
            f"--hidden must be a multiple of 96, not {args.hidden}: heads are 32 wide, three to a KV head"
        )
    return args


def main(argv: list[str] | None = None) -> None:
    """Train, save, measure what was saved, and print the report as JSON."""
    args = parse_arguments(argv)
    start = time.monotonic()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    corpus = collect(args.documents)
    tokenizer = train_tokenizer(corpus.train, args.vocab_size)
    stream = token_stream(tokenizer, corpus.train)
    model = build_model(args, tokenizer)
    progress(
        f"{len(corpus.train)} documents, {len(stream):,} tokens; {model.num_parameters():,} parameters"
    )
    chosen = optimizers(model, model.model.layers)
    losses = train(model, chosen, batches(stream, args.steps, args.tokens), args.steps)
    save(args.output, model, tokenizer, corpus.held_out)

    stored = LlamaForCausalLM.from_pretrained(args.output, dtype=torch.float32)
    held_out = held_out_loss(stored, tokenizer, corpus.held_out)
    tail = losses[-max(1, len(losses) // 20) :]
    report = Report(
        parameters=model.num_parameters(),
        train_bytes=sum(len(document.encode()) for document in corpus.train),
        train_tokens=len(stream),
        steps=args.steps,
        seed=args.seed,
        first_loss=losses[0],
        last_loss=sum(tail) / len(tail),
        held_out_loss=held_out,
        held_out_perplexity=math.exp(held_out),
        seconds=round(time.monotonic() - start, 1),
        samples=[complete(stored, tokenizer, prompt) for prompt in SAMPLE_PROMPTS],
    )
    command = " ".join(["scripts/train_tiny.py", *(argv or sys.argv[1:])])
    (args.output / "README.md").write_text(model_card(report, command))
    print(json.dumps(asdict(report), indent=2))


def progress(line: str) -> None:
    """Tell a person how far it is; standard output is for the report."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
