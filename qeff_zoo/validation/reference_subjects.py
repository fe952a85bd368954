# SPDX-License-Identifier: Apache-2.0
"""What the reference runs of Hugging Face's model, by kind of task: sequences in, the answers that matter out.

Only the reference process imports this.
"""

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from qeff_zoo import tasks
from qeff_zoo.validation import reference_heads
from qeff_zoo.validation.cases import tokens_after, tokens_of_layer
from qeff_zoo.validation.drawings import NUMBERS, draw
from qeff_zoo.validation.faults import Fault
from qeff_zoo.validation.reference_choices import Watching, unwatched
from qeff_zoo.validation.reference_damage import inputs_of, narrow_window
from qeff_zoo.validation.reference_layers import OfLayer
from qeff_zoo.validation.reference_losses import Losses
from qeff_zoo.validation.reference_media import Media, of_tokens

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_TOGETHER = 4  # sequences of a padded batch


def answers_of(
    model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array] = MappingProxyType({})
) -> "Answers":
    """Return what answers a request's sequences.

    Args:
        model: Hugging Face's, for the request's task.
        request: With `task`, and what that takes.
        arrays: What the request has besides JSON: `sound.sequence`, and pictures or sounds among text, see `Media`.
    """
    task, media = tasks.find(request["task"]), Media(request, arrays, model)
    sounds = [array for name, array in arrays.items() if name.startswith("sound.")]
    if request.get("sources"):
        return (_OfPictures if task.reads == "image" else _OfTexts)(model, request)
    if task.answers == "logits":
        return _OfSounds(model, request, sounds) if sounds else _Logits(model, request, media)
    if sounds:
        return _Sounds(model, sounds)
    return (_Pictures if task.reads == "image" else _Whole)(model, request)


class Answers:
    """Runs sequences, watched or not.

    Args:
        sequences: Token ids, or what else is read.
        *halves: The model that answers; of one of pictures and texts, the half that does, or both.
    """

    def __init__(self, sequences: Sequence[Any], *halves: Any) -> None:
        self._sequences, self.halves = sequences, halves

    def alone(self, watching: Watching | None = None) -> list[Array]:
        """Run each sequence by itself, without padding; return (positions, values) each."""
        return [self.batch([number], watching)[number] for number in range(len(self._sequences))]

    def together(self, watching: Watching) -> list[Array]:
        """Run sequences in padded batches of those that are about as long."""
        found = self.some(range(len(self._sequences)), watching)
        return [found[number] for number in range(len(self._sequences))]

    def some(self, numbers: Sequence[int], watching: Watching | None = None) -> dict[int, Array]:
        """Run some sequences in padded batches of those that are about as long; return (positions, values) each."""
        found: dict[int, Array] = {}
        for group in self.groups(numbers):
            found |= self.batch(group, watching)
        return found

    def groups(self, numbers: Sequence[int]) -> list[list[int]]:
        """Group the numbers of sequences that are about as long."""
        return _alike({number: len(self._sequences[number]) for number in numbers})

    def batch(self, numbers: list[int], watching: Watching | None = None) -> dict[int, Array]:
        """Run some sequences in one padded batch; return (positions, values) each."""
        return dict(zip(numbers, self._watched(numbers, watching), strict=True))

    def faulty(self, fault: Fault) -> dict[int, Array]:
        """Run the sequences of a stage with its fault; return (positions, values) each, nothing if there is none."""
        return {}

    @property
    def plain(self) -> bool:
        """Whether answers are logits of the tokens that the model reads, and of nothing else."""
        return False

    def losses(self) -> "Losses | None":
        """Begin to compare what variants predict of one text; None where answers are not logits of its tokens."""
        return None

    def predict(self, input_ids: Tensor) -> Tensor:
        """Return the logits of all tokens of texts, (rows, tokens, vocabulary), where `plain`."""
        raise NotImplementedError

    def told(self, number: int, length: int, watching: Watching | None = None) -> Array:
        """Run the beginning of a sequence, or more; return (positions, values) of those within it."""
        return self._watched([number], watching, length)[0]

    def _watched(
        self, numbers: list[int], watching: Watching | None, length: int | None = None
    ) -> list[Array]:
        lengths = [len(self._beginning(number, length)) for number in numbers]
        with watching(numbers, lengths) if watching else nullcontext():
            return self._run(numbers, length)

    def _beginning(self, number: int, length: int | None) -> Any:
        """Return what is run of a sequence."""
        return self._sequences[number][:length]

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        raise NotImplementedError

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """Continue the beginning of the first sequence, where answers are logits of tokens."""
        raise NotImplementedError


