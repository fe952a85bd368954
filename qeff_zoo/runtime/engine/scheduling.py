# SPDX-License-Identifier: Apache-2.0
"""Scheduler of requests: any number of them, each of which is served.

A request takes a batch slot as soon as one is free, independent of the others, and leaves it when generation ends. A
step is at most one prefill call and one decode call, so that a long prompt delays decoding by one call at a time. If
more than a third of the requests wait for their first token, the prefill call runs a chunk of each of their prompts:
first tokens come soonest, and the others wait once. Otherwise it runs a short piece of one prompt, if the length of
calls changes no bit (`Decoder.split`).

Requests of one client share the batch slots fairly with other clients: a free slot is for the client with the fewest,
and a client without any takes one from a client with several. Groups of requests that one client submitted together
share its slots in the same way. The evicted request is computed again later, in the same calls, so that generated text
does not depend on other clients.

With speculative decoding, the next call of a slot has the draft after its newest token, and rejected tokens are
dropped: states with an entry for each position are overwritten, the others restored, so that accepted tokens run
again at the start of the next call. If one call cannot check the drafts of several slots, each is checked in a
separate call, as long as every decoding slot has a draft that is worth the delay of the others.
"""

import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qeff_zoo.runtime.caches.block_attention import DocumentCache, Placing
from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.encoder_inputs import Sources
from qeff_zoo.runtime.decoding.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.decoding.sampling import Drawn, token_of
from qeff_zoo.runtime.engine.answers import Answer, Request
from qeff_zoo.runtime.engine.metrics import Timings
from qeff_zoo.runtime.engine.speculation import Drafter, Reader, Sharing, Speculation
from qeff_zoo.runtime.program import Array

#: Pieces of `Decoder.split` tokens in a prefill call beside decoding requests. Fewer cost more for each token and delay
#: first tokens; more delay next tokens.
_BESIDE = 4


@dataclass(eq=False)
class _Group:
    """Requests that were submitted together.

    Args:
        waiting: Requests without a batch slot.
        name: Name of the client; empty for a client of its own.
    """

    waiting: deque[Answer]
    name: str = ""

    @property
    def client(self) -> Hashable:
        """Client of the requests."""
        return self.name or self


class _Rows:
    """Numbers of batch slots of clients and of their groups.

    Args:
        groups: Group of each slot.
    """

    def __init__(self, groups: Iterable[_Group]) -> None:
        self._clients, self._groups = Counter[Hashable](), Counter[_Group]()
        for group in groups:
            self.add(group)

    def add(self, group: _Group, count: int = 1) -> None:
        """Add slots to a group and its client."""
        self._clients[group.client] += count
        self._groups[group] += count

    def of(self, group: _Group) -> tuple[int, int]:
        """Return the numbers of slots of a group's client, and of the group."""
        return self._clients[group.client], self._groups[group]


