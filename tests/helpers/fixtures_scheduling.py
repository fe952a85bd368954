# SPDX-License-Identifier: Apache-2.0
"""What several tests of scheduling and others use."""

from dataclasses import dataclass

from hypothesis import strategies as st
from toy_decoder import VOCAB, ToyDecoder

from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.decoding.sampling import Sampling
from qeff_zoo.runtime.engine.answers import Answer, Request
from qeff_zoo.runtime.engine.scheduling import Scheduler

CTX_LEN, EOS = 80, 0


BLOCK_BYTES = 16 * 8 + 8  # of 16 positions, and one number


@dataclass(frozen=True)
class Client:
    """What somebody asks for, and when: numbers of steps."""

    prompt: tuple[int, ...]
    limit: int
    joins: int
    leaves: int | None
    seed: int | None

    @property
    def request(self) -> Request:
        sampling = Sampling() if self.seed is None else Sampling(temperature=0.8, seed=self.seed)
        return Request(
            prompt=self.prompt,
            limit=min(self.limit, CTX_LEN - len(self.prompt)),
            sampling=sampling,
            eos_token_ids=frozenset({EOS}),
        )


@st.composite
def clients(draw: st.DrawFn) -> Client:
    """Draw prompts that often begin alike: stretches of two endless texts."""
    shared = draw(st.integers(0, 50))
    own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    text = draw(st.sampled_from([3, 5]))
    return Client(
        prompt=(*(at * text % VOCAB for at in range(shared)), *own),
        limit=draw(st.integers(1, 12)),
        joins=draw(st.integers(0, 12)),
        leaves=draw(st.none() | st.integers(0, 20)),
        seed=draw(st.none() | st.integers(-5, 5)),
    )


def scheduler_of(decoder: ToyDecoder) -> Scheduler:
    return Scheduler(decoder, PrefixCache(decoder, 0))


def alone(client: Client, length: int) -> list[int]:
    scheduler = scheduler_of(ToyDecoder(1, CTX_LEN, length))
    answer = Answer(client.request, None)
    scheduler.submit(answer)
    while scheduler.step():
        pass
    return answer.token_ids