def _alike(lengths: Mapping[int, int]) -> list[list[int]]:
    """Group the numbers of sequences: at most four, none half as long as another."""
    groups: list[list[int]] = []
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        last = groups[-1] if groups else []
        if last and len(last) < _TOGETHER and 2 * lengths[number] >= lengths[last[0]]:
            last.append(number)
        else:
            groups.append([number])
    return groups


class _Logits(Answers):
    """Answers of a causal language model: logits at the positions that matter.

    Args:
        model: Hugging Face's.
        request: With `sequences` and `positions`.
        media: Pictures or sounds in the sequences.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], media: Media) -> None:
        super().__init__(request["sequences"], model)
        self._model, self._media = model, media
        self._shown: Mapping[str, Tensor] = {}  # to the newest call
        self._heads, self._drafted = reference_heads.attach(model, request.get("speculator"))
        # A position is there once for its own logits, and once for each head's.
        self._positions = [one[:: 1 + self._drafted] for one in request["positions"]]
        self._fault: Fault | None = None

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        if len(numbers) > 1 and not self._media.together:
            return [row for number in numbers for row in self._run([number], length)]
        inputs = _padded([self._beginning(number, length) for number in numbers])
        wanted = [
            [at for at in self._positions[number] if length is None or at < length]
            for number in numbers
        ]
        rows = [row for row, positions in enumerate(wanted) for _ in positions]
        columns = [position for positions in wanted for position in positions]
        if self._fault:
            starts = [self._fault.starts.get(number, 0) for number in numbers]
            inputs = inputs_of(self._fault, inputs, starts)
            columns = [column + (self._fault.kind == "extra") for column in columns]

        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            # Some models answer for what they saw before the tokens, too.
            before = args[0].shape[1] - inputs["input_ids"].shape[1]
            hidden.append(args[0][rows, [before + column for column in columns]])
            return (hidden[0][None],)  # (1, all positions, hidden)

        hidden: list[Tensor] = []
        layer = self._heads if isinstance(self._heads, OfLayer) else None
        # The layer's are read first: `keep` leaves few of them.
        head = self._model.get_output_embeddings()
        # Some models know it as their decoder's alone.
        head = self._model.get_decoder().get_output_embeddings() if head is None else head
        with layer or nullcontext(), hooked(head, keep):
            logits = self._call(numbers, inputs, use_cache=False).logits[0]
        if self._heads:
            pairs = [(numbers[row], column) for row, column in zip(rows, columns, strict=True)]
            if layer:
                after = [tokens_of_layer(self._sequences[one], at) for one, at in pairs]
                with unwatched():  # what it chooses itself is none of the model's choices
                    drafted = layer.logits(inputs["input_ids"], rows, columns, after)
            else:
                assert callable(self._heads)
                after = [tokens_after(self._sequences[one], at, self._drafted) for one, at in pairs]
                drafted = self._heads(hidden[0], torch.tensor(after))
            logits = torch.cat([logits[:, None], drafted], 1).flatten(0, 1)
        tick()
        ends = np.cumsum([len(positions) * (1 + self._drafted) for positions in wanted])
        return list(np.split(logits.float().numpy(), ends[:-1]))

    def faulty(self, fault: Fault) -> dict[int, Array]:
        """Run the sequences of a stage with its fault, of text that a decoder alone reads."""
        takes = inspect.signature(of_tokens(self._model).forward).parameters
        if not self.plain or (fault.kind == "position" and "position_ids" not in takes):
            return {}
        self._fault = fault if fault.kind != "window" else None
        narrow = narrow_window(self._model) if fault.kind == "window" else nullcontext()
        try:
            with narrow:
                return {
                    number: self._run([number], stop)[0] for number, stop in fault.stops.items()
                }
        except (IndexError, RuntimeError):  # beyond the positions that the model has
            return {}
        finally:
            self._fault = None

    @property
    def plain(self) -> bool:
        """Whether all that the model reads is the tokens of its answers."""
        media = any(self._media.among(number) for number in range(len(self._sequences)))
        return type(self) is _Logits and not (media or self._heads)

    def losses(self) -> Losses | None:
        """Begin to compare what variants predict of the longest sequence."""
        longest = max(self._sequences, key=len)
        if not self.plain or len(longest) < 2:
            return None
        return Losses(longest)

    def predict(self, input_ids: Tensor) -> Tensor:
        """Return the logits of all tokens of texts."""
        tick()
        logits: Tensor = of_tokens(self._model)(input_ids=input_ids, use_cache=False).logits
        return logits

    def _beginning(self, number: int, length: int | None) -> Any:
        # transformers takes all tokens of a picture or none.
        whole = self._media.among(number)
        return self._sequences[number] if whole else super()._beginning(number, length)

    def _call(self, numbers: list[int], inputs: Mapping[str, Tensor], **more: Any) -> Any:
        """Run the forward on tokens of sequences from their beginning."""
        self._shown = self._media.of(numbers, inputs["input_ids"], self._model.dtype)
        model = self._model if self._shown else of_tokens(self._model)
        output = model(**{**self._shown, **inputs}, **more)
        # Some hand back a cache as part of what their language model returned alone.
        return getattr(output, "language_model_outputs", None) or output

    def _go_on(self, tokens: Tensor, before: Any, **cache: Any) -> Any:
        """Run the forward on newest tokens alone."""
        told = self._media.behind(self._shown)
        return of_tokens(self._model)(input_ids=tokens, use_cache=True, **told, **cache)

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """Continue the first sequence by the likeliest token, with transformers' own cache where there is one."""
        whole, generated = torch.tensor([prompt]), list[int]()
        output = self._call([0], {"input_ids": whole}, use_cache=True)
        while True:
            token = output.logits[:, -1:].argmax(-1)
            generated.append(int(token))
            tick()
            if len(generated) == length:
                return generated
            whole = torch.cat([whole, token], 1)
            caches = {name: output.get(name) for name in ("past_key_values", "cache_params")}
            known = {name: cache for name, cache in caches.items() if cache is not None}
            if known:
                output = self._go_on(token, output, **known)
            else:
                output = self._call([0], {"input_ids": whole}, use_cache=True)


