# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own: it opens a model, then generates at each request.

    python engines.py '{"engine": "qeff-zoo", "model": DIR, "threads": 2}'

In: on stdin a line of JSON for every turn, with `prompts` (token ids) and `generation_len`. Out: on stdout a line of
JSON once the model is open, and one a turn. What is timed is the same of every engine, and timed from outside of it:

    ttft_s     from the call until the first token is known
    total_s    until the last is: greedy, EOS ignored
    ttft_cpu_s, total_cpu_s    the same in CPU time of the process, if the engine reports it

Only the standard library and numpy are imported before an engine is, since each peer has a Python of its own.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Tokens: TypeAlias = list[int]
#: Prompts and the number of tokens to generate in, figures out.
Turn: TypeAlias = Callable[[Sequence[Tokens], int], dict[str, Any]]

_READ_BYTES = 1 << 30  # more than caches hold
_COLUMNS = 4096
_PASSES = 4
_FUNCTIONS = 12  # of a profile


def qeff_zoo(model: str, threads: int) -> Turn:
    """Open a package; what its graph takes is timed too, to find what the host adds."""
    import onnxruntime

    calls: list[float] = []
    for name in ("run", "run_with_iobinding", "run_with_ort_values"):
        method = getattr(onnxruntime.InferenceSession, name)
        setattr(onnxruntime.InferenceSession, name, _timed(method, calls))
    from qeff_zoo import load

    session: Any = load(model, threads=threads)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        calls.clear()
        begun = time.perf_counter()
        outputs = session.generate(prompts, generation_len=generation_len, ignore_eos=True)
        total = time.perf_counter() - begun
        return {
            "ttft_s": session.metrics.ttft_s,
            "total_s": total,
            "decode_tokens_per_s": session.metrics.decode_tokens_per_s,
            "host_s_per_call": (total - sum(calls)) / len(calls),
            "tokens": [output.token_ids for output in outputs],
        }

    return turn


def stream(model: str, threads: int) -> Turn:
    """Open a package, for one prompt at a time: its clocks are read when the first token is known."""
    from qeff_zoo import load

    session: Any = load(model, threads=threads)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        (prompt,) = prompts
        request = session.request(prompt, generation_len=generation_len, ignore_eos=True)
        clocks = _Clocks()
        tokens: list[int] = []
        for delta in session.stream(request):
            if not tokens:
                clocks.first()
            tokens += delta.token_ids
        return {**clocks.last(), "tokens": [tokens]}

    return turn


def profile(model: str, threads: int) -> Turn:
    """Open a package, to find where the host's time goes: the functions that take the most of their own."""
    import cProfile

    from qeff_zoo import load

    session: Any = load(model, threads=threads)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        profiler = cProfile.Profile()
        with profiler:
            session.generate(prompts, generation_len=generation_len, ignore_eos=True)
        profiler.create_stats()
        own = {where: figures[2] for where, figures in profiler.stats.items()}
        most = sorted(own.items(), key=lambda item: -item[1])[:_FUNCTIONS]
        return {
            "own_ms_per_token": {
                f"{name} ({Path(file).name}:{line})": 1e3 * seconds / generation_len
                for (file, line, name), seconds in most
            }
        }

    return turn


def onnxruntime_genai(model: str, threads: int) -> Turn:
    """Open a model of onnxruntime-genai's builder."""
    import onnxruntime_genai as genai

    config = genai.Config(model)
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    opened = genai.Model(config)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        (prompt,) = prompts
        parameters = genai.GeneratorParams(opened)
        parameters.set_search_options(
            do_sample=False, max_length=len(prompt) + generation_len, batch_size=1
        )
        generator = genai.Generator(opened, parameters)
        begun = time.perf_counter()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(generation_len - 1):
            generator.generate_next_token()
        ended = time.perf_counter()
        tokens = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        return {"ttft_s": first - begun, "total_s": ended - begun, "tokens": [tokens]}

    return turn


def onnxruntime_genai_lookup(model: str, threads: int) -> Turn:
    """Open a model of `genai_writer.py`, to write a given text: two prompts, of which the second is written.

    Its n-grams are of three tokens and its drafts of four, if nothing else is said.
    """
    import onnxruntime_genai as genai

    config = genai.Config(model)
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    opened = genai.Model(config)
    context = json.loads(Path(model, "genai_config.json").read_bytes())["model"]["context_length"]
    longest = {"ngram_size": 3, "max_draft_tokens": 15}
    ways = {
        "plain": {},
        "lookup of 4": {"ngram_size": 3},
        "lookup of 15": longest,
        "lookup of 2 to 15": {**longest, "min_adaptive_k": 2, "cooldown": True},
    }

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        prompt, text = prompts[0], prompts[1][:generation_len]
        every = np.zeros(context + 1, np.int64)
        every[: len(prompt) + len(text)] = [*prompt, *text]
        found = {}
        for name, chosen in ways.items():
            parameters = genai.GeneratorParams(opened)
            parameters.set_search_options(
                do_sample=False, max_length=len(prompt) + len(text), batch_size=1
            )
            if chosen:
                parameters.set_speculative_options(**chosen)
            generator = genai.Generator(opened, parameters)
            generator.set_model_input("text", every)
            generator.append_tokens(np.array([prompt], np.int32))
            generator.generate_next_token()
            clocks = _Clocks()
            while not generator.is_done():
                generator.generate_next_token()
            found[name] = clocks.last()["total_cpu_s"]
            # The text may have a token that ends it.
            written = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
            assert written == text
        return {"decode_cpu_s": found}

    return turn