@dataclass(eq=False)
class _Slot:
    """Request in a batch slot.

    Args:
        answer: Generation of the request.
        group: Group of its submission.
        row: Batch slot of the decoder.
        keys: Keys of its prompt's blocks in the prefix cache.
        drafter: Drafter of the request; None without speculative decoding.
        done: Number of tokens with states in the slot.
        placing: Documents of the prompt, some of which are not computed yet; None if all are.
    """

    answer: Answer
    group: _Group
    row: int
    keys: Sequence[bytes]
    drafter: Drafter | None = None
    done: int = 0
    placing: Placing | None = None

    @property
    def left(self) -> int:
        """Number of prompt tokens left to run; 0 or less if there are none."""
        request = self.answer.request
        if self.placing:
            return self.placing.left - self.done + len(request.prompt) - sum(request.documents)
        return len(request.prompt) - self.done

    @property
    def prefills(self) -> bool:
        """Whether prompt tokens are left to run."""
        return self.placing is not None or self.done < len(self.answer.request.prompt)

    @property
    def is_current(self) -> bool:
        """Whether all tokens have run, so that the next one can be sampled; false after an eviction."""
        return self.due == 0

    @property
    def due(self) -> int:
        """Number of generated tokens left to run; more than one after an eviction, or after states were restored."""
        return self.left + len(self.answer.token_ids)

    def next_piece(self, length: int, *, no_single: bool = False) -> Piece:
        """Return the next tokens to run.

        Args:
            length: Maximum number of tokens of a document, of the prompt or of the generated text.
            no_single: Whether a last token of the prompt that would run alone is added.
        """
        if self.placing:
            document = self.placing.next[self.done : self.done + length]
            return Piece(document, self.done, None, self.answer.adapter.slot)
        request, adapter_slot, drawing = (
            self.answer.request,
            self.answer.adapter.slot,
            self.answer.drawing,
        )
        generated = self.done - len(request.prompt)
        if generated < 0:
            stop = _end(request.prompt, self.done, length, request.spans, no_single=no_single)
            tokens: Sequence[int] = request.prompt[self.done : stop]
        else:
            tokens = self.answer.token_ids[generated : generated + length]
        return Piece(
            tokens, self.done, request.spans, adapter_slot, len(request.source), drawing=drawing
        )

    def draft(self, most: int, rows: int) -> Sequence[int | Drawn]:
        """Return a draft after the newest token, which is still to run.

        Args:
            most: Maximum number of tokens that a call checks.
            rows: Number of decoding slots, each of which is checked in a separate call.
        """
        request, answer = self.answer.request, self.answer.token_ids
        most = min(most - (self.due - 1), request.limit - len(answer) - 1)
        if self.drafter is None or most < 1:
            return []
        if isinstance(self.drafter, Sharing):
            self.drafter.set_slot(self.row)
        return self.drafter.draft([*request.prompt, *answer], most, rows)