class _OfTexts(_Logits):
    """As `_Logits`, of tokens that a decoder writes of texts.

    Args:
        model: Hugging Face's.
        request: With `sequences`, `positions` and `sources`, the text of each sequence.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        super().__init__(model, request, Media(request, {}, model))
        self._sources: list[list[int]] = request["sources"]

    def _call(self, numbers: list[int], inputs: Mapping[str, Tensor], **more: Any) -> Any:
        if not self._model.config.is_encoder_decoder:  # what was read is in no cache of theirs
            more |= {"use_cache": False}
        told = "decoder_input_ids" if self._model.config.is_encoder_decoder else "input_ids"
        return self._model(**self._given(numbers), **{told: inputs["input_ids"]}, **more)

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        padding = int(self._model.config.pad_token_id or 0)
        return _padded([self._sources[number] for number in numbers], padding)

    def _go_on(self, tokens: Tensor, before: Any, **cache: Any) -> Any:
        read: Any = BaseModelOutput(last_hidden_state=before.encoder_last_hidden_state)
        read.attention_mask = None  # of one that is not padded, where a model looks for it here
        return self._model(encoder_outputs=read, decoder_input_ids=tokens, use_cache=True, **cache)


class _OfSounds(_OfTexts):
    """As `_OfTexts`, of sounds.

    Args:
        model: Hugging Face's.
        request: With `sequences` and `positions`.
        sounds: Of each sequence, as the model takes it.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], sounds: list[Array]) -> None:
        super().__init__(model, {**request, "sources": []})
        self._sounds = sounds

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # Sounds of different lengths each alone: in a batch, the end of one is mixed with its padding.
        alike = len({len(one) for one in self._sounds}) == 1
        groups = [numbers] if alike else [[number] for number in numbers]
        return [one for group in groups for one in super(_OfSounds, self)._run(group, length)]

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        heard = torch.from_numpy(np.stack([self._sounds[number] for number in numbers]))
        return {self._model.main_input_name: heard.to(self._model.dtype)}


