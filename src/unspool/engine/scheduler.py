"""Which branches run in the next step, how many tokens of each, and who makes room for whom."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from time import perf_counter

from unspool.cache import BLOCK_SIZE, blocks_for_tokens
from unspool.engine.branch import Branch
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.drafted import Drafted
from unspool.engine.flight import Flight
from unspool.engine.host import Host
from unspool.engine.prefill import PREFILL_TOKENS, context_weight, prefill_share, prefill_shares
from unspool.engine.request import check_ids
from unspool.engine.track import Track
from unspool.errors import ParameterError, shown
from unspool.speculate.draft import DraftTree, Proposer

MOST_BEGINNING = 8
"""How many prompts are computed side by side, where the first ones would fill the steps alone."""
MOST_ENDED = 16
"""How many branches that ended while they waited are held before they are looked for."""
READ_TOKENS = 64
"""The most tokens of a run all of whose rows are read: logits take vocabulary * 4 bytes each."""


class Scheduler:
    """Branches that run, those that wait for a place in the cache, and the plan of each step.

    First come, first served, higher priorities first; a branch that runs gets its token in every step. A
    branch starts when a step has a place for it and the cache room for all its tokens so far, and for those
    that run to grow; lower priorities give up theirs for it, where that is enough. Where a running branch
    finds no block, the last running branch gives up all of its own and waits again; where that is itself, it
    keeps them and goes without a token. The first is never asked to.

    step_tokens: the most tokens of a step, and the most that all running branches take to go on by one.
    host: runs the requests' own proposers.
    """

    def __init__(self, homes: Iterable[CachedBackend], step_tokens: int, host: Host) -> None:
        self.homes = list(homes)
        self.step_tokens = step_tokens
        self.host = host
        self._context_weight = context_weight(self.homes[0].backend.spec)
        self.running: list[Branch] = []
        """In their order."""
        self.faults: list[tuple[Flight, BaseException]] = []
        """Requests whose proposer failed while a step was planned."""
        self.considered: Branch | None = None
        """The branch that is being planned."""
        self.preemptions = 0
        self.queried_tokens = self.cached_tokens = 0
        """Prompt tokens of branches that started, and those of them that were found in the cache."""
        self._waiting: list[tuple[tuple[int, int, int], Branch]] = []
        self._parked: dict[tuple[str, bytes], list[Branch]] = {}
        """Branches whose beginning another is about to compute, by the first block that they lack."""
        self._ended, self._most_ended = 0, MOST_ENDED
        """How many branches have ended that may still be among those that wait, and how many may be."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.running or self._waiting or self._parked)

    @property
    def waiting(self) -> list[Branch]:
        """The branches without a place in the cache, in no particular order."""
        parked = [branch for branches in self._parked.values() for branch in branches]
        return [branch for branch in [*(branch for _, branch in self._waiting), *parked] if branch.growing]

    def queue(self, branches: Iterable[Branch]) -> None:
        """Let branches wait for a place in the cache."""
        for branch in branches:
            heapq.heappush(self._waiting, (branch.order, branch))

    def place(self, branch: Branch) -> None:
        """Let a fork, which shares its blocks with a running branch, run."""
        branch.running = True
        insort(self.running, branch, key=lambda b: b.order)

    def remove(self, branch: Branch) -> None:
        """Free a branch that has ended; one that waits is passed over when its turn comes, if not before."""
        if branch.running:
            self.running.remove(branch)
        else:
            self._ended += 1
        self._release(branch)
        if self._ended > self._most_ended:
            self._let_go()

    def give_way(self) -> Flight | None:
        """Where nothing can be planned: let the last request that runs make way for those before it.

        Returns the first of all where there is none after it: it cannot go on in a cache of its own.
        """
        first = min([*self.running[:1], *self.waiting], key=lambda b: b.order)
        if not self.running or self.running[-1].flight is first.flight:
            return first.flight
        self._preempt(self.running[-1])
        return None

    def reset(self, branches: Iterable[Branch]) -> None:
        """Let these branches, all there are, wait for a place in caches that were reset."""
        self.running, self._waiting = [], []
        self._parked.clear()
        self._ended, self._most_ended, self.considered = 0, MOST_ENDED, None
        self.faults.clear()
        for branch in branches:
            branch.forget()
            held_back = 0 < branch.index < branch.request.strategy.width and not branch.flight.all_begun
            if branch.growing and not held_back:
                self.queue([branch])

    def plan(self) -> list[Branch]:
        """The branches of the next step, in order; their tracks and drafts say what they run.

        Between two calls every planned token must have been computed.
        """
        decoding, watched, beginning = self._standing()
        prefill = self._prefill(decoding, watched)
        if self._waiting or self._parked:
            preempted = self.preemptions
            beginning = self._start(prefill, beginning)
            if self.preemptions > preempted:  # those that gave way decode no more
                decoding, watched, _ = self._standing(beginning)
                prefill = self._prefill(decoding, watched)
        weight = self._context_weight if watched else 0.0
        shares = prefill_shares(beginning, prefill, weight) if beginning else {}
        room, spare = self.step_tokens, self.step_tokens - decoding - sum(shares.values())
        planned = []
        for branch in tuple(self.running):
            if not branch.running:  # gave its place to one before it
                continue
            if room <= 0:
                break
            self.considered = branch
            count = branch.pending()
            if count == len(branch.tracks) and shares.get(branch, count) >= count:
                used = self._decode(branch, room)
                if used and spare > 0 and branch.request.proposer is not None and not branch.reading:
                    guessed = self._draft(branch, branch.request.proposer, min(spare, room - used))
                    spare -= guessed
                    used += guessed
            elif count == 0:  # its row waits for those of branches that grow together with it
                continue
            else:
                used = self._compute(branch, count, min(shares.get(branch, 0), room))
            if used > 0:
                room -= used
                planned.append(branch)
        self.considered = None
        return [branch for branch in planned if branch.running]

    def _standing(self, but: Sequence[Branch] = ()) -> tuple[int, bool, list[Branch]]:
        """Places of the branches that decode, whether one is streamed, and the branches that are beginning.

        but: branches that are beginning, however few of their tokens are left.
        """
        decoding, watched, beginning = 0, False, []
        for branch in self.running:
            self.considered = branch
            count = branch.pending()
            if branch in but:
                continue
            if count == len(branch.tracks):
                decoding += branch.places
                watched = watched or branch.flight.streaming
            elif count > 0:
                beginning.append(branch)
        return decoding, watched, beginning

    def _prefill(self, decoding: int, watched: bool) -> int:
        """How many prompt tokens a step takes beside those that decode.

        Where nobody sees tokens come, prompts go first, so that the most branches share each step.
        """
        share = prefill_share(decoding) if watched else PREFILL_TOKENS
        return min(share, max(1, self.step_tokens - decoding))

    def _start(self, prefill: int, beginning: list[Branch]) -> list[Branch]:
        """Give places to branches that wait, in order, while there are blocks for them.

        beginning: the running branches whose prompts are being computed. Returns all that are beginning now.
        """
        self._unpark()
        beginning = list(beginning)
        deferred: list[Branch] = []
        while self._waiting and may_begin(self._waiting[0][1], beginning, prefill):
            branch = self.considered = self._waiting[0][1]
            digest = self._being_computed(branch) if branch.growing else None
            if not branch.growing or digest is not None:
                heapq.heappop(self._waiting)
                if digest is not None:
                    self._parked.setdefault(digest, []).append(branch)
                continue
            if self._awaits_sibling(branch):
                deferred.append(heapq.heappop(self._waiting)[1])
                continue
            if not self._make_room(branch, beginning):
                break
            heapq.heappop(self._waiting)
            self._begin(branch)
            beginning.append(branch)
        self.queue(deferred)
        return sorted((branch for branch in beginning if branch.running), key=lambda b: b.order)

    def _make_room(self, branch: Branch, beginning: list[Branch]) -> bool:
        """Whether a branch can start; lower priorities give their places up for it, if that is enough."""
        if self._has_room(branch, beginning):
            return True
        lower = [other for other in self.running if other.order[0] > branch.order[0]]
        if not lower or not self._has_room(branch, beginning, lower):
            return False
        while not self._has_room(branch, beginning):
            self._preempt(self.running[-1])
        return True

    def _has_room(self, branch: Branch, beginning: list[Branch], without: Sequence[Branch] = ()) -> bool:
        """Whether a step has a place for a branch, and the cache blocks beside what is yet to be taken.

        One more for every four branches that run is left to them to grow, except by one that joins branches
        that it grows together with.

        without: the last running branches, where they are taken not to run.
        """
        running = self.running[: len(self.running) - len(without)]
        if not running:
            return True  # alone it fits: that was checked when it came
        joins = branch.request.strategy.together and self._sibling(branch) is not None
        if not joins and sum(other.places for other in running) + branch.places > self.step_tokens:
            return False
        needs = dict.fromkeys(self.homes, 0 if joins else len(running) // 4)
        freed = held_alone(without)
        for track in branch.tracks:
            needs[track.home] += self._new_blocks(branch, track, freed[track.home])
        for other in beginning:
            if other.running and other not in without:
                for track in other.tracks:
                    total = blocks_for_tokens(len(track.prefix) + len(other.token_ids))
                    needs[track.home] += total - track.table.num_blocks
        return all(home.pool.num_free + len(freed[home]) >= need for home, need in needs.items())

    def _unpark(self) -> None:
        """Let branches go on whose beginning is computed by now, or will not be."""
        if not self._parked:
            return
        homes = {home.name: home for home in self.homes}
        for key in list(self._parked):
            if homes[key[0]].prefixes.owner(key[1]) is None:
                self.queue(self._parked.pop(key))

    def _being_computed(self, branch: Branch) -> tuple[str, bytes] | None:
        """The first block that a branch lacks, where another branch is about to compute it."""
        for track in branch.tracks:
            limit = self._sharable(branch, track)
            found = len(track.find(branch.final_ids, limit))
            digests = track.digests(branch.final_ids) if track.home.sharing else []
            if found == min(len(digests), limit // BLOCK_SIZE):
                continue
            owner = track.home.prefixes.owner(digests[found])
            if isinstance(owner, Branch) and owner.order < branch.order:  # nobody waits for a lower priority
                return track.home.name, digests[found]
        return None

    def _sharable(self, branch: Branch, track: Track) -> int:
        """How many of a branch's first tokens may come from the cache: the row after the last is wanted."""
        if branch.reading:
            return branch.read
        if branch.request.strategy.want.hidden:
            return min(branch.known, len(branch.request.prompt) + len(branch.token_ids) - 1)
        return len(track.prefix) + len(branch.token_ids) - 1

    def _new_blocks(self, branch: Branch, track: Track, freed: Container[int]) -> int:
        """Blocks that a branch takes from those free: all but those found that others hold.

        freed: blocks that are taken to be free.
        """
        found = track.find(branch.final_ids, self._sharable(branch, track))
        held = track.home.prefixes.held(found, freed)
        sibling = self._sibling(branch)
        if sibling is not None:
            shared = self._shared_with(branch, sibling, branch.tracks.index(track))
            held = shared // BLOCK_SIZE if shared > BLOCK_SIZE * len(found) else held
        return blocks_for_tokens(len(track.prefix) + len(branch.token_ids)) - held

    def _begin(self, branch: Branch) -> None:
        """Give a branch its place: what others have computed of it, and the right to compute the rest."""
        sibling = self._sibling(branch)
        for at, track in enumerate(branch.tracks):
            found = track.find(branch.final_ids, self._sharable(branch, track))
            shared = 0 if sibling is None else self._shared_with(branch, sibling, at)
            if sibling is not None and shared > BLOCK_SIZE * len(found):
                track.follow(sibling.tracks[at], shared)
            elif found:
                track.adopt(found)
            if track.home.sharing:
                digests = track.digests(branch.final_ids)
                track.home.prefixes.begin(digests[track.table.length // BLOCK_SIZE :], branch)
        if branch.flight.started == 0.0:
            branch.flight.started = perf_counter()
            branch.flight.cached_tokens = branch.tracks[0].table.length
            self.queried_tokens += len(branch.request.prompt)
            self.cached_tokens += branch.flight.cached_tokens
        branch.running = True
        insort(self.running, branch, key=lambda b: b.order)

    def _sibling(self, branch: Branch) -> Branch | None:
        """The running branch of the same request to share blocks with: before branches part, any is.

        Branches that grow together all run or none does, so that each must find what it shared before.
        """
        running = (other for other in branch.flight.branches if other.running)
        if not branch.request.strategy.together:
            return next(running, None)
        return max(running, key=lambda other: self._shared_with(branch, other, 0), default=None)

    def _awaits_sibling(self, branch: Branch) -> bool:
        """Whether a branch that grows together with this one is computing, again, what both begin with."""
        if not branch.request.strategy.together:
            return False
        running = [other for other in branch.flight.branches if other.running]
        return any(
            max((self._common(branch, other, at) for other in running), default=0)
            > max((self._shared_with(branch, other, at) for other in running), default=0)
            for at in range(len(branch.tracks))
        )

    def _shared_with(self, branch: Branch, sibling: Branch, at: int) -> int:
        """How many of a branch's first positions a branch of the same request has computed."""
        return min(self._common(branch, sibling, at), sibling.tracks[at].table.length)

    def _common(self, branch: Branch, sibling: Branch, at: int) -> int:
        """How many of a branch's first positions may be those of a branch of the same request."""
        same = len(branch.tracks[at].prefix)
        for a, b in zip(branch.token_ids, sibling.token_ids, strict=False):
            if a != b:
                break
            same += 1
        return min(same, self._sharable(branch, branch.tracks[at]))

    def _decode(self, branch: Branch, room: int) -> int:
        """Plan a branch's last token on each track; how many tokens that is, 0 where no block is left."""
        if branch.request.source is not None:
            return self._compute(branch, len(branch.tracks), room)
        track, token_ids = branch.tracks[0], branch.token_ids
        slot = track.table.next_slot()
        if slot is not None:
            track.slots = [slot]
        elif (slots := self._append(branch, track, 1)) is not None:
            track.slots = slots
        else:
            return 0
        track.run = [token_ids[-1] if token_ids else track.prefix[-1]]
        track.start = track.table.length - 1
        branch.row = True
        return 1

    def _draft(self, branch: Branch, proposer: Proposer, spare: int) -> int:
        """Plan guesses at what follows a branch's last token; how many tokens that is over its tracks."""
        request, tracks = branch.request, branch.tracks
        each = branch.places
        most = min(spare // each, request.max_tokens - len(branch.token_ids) - 1)
        if most < 1:
            return 0

        def propose() -> DraftTree | None:
            tree = proposer.propose([*request.prompt, *branch.token_ids], most)
            if tree is None:
                return None
            if not isinstance(tree, DraftTree):
                raise ParameterError(f"a proposer must give a DraftTree or None, not {shown(tree)}")
            tree = tree.first(most)
            check_ids("a draft", tree.tokens, tracks[0].home.backend.spec.vocab_size)
            return tree

        tree = self.host.run(branch.flight, propose, lambda *fault: self.faults.append(fault))
        if tree is None or len(tree) == 0:
            return 0
        appended = []
        for track in tracks:
            more = track.table.append(len(tree))
            if more is None:  # guesses take no block from others
                break
            appended.append(more.slots.tolist())
        if len(appended) < len(tracks):
            for track in tracks:
                track.table.truncate(track.start + 1)
            return 0
        for track, slots in zip(tracks, appended, strict=True):
            track.run = [*track.run, *tree.tokens]
            track.slots = [*track.slots, *slots]
        branch.drafted = Drafted(tree)
        return len(tree) * each

    def _compute(self, branch: Branch, count: int, room: int) -> int:
        """Plan the next of ``count`` tokens, at most ``room``; how much of the room that takes.

        The last tokens of all tracks, whose rows are combined, go in one step, and a step's rows are as
        limited as its tokens.
        """
        if branch.reading:
            room = min(room, READ_TOKENS)
        tracks, used = branch.tracks, 0
        branch.row = max(count, branch.rows) <= room
        for track in tracks:
            track.run, track.slots, track.start = [], [], track.table.length
        for track in tracks:
            pending = track.pending(len(branch.token_ids))
            most = pending if branch.row else min(room - used, pending - (branch.request.source is not None))
            if most <= 0:
                continue
            slots = self._append(branch, track, most)
            if slots is None:
                if branch.running:
                    self._take_back(branch)
                return 0
            track.run = track.tokens(track.start, track.start + most, branch.token_ids)
            track.slots = slots
            used += most
        return max(used, branch.rows) if branch.row and used else used

    def _take_back(self, branch: Branch) -> None:
        """Undo what was planned for some of a branch's tracks."""
        for track in branch.tracks:
            track.table.truncate(track.start)
            track.run, track.slots = [], []

    def _append(self, branch: Branch, track: Track, count: int) -> list[int] | None:
        """Slots for ``count`` more tokens; ``None`` where even later branches have no block to give."""
        while (appended := track.table.append(count)) is None:
            last = self.running[-1]
            if last is branch or (last.flight is branch.flight and branch.request.strategy.together):
                return None
            self._preempt(last)
        if len(appended.copies):
            track.home.copies.append(appended.copies)
        slots: list[int] = appended.slots.tolist()
        return slots

    def _preempt(self, branch: Branch) -> None:
        """Take a branch's place away, and those of all that grow together with it."""
        flight = branch.flight
        together = flight.request.strategy.together
        victims = [b for b in flight.branches if b.running] if together else [branch]
        for victim in victims:
            self.running.remove(victim)
            self._release(victim)
            flight.preemptions += 1
            self.preemptions += 1
        self.queue(victims)

    def _release(self, branch: Branch) -> None:
        """Free a branch's blocks; what it was about to compute, others may."""
        for track in branch.tracks:
            track.home.prefixes.end(branch)
        branch.free()

    def _let_go(self) -> None:
        """Hold ended branches no longer. It is done for many at once, as it looks at all that wait."""
        self._waiting = [waiting for waiting in self._waiting if waiting[1].growing]
        heapq.heapify(self._waiting)
        parked = {key: [b for b in branches if b.growing] for key, branches in self._parked.items()}
        self._parked = {key: branches for key, branches in parked.items() if branches}
        self._ended, self._most_ended = 0, max(MOST_ENDED, len(self.waiting))


def may_begin(branch: Branch, beginning: Sequence[Branch], prefill: int) -> bool:
    """Whether a branch's prompt may be computed beside those that have begun.

    It may where they have less than ``prefill`` tokens to compute, and beyond that beside a few, so that a
    short prompt finds its way past a long one. Those of lower priority are no reason to wait.
    """
    rivals = [other for other in beginning if other.running and other.order[0] <= branch.order[0]]
    return len(rivals) < MOST_BEGINNING or sum(rival.pending() for rival in rivals) < prefill


def held_alone(branches: Iterable[Branch]) -> defaultdict[CachedBackend, set[int]]:
    """The blocks of each backend that nobody but these branches holds."""
    tables = [(track.home, track.table) for branch in branches for track in branch.tracks]
    holders = Counter((home, block) for home, table in tables for block in table.blocks.tolist())
    alone: defaultdict[CachedBackend, set[int]] = defaultdict(set)
    for (home, block), count in holders.items():
        if home.pool.references(block) == count:
            alone[home].add(block)
    return alone
