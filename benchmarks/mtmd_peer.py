# SPDX-License-Identifier: Apache-2.0
"""The LLaVA of `vision.py` as two GGUF files, and llama.cpp's mtmd that runs them, for a Python of its own.

    python mtmd_peer.py convert CHECKPOINT FOLDER [F32|Q8_0|Q4_0]
    python mtmd_peer.py serve FOLDER

For a Python with `gguf` and `llama-cpp-python`. llama.cpp's own converter knows no tokenizer of 256 bytes. Every matrix
of both files is of the kind asked for; the patches' convolution and what has one axis stay float32.

`serve` reads a line of JSON for each turn: the path of an array (height, width, 3) of bytes, and token ids of the text
behind the image. It answers with CPU seconds on one thread, the likeliest token, and where it left the features.
"""

import ctypes
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf_llama import LAYER, tensors, write_config

_FILES = ("text.gguf", "mmproj.gguf")
_CONTEXT = 1024
_TOWER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
}
_WHOLE = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "linear_1": "mm.0",
    "linear_2": "mm.2",
}
_PARTS = ("language_model.", "vision_tower.", "multi_modal_projector.")


# --- convert -------------------------------------------------------------------------------------


def convert(checkpoint: Path, folder: Path, kind: str = "F32") -> None:
    """Write both files; the folder is complete whenever it exists."""
    import gguf

    if folder.is_dir():
        return
    config = json.loads((checkpoint / "config.json").read_bytes())
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    text, encoder = (
        gguf.GGUFWriter(unfinished / name, architecture)
        for name, architecture in zip(_FILES, ("qwen2", "clip"), strict=True)
    )
    said = config["text_config"]
    size = said["hidden_size"] // said["num_attention_heads"]
    write_config(text, {**said, "head_dim": size, **said["rope_parameters"]})
    _describe_encoder(encoder, config)
    stored = gguf.GGMLQuantizationType[kind]
    for name, values in tensors(checkpoint):
        if "post_layernorm." in name:
            continue  # transformers' LLaVA takes the last layer's states as they are
        whole = (values.astype(np.uint32) << 16).view(np.float32)
        writer = text if "language_model." in name else encoder
        rounds = whole.ndim == 2 and "position_embedding" not in name
        to = stored if rounds else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_renamed(name), gguf.quants.quantize(whole, to), raw_dtype=to)
    for writer in (text, encoder):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    unfinished.rename(folder)


def _describe_encoder(writer: Any, config: Mapping[str, Any]) -> None:
    vision = config["vision_config"]
    writer.add_string("clip.projector_type", "mlp")
    for name in ("clip.has_vision_encoder", "clip.has_llava_projector", "clip.use_gelu"):
        writer.add_bool(name, True)
    numbers = {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "projection_dim": config["text_config"]["hidden_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
    # By default it leaves out the last layer, as LLaVA 1.5 does.
    writer.add_array("clip.vision.feature_layer", [vision["num_hidden_layers"]])
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5] * 3)


def _renamed(name: str) -> str:
    """Return what llama.cpp calls a tensor."""
    whole, _, kind = name.rpartition(".")
    part = next(one for one in _PARTS if one in whole)
    rest = whole.partition(part)[2].removeprefix("vision_model.").removeprefix("model.")
    rest = rest.removeprefix("encoder.")
    if not rest.startswith("layers."):
        return f"{_WHOLE[rest]}.{kind}"
    _, number, rest = rest.split(".", 2)
    is_text = part == _PARTS[0]
    return f"{'' if is_text else 'v.'}blk.{number}.{(LAYER if is_text else _TOWER)[rest]}.{kind}"


# --- serve ---------------------------------------------------------------------------------------


class Peer:
    """Both files, opened on one thread.

    Args:
        folder: Of `convert`.
    """

    def __init__(self, folder: Path) -> None:
        import llama_cpp
        from llama_cpp import mtmd_cpp

        self.llama, self.mtmd = llama_cpp, mtmd_cpp
        text, encoder = (str(folder / name).encode() for name in _FILES)
        model = llama_cpp.llama_model_load_from_file(text, llama_cpp.llama_model_default_params())
        choices = llama_cpp.llama_context_default_params()
        choices.n_ctx = choices.n_batch = choices.n_ubatch = _CONTEXT
        choices.n_threads = choices.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(model, choices)
        settings = mtmd_cpp.mtmd_context_params_default()
        settings.use_gpu, settings.n_threads, settings.print_timings = False, 1, False
        self.reader = mtmd_cpp.mtmd_init_from_file(encoder, model, settings)
        self.vocab, self.width = (
            llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)),
            llama_cpp.llama_model_n_embd(model),
        )

    def turn(self, pixels: Any, text: list[int]) -> tuple[dict[str, Any], Any]:
        """Encode an image and run it and a text; return figures and features."""
        llama, mtmd = self.llama, self.mtmd
        chunks = self._prepared(pixels)
        chunk = mtmd.mtmd_input_chunks_get(chunks, 0)
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        begun = time.process_time()
        _require(mtmd.mtmd_encode_chunk(self.reader, chunk) == 0)
        encoded = time.process_time()
        features, past = mtmd.mtmd_get_output_embd(self.reader), llama.llama_pos(0)
        given = (self.reader, self.context, chunk, features, 0, 0, _CONTEXT, ctypes.byref(past))
        none = mtmd.mtmd_helper_post_decode_callback()
        _require(mtmd.mtmd_helper_decode_image_chunk(*given, none, None) == 0)
        tokens = (llama.llama_token * len(text))(*text)
        batch = llama.llama_batch_get_one(tokens, len(text))
        _require(llama.llama_decode(self.context, batch) == 0)
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(self.context, -1), (self.vocab,))
        token, ended = int(logits.argmax()), time.process_time()
        shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), self.width
        rows = np.ctypeslib.as_array(features, shape).copy()
        mtmd.mtmd_input_chunks_free(chunks)
        return {"encode": encoded - begun, "prefill": ended - encoded, "token": token}, rows

    def _prepared(self, pixels: Any) -> Any:
        mtmd, (height, width, _) = self.mtmd, pixels.shape
        data = np.ascontiguousarray(pixels).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(width, height, data)
        marker = mtmd.mtmd_default_marker()
        said = mtmd.mtmd_input_text(marker, len(marker), False, True)
        chunks = mtmd.mtmd_input_chunks_init()
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        _require(mtmd.mtmd_tokenize(self.reader, chunks, ctypes.byref(said), bitmaps, 1) == 0)
        mtmd.mtmd_bitmap_free(bitmap)
        return chunks


def _require(done: bool) -> None:
    if not done:
        raise RuntimeError("llama.cpp refused a call; what it says stands above.")


def serve(folder: Path) -> None:
    """Answer a line of JSON with another, until there are no more."""
    peer = Peer(folder)
    for line in sys.stdin:
        asked = json.loads(line)
        path = Path(asked["pixels"])
        figures, rows = peer.turn(np.load(path), asked["text"])
        features = path.with_suffix(".features.npy")
        np.save(features, rows)
        print(json.dumps(figures | {"features": str(features)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
    else:
        serve(Path(sys.argv[2]))