class _OfPictures(_OfTexts):
    """As `_OfTexts`, of pictures, which transformers' own processor makes into arrays.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `sequences`, `positions` and `sources`, as `drawings.draw` takes them, each with the
            tokens of a prompt behind it where the encoder reads one.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        super().__init__(model, request)
        self._process = processor_of(request)

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        told = [self._sources[number] for number in numbers]
        pictures = [Image.fromarray(draw(*one[:NUMBERS])) for one in told]
        pixels = self._process(images=pictures, return_tensors="pt")["pixel_values"]
        prompts = [one[NUMBERS:] for one in told]
        padding = int(self._model.config.get_text_config().pad_token_id or 0)
        read = _padded(prompts, padding) if all(prompts) else {}
        return {"pixel_values": pixels.to(self._model.dtype), **read}


class _Whole(Answers):
    """Answers about whole texts, each read in one call: an embedding, or a classifier's logits.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `task`, `sequences`, their `types` if the package takes token types, and in
            `told` what to do otherwise than the checkpoint says.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        super().__init__(request["sequences"], model)
        self._model = model
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._types: list[list[int]] | None = request.get("types")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        if self._embeds:
            told = {**_read_pooling(Path(request["checkpoint"])), **request["told"]}
            self._pooling, self._normalize = str(told["pooling"]), bool(told["normalize"])
            behind = _read_dense(Path(request["checkpoint"]))
            self._activations = [activation for _, activation in behind]
            if behind:  # part of the model, so that all variants are of them too
                model.dense = nn.ModuleList(layer for layer, _ in behind)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        sequences = [self._sequences[number][:length] for number in numbers]
        inputs = _padded(sequences, self._padding)
        if self._types is not None:
            kinds = [self._types[number] for number in numbers]
            inputs["token_type_ids"] = _padded(kinds, 0)["input_ids"]
        output = self._model(**inputs)
        tick()
        found = output.last_hidden_state if self._embeds else output.logits
        return [
            self._answer(one, len(sequence)).float().numpy()
            for one, sequence in zip(found, sequences, strict=True)
        ]

    def _answer(self, found: Tensor, length: int) -> Tensor:
        """Return what matters of a row: the pooled states, or the logits of the text or of each of its tokens."""
        if self._embeds:
            return self._pool(found[:length])[None]
        return found[None] if found.dim() == 1 else found[:length]

    def _pool(self, states: Tensor) -> Tensor:
        """Reduce the states of the tokens alone, (tokens, hidden)."""
        by_mode: dict[str, Callable[[], Tensor]] = {
            "cls": lambda: states[0],
            "lasttoken": lambda: states[-1],
            "max": lambda: states.amax(0),
            "mean": lambda: states.sum(0) / len(states),
        }
        pooled = by_mode[self._pooling]()
        for number, activation in enumerate(self._activations):
            pooled = activation(self._model.dense[number](pooled[None])[0])
        return pooled / torch.linalg.vector_norm(pooled) if self._normalize else pooled


class _Sounds(Answers):
    """Answers about sounds: labels' logits of every frame.

    Args:
        model: Hugging Face's.
        sounds: (samples,) or (frames, bins) of features.
    """

    def __init__(self, model: Any, sounds: list[Array]) -> None:
        super().__init__(sounds, model)
        self._model = model

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # Each alone: in a batch, Hugging Face's models mix the end of a sound with its padding.
        return [self._read(self._sequences[number]) for number in numbers]

    def _read(self, sound: Array) -> Array:
        given = torch.from_numpy(sound)[None].to(self._model.dtype)
        logits = self._model(**{self._model.main_input_name: given}).logits[0]
        tick()
        found: Array = logits.float().numpy()
        return found


