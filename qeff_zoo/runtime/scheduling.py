# SPDX-License-Identifier: Apache-2.0
"""Which request runs when: any number of requests in, every one of them served.

A request takes a row as soon as one is free, however far the others are, and leaves it when its answer ends. A step is
at most one call of prefill and one of decode, so that a long prompt delays decoding by one call at a time.

Requests of one client are submitted together and share the rows fairly with those of others: a free row is for the
client that has the fewest, and a client that has none takes one from a client that has several. What was computed in
that row is computed again later, in the same calls, so that an answer does not depend on who else is there.

Where tokens are drafted, a row's next call has them behind its newest token, and what the model does not choose itself
is forgotten: states with a row for each position are written over, and the others put back as they were, so that the
tokens that count run again in front of the next call's. Where one call cannot check the drafts of several rows, each is
checked in a call of its own, as long as every row that decodes has a draft which is worth the wait of the others.
"""

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qeff_zoo.runtime.answers import Answer, Request
from qeff_zoo.runtime.block_attention import Passages, Placing
from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.encoder_inputs import Sources
from qeff_zoo.runtime.metrics import Timings
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.prefix_cache import PrefixCache
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sampling import Drawn, token_of
from qeff_zoo.runtime.speculation import Drafter, Reader, Sharing, Speculation


@dataclass(eq=False)
class _Group:
    """What was submitted together.

    Args:
        waiting: Requests without a row.
    """

    waiting: deque[Answer]