def openvino_genai(model: str, threads: int) -> Turn:
    """Open a model of OpenVINO that optimum-intel exported, with OpenVINO GenAI, for one prompt at a time."""
    import openvino
    import openvino_genai as genai

    opened = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        (prompt,) = prompts
        choices = genai.GenerationConfig(max_new_tokens=generation_len, ignore_eos=True)
        clocks = _Clocks()
        seen: list[int] = []

        class FirstToken(genai.StreamerBase):  # type: ignore[misc]
            def write(self, tokens: object) -> Any:
                if not seen:
                    clocks.first()
                seen.append(0)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                """Do nothing at the end."""

        found = opened.generate(
            openvino.Tensor(np.array([prompt], np.int64)), choices, FirstToken()
        )
        return {**clocks.last(), "tokens": [found.tokens[0]]}

    return turn


def llama_cpp(model: str, threads: int) -> Turn:
    """Open a GGUF file with llama-cpp-python."""
    from llama_cpp import Llama

    opened = Llama(model, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        (prompt,) = prompts
        opened.reset()
        clocks = _Clocks()
        opened.eval(prompt)
        tokens = [int(opened.sample(temp=0.0))]
        clocks.first()
        for _ in range(generation_len - 1):
            opened.eval(tokens[-1:])
            tokens.append(int(opened.sample(temp=0.0)))
        return {**clocks.last(), "tokens": [tokens]}

    return turn


def llama_cpp_lookup(model: str, threads: int) -> Turn:
    """Open a GGUF file with llama-cpp-python, to write a given text: two prompts, of which the second is written.

    Each token is drawn as ever, and then the text's own is taken. Its lookup is of the newest two tokens, and drafts
    always as many; its documentation says two for a CPU, and ten by default.
    """
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    class Replayed(Llama):  # type: ignore[misc]
        def sample(self, *given: Any, idx: int | None = None, **options: Any) -> int:
            super().sample(*given, idx=idx, **options)
            known = self.n_tokens if idx is None else idx + 1
            return int(self.written[known])

    opened = Replayed(
        model,
        n_ctx=2048,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    drafters = {
        "plain": None,
        "lookup of 2": LlamaPromptLookupDecoding(num_pred_tokens=2),
        "lookup of 10": LlamaPromptLookupDecoding(num_pred_tokens=10),
    }

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        prompt, text = prompts[0], prompts[1][:generation_len]
        # What is drafted behind the end counts for nothing.
        opened.written = [*prompt, *text, *[0] * 16]
        found = {}
        for name, drafter in drafters.items():
            opened.reset()
            opened.draft_model, opened._logits_all = drafter, drafter is not None
            tokens: Tokens = []
            for token in opened.generate(prompt, temp=0.0):
                if not tokens:
                    clocks = _Clocks()
                tokens.append(token)
                if len(tokens) == len(text):
                    break
            found[name] = clocks.last()["total_cpu_s"]
            assert tokens == text
        return {"decode_cpu_s": found}

    return turn


def memory(_: str, threads: int) -> Turn:
    """Read memory as a product of a matrix and a vector does: the bandwidth that bounds decoding."""
    rows = _READ_BYTES // threads // 4 // _COLUMNS
    parts = [np.ones((rows, _COLUMNS), np.float32) for _ in range(threads)]
    vector = np.ones(_COLUMNS, np.float32)
    pool = ThreadPoolExecutor(threads)

    def turn(prompts: Sequence[Tokens], generation_len: int) -> dict[str, Any]:
        seconds = []
        for _ in range(_PASSES):
            begun = time.perf_counter()
            list(pool.map(lambda part: part @ vector, parts))
            seconds.append(time.perf_counter() - begun)
        return {"bytes_per_s": sum(part.nbytes for part in parts) / min(seconds)}

    return turn


ENGINES: Mapping[str, Callable[[str, int], Turn]] = {
    "qeff-zoo": qeff_zoo,
    "stream": stream,
    "profile": profile,
    "onnxruntime-genai": onnxruntime_genai,
    "onnxruntime-genai lookup": onnxruntime_genai_lookup,
    "openvino-genai": openvino_genai,
    "llama.cpp": llama_cpp,
    "llama.cpp lookup": llama_cpp_lookup,
    "memory": memory,
}


def main() -> None:
    """Serve turns until stdin ends."""
    asked = json.loads(sys.argv[1])
    begun = time.perf_counter()
    turn = ENGINES[asked["engine"]](asked["model"], asked["threads"])
    _say({"open_s": time.perf_counter() - begun})
    for line in sys.stdin:
        order = json.loads(line)
        found = turn(order["prompts"], order["generation_len"])
        _say({**found, "peak_rss_bytes": _peak_rss_bytes()})


class _Clocks:
    """The time and the CPU time of this process since it was made, as a turn answers them."""

    def __init__(self) -> None:
        self._begun = self._now()
        self._first = self._begun

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def first(self) -> None:
        """The first token is known."""
        self._first = self._now()

    def last(self) -> dict[str, float]:
        """Return what it took, now that the last is."""
        (wall, cpu), (first_wall, first_cpu) = self._begun, self._first
        ended_wall, ended_cpu = self._now()
        return {
            "ttft_s": first_wall - wall,
            "total_s": ended_wall - wall,
            "ttft_cpu_s": first_cpu - cpu,
            "total_cpu_s": ended_cpu - cpu,
        }


def _timed(method: Callable[..., Any], calls: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            calls.append(time.perf_counter() - begun)

    return timed


def _peak_rss_bytes() -> int:
    """Return the highest resident set of this program; getrusage would count the one that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