class _Pictures(Answers):
    """Answers about pictures, which transformers' own processor makes into arrays.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `task`, `sequences` as `drawings.draw` takes them, and in `told` what to do
            otherwise than the model does; and `texts` that pictures are matched with.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        self._texts, halves = request.get("texts") or [], [getattr(model, "vision_model", model)]
        halves += [model.text_model] if self._texts else []
        super().__init__([*request["sequences"], *self._texts], *halves)
        self._count = len(request["sequences"])
        self._model, self._told = model, request["told"]
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._process = processor_of(request)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        found = {
            number: self._read(self._sequences[number])
            for number in numbers
            if number >= self._count
        }
        if shown := [number for number in numbers if number < self._count]:
            found.update(zip(shown, self._look(shown), strict=True))
        return [found[number] for number in numbers]

    def _read(self, text: Sequence[int]) -> Array:
        """Embed a text, as long as the model has positions for."""
        told = self._model.config.text_config
        tokens = torch.full((1, told.max_position_embeddings), told.pad_token_id or 0)
        tokens[0, : len(text)] = torch.tensor(text)
        found = nn.functional.normalize(
            self._model.get_text_features(input_ids=tokens).pooler_output
        )
        tick()
        return np.asarray(found.float().numpy())

    def _look(self, numbers: list[int]) -> list[Array]:
        pictures = [Image.fromarray(draw(*self._sequences[number])) for number in numbers]
        pixels = self._process(images=pictures, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(next(self._model.parameters()).dtype)
        found = self._embed(pixels) if self._embeds else self._model(pixel_values=pixels).logits
        tick()
        return list(found.float().numpy()[:, None])

    def _embed(self, pixels: Tensor) -> Tensor:
        both = hasattr(self._model, "get_image_features")
        call = self._model.get_image_features if both else self._model
        output = call(pixel_values=pixels)
        states = output.last_hidden_state
        if states.dim() > 3:
            states = states.reshape(*states.shape[:2], -1).permute(0, 2, 1)
        by_mode: dict[str | None, Callable[[], Tensor]] = {
            None: lambda: output.pooler_output.reshape(len(pixels), -1),
            "cls": lambda: states[:, 0],
            "max": lambda: states.max(1).values,
            "mean": lambda: states.sum(1) / states.shape[1],
        }
        pooled = by_mode[self._told.get("pooling")]()
        length = torch.linalg.vector_norm(pooled, dim=1, keepdim=True)
        return pooled / length if self._texts or self._told.get("normalize") else pooled


def processor_of(request: Mapping[str, Any]) -> Any:
    """Return what transformers makes arrays of pictures with."""
    return transformers.AutoImageProcessor.from_pretrained(
        request["checkpoint"], backend="pil", local_files_only=True
    )


def _read_pooling(folder: Path) -> dict[str, Any]:
    """Read how sentence-transformers would pool, which takes the mean where nothing is said."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return {"pooling": "mean", "normalize": False}
    modules = json.loads(listed.read_bytes())
    paths = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    settings = json.loads((folder / PurePosixPath(paths["Pooling"]) / "config.json").read_bytes())
    chosen = [name for name, value in settings.items() if "pooling_mode_" in name and value]
    mode = settings.get("pooling_mode") or chosen[0].split("_")[2]
    return {"pooling": mode, "normalize": "Normalize" in paths}


def _read_dense(folder: Path) -> list[tuple[nn.Linear, Callable[[Tensor], Tensor]]]:
    """Read the dense layers that sentence-transformers would apply to what was pooled, each with its activation."""
    listed = folder / "modules.json"
    modules = json.loads(listed.read_bytes()) if listed.is_file() else []
    found = []
    for module in modules:
        if not module["type"].endswith(".Dense"):
            continue
        place = folder / PurePosixPath(module["path"])
        settings = json.loads((place / "config.json").read_bytes())
        stored = load_file(place / "model.safetensors")
        layer = nn.Linear(settings["in_features"], settings["out_features"], settings["bias"])
        layer.load_state_dict({name.removeprefix("linear."): stored[name] for name in stored})
        name = settings["activation_function"].rpartition(".")[2]
        found.append((layer.float(), getattr(nn, name)()))
    return found


def _padded(sequences: Sequence[Sequence[int]], padding: int = 0) -> dict[str, Tensor]:
    width = max(map(len, sequences))
    input_ids = torch.full((len(sequences), width), padding)
    attention_mask = torch.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = torch.tensor(sequence)
        attention_mask[row, : len(sequence)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


@contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook change the arguments of a module for a while, in this thread."""
    thread = threading.current_thread()

    def run(*args: Any) -> Any:
        return hook(*args) if threading.current_thread() is thread else None

    handle = module.register_forward_pre_hook(run)
    try:
        yield
    finally:
        handle.remove()


def read_request() -> dict[str, Any]:
    """Wait for the request of the process that started us; end where that ends without one."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return cast("dict[str, Any]", json.loads(line))


def tick() -> None:
    """Tell the process that waits for us that another call is done."""
    sys.stdout.write("\n")
    sys.stdout.flush()