@dataclass(eq=False)
class _Slot:
    """A request that has a row.

    Args:
        answer: Answer of the request.
        group: Group of its submission.
        row: Row of the decoder.
        keys: Keys of its prompt's blocks in the prefix cache.
        drafter: Guesses how it goes on; None where nothing is drafted.
        done: Tokens whose states the row has.
        placing: Passages of the prompt, of which some are still to be computed; None where none are.
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
        """Tokens of the prompt that are left to run; not above 0 where none are."""
        request = self.answer.request
        if self.placing:
            return self.placing.left - self.done + len(request.prompt) - sum(request.documents)
        return len(request.prompt) - self.done

    @property
    def prefills(self) -> bool:
        """Whether tokens of the prompt are left to run."""
        return self.left > 0

    @property
    def is_current(self) -> bool:
        """Whether all tokens have run, so that the next one can be chosen; not so after the row was lost."""
        return self.due == 0

    @property
    def due(self) -> int:
        """Tokens of the answer that are left to run; more than one after the row was lost, or its states put back."""
        return self.left + len(self.answer.token_ids)

    def next_piece(self, length: int) -> Piece:
        """Return what is to run next: at most `length` tokens, all of a passage, of the prompt or of the answer."""
        if self.placing:
            passage = self.placing.next[self.done : self.done + length]
            return Piece(passage, self.done, None, self.answer.adapter.slot)
        if self.prefills:
            stop, insets = self.done + length, self.answer.request.insets
            stop = stop if insets is None else insets.end(self.done, stop)
            tokens: Sequence[int] = self.answer.request.prompt[self.done : stop]
        else:
            tokens = self.answer.token_ids[-self.left :][:length]
        request, slot, drawing = self.answer.request, self.answer.adapter.slot, self.answer.drawing
        return Piece(tokens, self.done, request.insets, slot, len(request.source), drawing=drawing)

    def draft(self, most: int, rows: int) -> Sequence[int | Drawn]:
        """Guess what comes after the newest token, which is still to run.

        Args:
            most: Tokens that a call checks.
            rows: Decoding rows, each of which is checked by a call of its own.
        """
        request, answer = self.answer.request, self.answer.token_ids
        most = min(most - (self.due - 1), request.limit - len(answer) - 1)
        if self.drafter is None or most < 1:
            return []
        if isinstance(self.drafter, Sharing):
            self.drafter.sees(self.row)
        return self.drafter.draft([*request.prompt, *answer], most, rows)


class Scheduler:
    """Serves requests, step by step. For one thread; while it has requests, the decoder's states are its own.

    Args:
        decoder: Runs the calls.
        prefixes: Remembers prompts.
        speculation: How answers are drafted; None where they are not.
        sources: Reads the texts or pictures that answers are written of; None where there are none.
        passages: Known ones, of which prompts may be made; None where none may.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefixes: PrefixCache,
        speculation: Speculation | None = None,
        sources: Sources | None = None,
        passages: Passages | None = None,
    ) -> None:
        self._decoder, self._prefixes, self._speculation = decoder, prefixes, speculation
        self._sources, self._passages = sources, passages
        # Where prompts are run token by token as well, an answer's tokens are no others.
        alike = decoder.sizes.prefill_seq_len == 1 and speculation is None
        self._keeps_answers = prefixes.answers or alike
        self._groups: list[_Group] = []  # that have requests which wait, in the order of joining
        self._seats: list[_Slot] = []  # in the order of joining
        self._shortest_next = False
        self._silent: _Slot | None = None  # had nothing to be checked, so that nobody was
        self.timings = Timings()

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return sum(len(group.waiting) for group in self._groups)

    @property
    def running(self) -> int:
        """Requests with a row."""
        return len(self._seats)

    def run_prompt(self, prompt: Sequence[int], insets: MultimodalSpans | None = None) -> Array:
        """Run a prompt in row 0, in the calls that a request's is run in; nothing else must be there.

        Args:
            prompt: Token ids that fit into the context.
            insets: Its pictures.

        Returns: The logits after it, (vocab,).
        """
        keys, length = self._prefixes.keys(prompt, insets), self._decoder.sizes.prefill_seq_len
        done, logits = self._prefixes.restore(keys, 0, 0), np.empty(0, np.float32)
        while done < len(prompt):
            stop = done + length if insets is None else insets.end(done, done + length)
            piece = Piece(prompt[done:stop], done, insets)
            logits = self._decoder.prefill({0: piece})[0]
            done += len(piece.tokens)
            self._prefixes.save(keys, 0, done)
        return logits

    def submit(self, *answers: Answer) -> None:
        """Take requests in that share rows as one client's; they begin as soon as it is their turn to have a row."""
        if answers:
            self._groups.append(_Group(deque(answers)))

    def cancel(self, answer: Answer) -> None:
        """End a request as it is, wherever it has got to; one that has ended stays so."""
        if not answer.ended:
            answer.cancel()
        for group in self._groups:
            group.waiting = deque(one for one in group.waiting if not one.ended)
        self._groups = [group for group in self._groups if group.waiting]
        self._leave()

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        waiting = [answer for group in self._groups for answer in group.waiting]
        for answer in [*waiting, *(seat.answer for seat in self._seats)]:
            if not answer.ended:
                answer.fail(error)
        self._groups.clear()
        self._seats.clear()

    def step(self) -> bool:
        """Make at most one call of prefill and one of decode.

        Returns:
            Whether anything is left to do.
        """
        self._admit()
        if chunk := self._next_chunk():
            self._prefill(chunk)
        if decoding := [seat for seat in self._seats if not seat.prefills]:
            self._pack(decoding)
            self._decode(decoding)
        return bool(self._groups or self._seats)

    def _admit(self) -> None:
        """Give rows to groups that wait, first to the one that has the fewest.

        Of those that join at a time the shortest prompt is first: it is the first to decode.
        """
        taken = {seat.row for seat in self._seats}
        free = [row for row in range(self._decoder.sizes.rows) if row not in taken]
        rows = Counter(seat.group for seat in self._seats)
        joined: list[tuple[Answer, _Group]] = []
        while self._groups:
            group = min(self._groups, key=lambda one: rows[one])  # the oldest of equals
            if len(joined) == len(free) and not rows[group] and (seat := self._spare(rows)):
                self._evict(seat)
                rows[seat.group] -= 1
                free.append(seat.row)
            if len(joined) == len(free):
                break
            joined.append((group.waiting.popleft(), group))
            rows[group] += 1
            if not group.waiting:
                self._groups.remove(group)
        joined.sort(key=lambda one: one[0].request.prompt_tokens)
        self._read({row: one[0].request for row, one in zip(free, joined, strict=False)})
        for row, (answer, group) in zip(free, joined, strict=False):
            request = answer.request
            prompt = () if request.documents else request.prompt
            keys = self._prefixes.keys(prompt, request.insets, answer.adapter.digest)
            drafter = self._speculation.drafter(request) if self._speculation else None
            seat = _Slot(answer, group, row, keys, drafter)
            self._seats.append(seat)
            if request.documents:
                assert self._passages is not None, "the request is of another session"
                digest = answer.adapter.digest
                seat.placing = Placing(self._passages, request.prompt, request.documents, digest)
            self._take_over(seat)

    def _read(self, requests: Mapping[int, Request]) -> None:
        """Encode the texts or images of new requests, each into its row; again after that row was lost."""
        if self._sources and requests:
            before = self._sources.seconds
            self._sources.read({row: one.read for row, one in requests.items()})
            self.timings.prefill_seconds += self._sources.seconds - before
            self.timings.prefill_tokens += sum(len(one.source) for one in requests.values())

    def _take_over(self, seat: _Slot) -> None:
        """Go on from what another process computed of a prompt; later than that, all is computed here."""
        handed, seat.answer.handed = seat.answer.handed, None
        if handed is not None:
            self._decoder.restore(seat.row, 0, handed.states, latest=True)
            seat.done = len(seat.answer.request.prompt)
            self._extend([seat], {seat.row: handed.logits})

    def _spare(self, rows: Counter[_Group]) -> _Slot | None:
        """Choose what gives its row up to a group without any: of the group with most rows, what has run least."""
        group, count = rows.most_common(1)[0]
        seats = [seat for seat in self._seats if seat.group is group]
        return min(seats, key=lambda seat: seat.done) if count > 1 else None

    def _evict(self, seat: _Slot) -> None:
        """Take a request's row away; it waits, before all others of its group."""
        self._seats.remove(seat)
        seat.answer.reused_tokens = 0
        seat.group.waiting.appendleft(seat.answer)
        if seat.group not in self._groups:
            self._groups.append(seat.group)

    def _next_chunk(self) -> list[_Slot]:
        """Choose the prompts of the next prefill call: one of them, and others that have run as many tokens.

        The one is by turns the oldest, which therefore ends, and the one that is nearest to its end: a short prompt
        does not wait for a long one. While others decode, the call is no longer than a chunk of one prompt. At most
        half of it is padding.
        """
        length = self._decoder.sizes.prefill_seq_len
        prefilling = [seat for seat in self._seats if seat.prefills]
        if prefilling and self._shortest_next:
            shortest = min(prefilling, key=lambda seat: seat.left)
            prefilling.sort(key=lambda seat: seat is not shortest)
        self._shortest_next = not self._shortest_next
        most = length * (len(prefilling) if len(prefilling) == self.running else 1)
        chunk: list[_Slot] = []
        widths: list[int] = []
        for seat in prefilling:
            self._reuse(seat)
            width = len(seat.next_piece(length).tokens)
            together = [*widths, width]
            padded = len(together) * max(together)
            if not chunk or (
                seat.done == chunk[0].done
                and padded <= min(most, 2 * sum(together))
                and not self._will_be_reused(seat, chunk)
            ):
                chunk.append(seat)
                widths = together
        return chunk

    def _reuse(self, seat: _Slot) -> None:
        """Take over what is known of the tokens that come next: blocks of the prompt, or passages."""
        if seat.placing:
            found = 0 if seat.done else seat.placing.look()
            self._place(seat)
        else:
            done = self._prefixes.restore(seat.keys, seat.row, seat.done)
            found, seat.done = done - seat.done, done
        seat.answer.reused_tokens += found
        self.timings.reused_tokens += found

    def _place(self, seat: _Slot) -> None:
        """Put the passages of a prompt together once all of them are there."""
        if seat.placing and not seat.placing.key:
            seat.done, seat.placing = seat.placing.place(seat.row), None

    def _will_be_reused(self, seat: _Slot, chunk: Sequence[_Slot]) -> bool:
        """Whether a prompt of this call computes the block or document that comes next."""
        if seat.placing:
            return any(one.placing and one.placing.key == seat.placing.key for one in chunk)
        place = self._prefixes.place(seat.done)
        key = seat.keys[place : place + 1]
        return any(key and key == one.keys[place : place + 1] for one in chunk)

    def _prefill(self, chunk: Sequence[_Slot]) -> None:
        length = self._decoder.sizes.prefill_seq_len
        pieces = {seat.row: seat.next_piece(length) for seat in chunk}
        begun = time.perf_counter()
        logits = self._decoder.prefill(pieces)
        self.timings.prefill_seconds += time.perf_counter() - begun
        self.timings.prefill_tokens += sum(len(piece.tokens) for piece in pieces.values())
        for seat in chunk:
            seat.done += len(pieces[seat.row].tokens)
        # Of passages, what a drafter would read is not where it is.
        self._tell([seat for seat in chunk if not seat.answer.request.documents], pieces)
        for seat in chunk:
            if seat.placing and seat.done == len(seat.placing.next):
                seat.placing.save(seat.row)
                seat.done = 0
                self._place(seat)
        self._extend(chunk, logits)
        for seat in chunk:
            self._keep(seat)

    def _tell(self, seats: Sequence[_Slot], pieces: Mapping[int, Piece]) -> None:
        """Pass the model's results for a call's tokens to drafters that need them."""
        for seat in seats:
            # In this order: to ask of a protocol takes longer.
            if seat.row in self._decoder.hidden and isinstance(seat.drafter, Reader):
                hidden, insets = self._decoder.hidden[seat.row], seat.answer.request.insets
                start = pieces[seat.row].stop - len(hidden)
                # What drafts knows nothing of pictures; behind them positions go on as in any text.
                left = max(0, int(insets.places[-1]) + 1 - start) if insets else 0
                if len(hidden) > left:
                    seat.drafter.read(start + left, hidden[left:])

    def _decode(self, decoding: Sequence[_Slot]) -> None:
        """Run the newest token of each row: with a draft behind it, and with what was put back in front of it."""
        if self._speculation is None:
            self._decode_one(decoding)
            return
        drafts = self._draft(decoding, self._speculation.most)
        several = [seat for seat in decoding if seat in drafts or seat.due > 1]
        if several:
            self._check(several, drafts, self._speculation.most)
        if one := [seat for seat in decoding if seat not in several]:
            self._decode_one(one)

    def _draft(self, decoding: Sequence[_Slot], most: int) -> dict[_Slot, Sequence[int | Drawn]]:
        """Draft for all rows; for none where a call has one row alone, and not all have what is worth the wait."""
        starts = {seat.row: seat.done for seat in decoding}
        alone = len(self._decoder.verified_together(starts, most + 1)) > 1
        drafts: dict[_Slot, Sequence[int | Drawn]] = {}
        # First who had nothing the last time: then nobody else drafts in vain.
        for seat in sorted(decoding, key=lambda seat: seat is not self._silent):
            drafts[seat] = seat.draft(most, len(decoding) if alone else 1)
            if alone and not drafts[seat]:
                self._silent = seat
                return {}
        # A call serves all rows: with one drafted for, the others are in it too.
        return drafts if any(drafts.values()) else {}

    def _check(
        self,
        seats: Sequence[_Slot],
        drafts: Mapping[_Slot, Sequence[int | Drawn]],
        most: int,
    ) -> None:
        """Run several tokens of each row; let answers go on for as long as they agree with their drafts."""
        ahead = [(seat, seat.next_piece(most + 1), drafts.get(seat, [])) for seat in seats]
        pieces = {
            seat.row: replace(piece, tokens=[*piece.tokens, *map(token_of, draft)])
            for seat, piece, draft in ahead
        }
        held = {
            seat: self._decoder.save(seat.row, seat.done, seat.done)
            for seat, _, draft in ahead
            if draft and not self._decoder.only_grows
        }
        begun = time.perf_counter()
        logits = self._decoder.verify(pieces)
        self.timings.decode_seconds += time.perf_counter() - begun
        starts = {seat: seat.done for seat in seats}
        self._tell(seats, pieces)
        for seat, piece, draft in ahead:
            before = len(seat.answer.token_ids)
            seat.done += len(piece.tokens)
            if not seat.is_current:
                continue
            accepted = seat.answer.extend_as(draft, logits[seat.row][len(piece.tokens) - 1 :])
            self.timings.decode_tokens += len(seat.answer.token_ids) - before
            self.timings.drafted_tokens += len(draft)
            self.timings.accepted_tokens += accepted
            if seat.drafter and draft:
                seat.drafter.accepted(accepted)
            if accepted < len(draft) and seat in held:
                seat.done = piece.start
                self._decoder.restore(seat.row, seat.done, held[seat], latest=True)
            else:
                seat.done += accepted
        self._leave()
        for seat in seats:
            self._keep(seat, starts[seat])

    def _decode_one(self, decoding: Sequence[_Slot]) -> None:
        pieces = {seat.row: seat.next_piece(1) for seat in decoding}
        begun = time.perf_counter()
        logits = self._decoder.decode(pieces)
        self.timings.decode_seconds += time.perf_counter() - begun
        self.timings.decode_tokens += len(decoding)
        self._tell(decoding, pieces)
        for seat in decoding:
            seat.done += 1
        self._extend(decoding, logits)
        for seat in decoding:
            self._keep(seat, seat.done - 1)

    def _keep(self, seat: _Slot, since: int | None = None) -> None:
        """Let the prefix cache have what a call has completed, of an answer `since` how many tokens."""
        prefixes, answer, request = self._prefixes, seat.answer, seat.answer.request
        if request.documents:  # what comes after passages depends on where they are
            return
        if self._keeps_answers and prefixes.place(seat.done) > len(seat.keys):
            tokens = [*request.prompt, *answer.token_ids]
            seat.keys = prefixes.keys(tokens, request.insets, answer.adapter.digest, seat.keys)
        prefixes.save(seat.keys, seat.row, seat.done, since)

    def _extend(self, seats: Sequence[_Slot], logits: Mapping[int, Array]) -> None:
        """Give answers their next token."""
        current = [seat for seat in seats if seat.is_current]
        drawn = self._decoder.drawn
        for seat in current:
            if seat.answer.drawing:
                seat.answer.extend_by(drawn[seat.row])
            else:
                seat.answer.extend(logits[seat.row])
        if current:
            self.timings.first = self.timings.first or time.perf_counter()
        self._leave()

    def _leave(self) -> None:
        """Free the rows of answers that have ended."""
        self._seats = [seat for seat in self._seats if not seat.answer.ended]

    def _pack(self, decoding: Sequence[_Slot]) -> None:
        """Make the rows that decode adjacent, where states can be moved: a call may take only adjacent rows."""
        if not self._decoder.movable:
            return
        rows = [seat.row for seat in decoding]
        count = len(rows)
        if max(rows) - min(rows) < count:
            return
        blocks = [
            range(start, start + count) for start in range(self._decoder.sizes.rows - count + 1)
        ]
        block = max(blocks, key=lambda block: sum(row in block for row in rows))
        outside = [seat for seat in decoding if seat.row not in block]
        by_row = {seat.row: seat for seat in self._seats}
        for row in block:
            here = by_row.get(row)
            if here in decoding:
                continue
            joins = outside.pop()
            self._decoder.exchange(joins.row, row, joins.done, here.done if here else 0)
            if here:
                here.row = joins.row
            joins.row = row