class Scheduler:
    """Scheduler that serves requests step by step, in one thread; it holds the decoder's states while it has any.

    Args:
        decoder: Decoder that runs the calls.
        prefixes: Prefix cache.
        speculation: Speculative decoding; None without it.
        sources: Encoder of texts or images for the decoder; None without one.
        document_cache: Computed documents of block attention; None if prompts may have none.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefixes: PrefixCache,
        speculation: Speculation | None = None,
        sources: Sources | None = None,
        document_cache: DocumentCache | None = None,
    ) -> None:
        self._decoder, self._prefixes, self._speculation = decoder, prefixes, speculation
        self._sources, self._document_cache = sources, document_cache
        # If prompts run token by token as well, generated tokens are computed the same way.
        alike = decoder.sizes.prefill_seq_len == 1 and speculation is None
        self._keeps_answers = prefixes.answers or alike
        self._groups: list[_Group] = []  # with waiting requests, in the order of submission
        self._slots: list[_Slot] = []  # in the order of admission
        #: Whether the length of a call changes no bit unless it is one, see `Decoder.split`.
        self._splits = decoder.split < decoder.sizes.prefill_seq_len
        self._shortest_next = False
        self._silent: _Slot | None = None  # the slot whose missing draft cancelled all
        self.timings = Timings()

    @property
    def waiting(self) -> int:
        """Number of requests without a batch slot."""
        return sum(len(group.waiting) for group in self._groups)

    @property
    def running(self) -> int:
        """Number of requests in a batch slot."""
        return len(self._slots)

    def run_prompt(self, prompt: Sequence[int], spans: MultimodalSpans | None = None) -> Array:
        """Run a prompt in batch slot 0, in the same calls as a request's; all slots must be free.

        Args:
            prompt: Token ids that fit the context.
            spans: Images of the prompt.

        Returns: Logits after the prompt, (vocab,).
        """
        keys, length = self._prefixes.keys(prompt, spans), self._decoder.sizes.prefill_seq_len
        done, logits = self._prefixes.restore(keys, 0, 0, len(prompt), spans), np.empty(0)
        while done < len(prompt):
            stop = _end(prompt, done, length, spans, no_single=self._splits)
            piece = Piece(prompt[done:stop], done, spans)
            logits = self._decoder.prefill({0: piece})[0]
            done += len(piece.tokens)
            self._prefixes.save(keys, 0, done, piece.start)
        return logits

    def submit(self, *answers: Answer) -> None:
        """Submit requests that share batch slots as one client's; they start when the client's turn comes."""
        if answers:
            self._groups.append(_Group(deque(answers), answers[0].request.client))

    def cancel(self, answer: Answer) -> None:
        """End a request at its current state; no effect on one that has ended."""
        if not answer.ended:
            answer.cancel()
        for group in self._groups:
            group.waiting = deque(one for one in group.waiting if not one.ended)
        self._groups = [group for group in self._groups if group.waiting]
        self._leave()

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        waiting = [answer for group in self._groups for answer in group.waiting]
        for answer in [*waiting, *(slot.answer for slot in self._slots)]:
            if not answer.ended:
                answer.fail(error)
        self._groups.clear()
        self._slots.clear()

    def step(self) -> bool:
        """Run at most one prefill call and one decode call.

        Returns:
            Whether any request is left.
        """
        if self._groups:
            self._admit()
        if prefilling := [slot for slot in self._slots if slot.prefills]:
            length = self._chunk_length(len(prefilling))
            self._prefill(self._next_chunk(prefilling, length), length)
        if decoding := [slot for slot in self._slots if not slot.prefills]:
            self._pack(decoding)
            self._decode(decoding)
        return bool(self._groups or self._slots)

    def _admit(self) -> None:
        """Give free batch slots to waiting groups, first to those of the client with the fewest.

        Among requests admitted together the shortest prompt is first, since it decodes first.
        """
        taken = {slot.row for slot in self._slots}
        free = [row for row in range(self._decoder.sizes.rows) if row not in taken]
        rows = _Rows(slot.group for slot in self._slots)
        joined: list[tuple[Answer, _Group]] = []
        while self._groups:
            group = min(self._groups, key=rows.of)  # the oldest of equals
            if len(joined) == len(free) and (slot := self._spare(group, rows)):
                self._evict(slot)
                rows.add(slot.group, -1)
                free.append(slot.row)
            if len(joined) == len(free):
                break
            joined.append((group.waiting.popleft(), group))
            rows.add(group)
            if not group.waiting:
                self._groups.remove(group)
        joined.sort(key=lambda one: one[0].request.prompt_tokens)
        self._read({row: one[0].request for row, one in zip(free, joined, strict=False)})
        for row, (answer, group) in zip(free, joined, strict=False):
            request = answer.request
            prompt = () if request.documents else request.prompt
            terms = answer.adapter.digest + request.salt
            keys = self._prefixes.keys(prompt, request.spans, terms)
            drafter = self._speculation.drafter(request) if self._speculation else None
            slot = _Slot(answer, group, row, keys, drafter)
            answer.started = answer.started or time.perf_counter()
            self._slots.append(slot)
            if request.documents:
                assert self._document_cache is not None, "the request is of another session"
                slot.placing = Placing(
                    self._document_cache, request.prompt, request.documents, terms
                )
            self._take_over(slot)

    def _read(self, requests: Mapping[int, Request]) -> None:
        """Encode the texts or images of new requests, each into its batch slot; again after an eviction."""
        if self._sources and requests:
            before = self._sources.seconds
            self._sources.read({row: request.read for row, request in requests.items()})
            self.timings.prefill_seconds += self._sources.seconds - before
            self.timings.prefill_tokens += sum(len(request.source) for request in requests.values())

    def _take_over(self, slot: _Slot) -> None:
        """Restore a prompt that another process computed; after an eviction, it is computed here."""
        handed, slot.answer.handed = slot.answer.handed, None
        if handed is not None:
            self._decoder.restore(slot.row, 0, handed.states, latest=True)
            slot.done = len(slot.answer.request.prompt)
            self._extend([slot], {slot.row: handed.logits})

    def _spare(self, group: _Group, rows: "_Rows") -> _Slot | None:
        """Choose the request to evict for a group without slots; None if no client, or no group of its, has several.

        It is the least advanced of the group with most slots, of the client with most slots.
        """
        of_client, of_group = rows.of(group)
        slots = [slot for slot in self._slots if not of_client or slot.group.client == group.client]
        most = max((rows.of(slot.group) for slot in slots), default=(0, 0))
        if of_group or most[bool(of_client)] < 2:
            return None
        return min(
            (slot for slot in slots if rows.of(slot.group) == most), key=lambda one: one.done
        )

    def _evict(self, slot: _Slot) -> None:
        """Take a request's batch slot away; the request is the first of its group to wait."""
        self._slots.remove(slot)
        slot.answer.reused_tokens = 0
        slot.answer.evictions += 1
        slot.group.waiting.appendleft(slot.answer)
        if slot.group not in self._groups:
            self._groups.append(slot.group)

    def _next_chunk(self, prefilling: list[_Slot], length: int) -> list[_Slot]:
        """Choose the prompts of the next prefill call: one of them, and others that have run as many tokens.

        The one is alternately the oldest, which is thus sure to end, and the one nearest to its end: a short prompt
        does not wait for a long one. Unless many requests wait, the call is no longer than a chunk of one prompt.
        At most half of it is padding.
        """
        if self._shortest_next:
            shortest = min(prefilling, key=lambda slot: slot.left)
            prefilling.sort(key=lambda slot: slot is not shortest)
        self._shortest_next = not self._shortest_next
        most = length * (len(prefilling) if self._many_wait(len(prefilling)) else 1)
        chunk: list[_Slot] = []
        widths: list[int] = []
        for slot in prefilling:
            self._reuse(slot)
            width = len(slot.next_piece(length, no_single=self._splits).tokens)
            together = [*widths, width]
            padded = len(together) * max(together)
            if not chunk or (
                slot.done == chunk[0].done
                and padded <= min(most, 2 * sum(together))
                and not self._will_be_reused(slot, chunk)
            ):
                chunk.append(slot)
                widths = together
        return chunk

    def _chunk_length(self, waiting: int) -> int:
        """Return the maximum number of tokens of a prompt in the next prefill call.

        Args:
            waiting: Number of requests with prompt tokens left.
        """
        length = self._decoder.sizes.prefill_seq_len
        return length if self._many_wait(waiting) else min(length, _BESIDE * self._decoder.split)

    def _many_wait(self, waiting: int) -> bool:
        """Whether a prefill call runs prompts whole: more than a third of the requests wait for their first token."""
        return 3 * waiting > self.running

    def _reuse(self, slot: _Slot) -> None:
        """Restore cached states of the next tokens: blocks of the prompt, or documents."""
        if slot.placing:
            cached = 0 if slot.done else slot.placing.look()
            self._place(slot)
        else:
            prompt, spans = slot.answer.request.prompt, slot.answer.request.spans
            done = self._prefixes.restore(slot.keys, slot.row, slot.done, len(prompt), spans)
            cached, slot.done = done - slot.done, done
        slot.answer.reused_tokens += cached
        self.timings.reused_tokens += cached

    def _place(self, slot: _Slot) -> None:
        """Write the documents of a prompt into its batch slot once all of them are computed."""
        if slot.placing and not slot.placing.key:
            slot.done, slot.placing = slot.placing.place(slot.row), None

    def _will_be_reused(self, slot: _Slot, chunk: Sequence[_Slot]) -> bool:
        """Whether a prompt of this call computes the block or document that comes next."""
        if slot.placing:
            return any(item.placing and item.placing.key == slot.placing.key for item in chunk)
        position = self._prefixes.place(slot.done)
        key = slot.keys[position : position + 1]
        return any(key and key == item.keys[position : position + 1] for item in chunk)

    def _prefill(self, chunk: Sequence[_Slot], length: int) -> None:
        pieces = {slot.row: slot.next_piece(length, no_single=self._splits) for slot in chunk}
        begun = time.perf_counter()
        logits = self._decoder.prefill(pieces)
        self.timings.prefill_seconds += time.perf_counter() - begun
        self.timings.prefill_tokens += sum(len(piece.tokens) for piece in pieces.values())
        for slot in chunk:
            slot.done += len(pieces[slot.row].tokens)
        # Hidden states of documents are not at their positions in the prompt.
        self._update_drafters([slot for slot in chunk if not slot.answer.request.documents], pieces)
        for slot in chunk:
            if slot.placing and slot.done == len(slot.placing.next):
                slot.placing.save(slot.row)
                slot.done = 0
                self._place(slot)
        self._extend(chunk, logits)
        for slot in chunk:
            self._keep(slot, pieces[slot.row].start)

    def _update_drafters(self, slots: Sequence[_Slot], pieces: Mapping[int, Piece]) -> None:
        """Pass the model's results for a call's tokens to drafters that need them."""
        for slot in slots:
            # In this order, since `isinstance` with a protocol is slower.
            if slot.row in self._decoder.hidden and isinstance(slot.drafter, Reader):
                hidden, spans = self._decoder.hidden[slot.row], slot.answer.request.spans
                start = pieces[slot.row].stop - len(hidden)
                # Drafters do not support images; after them positions continue as in any text.
                left = max(0, int(spans.places[-1]) + 1 - start) if spans else 0
                if len(hidden) > left:
                    slot.drafter.read(start + left, hidden[left:])

    def _decode(self, decoding: Sequence[_Slot]) -> None:
        """Run the newest token of each slot, with its draft after it, and tokens of restored states before it."""
        if self._speculation is None:
            self._decode_one(decoding)
            return
        drafts = self._draft(decoding, self._speculation.most)
        several = [slot for slot in decoding if slot in drafts or slot.due > 1]
        if several:
            self._check(several, drafts, self._speculation.most)
        if one := [slot for slot in decoding if slot not in several]:
            self._decode_one(one)

    def _draft(self, decoding: Sequence[_Slot], most: int) -> dict[_Slot, Sequence[int | Drawn]]:
        """Return drafts for all slots; none if each is checked in a separate call, and one has no draft that pays."""
        starts = {slot.row: slot.done for slot in decoding}
        alone = len(self._decoder.verified_together(starts, most + 1)) > 1
        drafts: dict[_Slot, Sequence[int | Drawn]] = {}
        # The slot without a draft last time is first, so that the others do not draft in vain.
        for slot in sorted(decoding, key=lambda slot: slot is not self._silent):
            drafts[slot] = slot.draft(most, len(decoding) if alone else 1)
            if alone and not drafts[slot]:
                self._silent = slot
                return {}
        # A call serves all slots: if one has a draft, the others are in the call, too.
        return drafts if any(drafts.values()) else {}

    def _check(
        self,
        slots: Sequence[_Slot],
        drafts: Mapping[_Slot, Sequence[int | Drawn]],
        most: int,
    ) -> None:
        """Run several tokens of each slot; generation continues as long as sampled tokens match the draft."""
        ahead = [(slot, slot.next_piece(most + 1), drafts.get(slot, [])) for slot in slots]
        pieces = {
            slot.row: piece._replace(tokens=[*piece.tokens, *map(token_of, draft)])
            for slot, piece, draft in ahead
        }
        held = {
            slot: self._decoder.save(slot.row, slot.done, slot.done)
            for slot, _, draft in ahead
            if draft and not self._decoder.only_grows
        }
        begun = time.perf_counter()
        logits = self._decoder.verify(pieces)
        self.timings.decode_seconds += time.perf_counter() - begun
        starts = {slot: slot.done for slot in slots}
        self._update_drafters(slots, pieces)
        for slot, piece, draft in ahead:
            before = len(slot.answer.token_ids)
            slot.done += len(piece.tokens)
            if not slot.is_current:
                continue
            accepted = slot.answer.extend_as(draft, logits[slot.row][len(piece.tokens) - 1 :])
            self.timings.decode_tokens += len(slot.answer.token_ids) - before
            self.timings.drafted_tokens += len(draft)
            self.timings.accepted_tokens += accepted
            if slot.drafter and draft:
                slot.drafter.accepted(accepted)
            if accepted < len(draft) and slot in held:
                slot.done = piece.start
                self._decoder.restore(slot.row, slot.done, held[slot], latest=True)
            else:
                slot.done += accepted
        self._leave()
        for slot in slots:
            self._keep(slot, starts[slot])

    def _decode_one(self, decoding: Sequence[_Slot]) -> None:
        pieces = {slot.row: slot.next_piece(1) for slot in decoding}
        begun = time.perf_counter()
        logits = self._decoder.decode(pieces)
        self.timings.decode_seconds += time.perf_counter() - begun
        self.timings.decode_tokens += len(decoding)
        self._update_drafters(decoding, pieces)
        for slot in decoding:
            slot.done += 1
        self._extend(decoding, logits)
        for slot in decoding:
            self._keep(slot, slot.done - 1)

    def _keep(self, slot: _Slot, since: int) -> None:
        """Cache the blocks that a call has completed; `since` is the number of tokens before it."""
        prefixes, answer, request = self._prefixes, slot.answer, slot.answer.request
        if request.documents:  # later states depend on the positions of documents
            return
        if self._keeps_answers and prefixes.place(slot.done) > len(slot.keys):
            tokens = [*request.prompt, *answer.token_ids][: slot.done]
            terms = answer.adapter.digest + request.salt
            slot.keys = prefixes.keys(tokens, request.spans, terms, slot.keys)
        prefixes.save(slot.keys, slot.row, slot.done, since)

    def _extend(self, slots: Sequence[_Slot], logits: Mapping[int, Array]) -> None:
        """Append the next token to each generation."""
        current = [slot for slot in slots if slot.is_current]
        drawn = self._decoder.drawn
        for slot in current:
            if slot.answer.drawing:
                slot.answer.extend_by(drawn[slot.row])
            else:
                slot.answer.extend(logits[slot.row])
        if current:
            self.timings.first = self.timings.first or time.perf_counter()
        self._leave()

    def _leave(self) -> None:
        """Free the batch slots of generations that have ended."""
        self._slots = [slot for slot in self._slots if not slot.answer.ended]

    def _pack(self, decoding: Sequence[_Slot]) -> None:
        """Make decoding slots adjacent if states can be moved: some calls take only adjacent slots."""
        if not self._decoder.movable:
            return
        rows = [slot.row for slot in decoding]
        count = len(rows)
        if max(rows) - min(rows) < count:
            return
        blocks = [
            range(start, start + count) for start in range(self._decoder.sizes.rows - count + 1)
        ]
        block = max(blocks, key=lambda block: sum(row in block for row in rows))
        outside = [slot for slot in decoding if slot.row not in block]
        by_row = {slot.row: slot for slot in self._slots}
        for row in block:
            here = by_row.get(row)
            if here in decoding:
                continue
            joins = outside.pop()
            self._decoder.exchange(joins.row, row, joins.done, here.done if here else 0)
            if here:
                here.row = joins.row
            joins.row = row


def _end(
    prompt: Sequence[int],
    done: int,
    length: int,
    spans: MultimodalSpans | None,
    *,
    no_single: bool,
) -> int:
    """Return where the next call of a prompt ends: beyond `length` tokens for a span, or for a last single token."""
    stop = done + length + (no_single and len(prompt) == done + length + 1)
    return stop if spans is None else spans.end(done, stop)
