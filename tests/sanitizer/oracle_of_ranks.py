"""Judges the accesses of one rank's program by brute force, by what docs/sanitizer.md says orders what.

Each access of the program is a bit. For the host, each stream and whatever else acts (a lane) the oracle
keeps the set of all accesses that come before whatever that lane does next. It compares each access with
every earlier one. Of other ranks it knows nothing: a collective or a message is an access of this rank's
memory.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

Lane = tuple  # HOST, ("stream", k), ("group", group, device) or ("messages", group, device, peer)
HOST: Lane = ("host",)
CARD, CPU = "card", "cpu"
ANY_PEER = -1  # of a receive from any rank, and of a batch of messages


class Touch(NamedTuple):
    """An access to a tensor that a statement names. Two cells are an element of 8 bytes."""

    name: str
    cells: int
    writes: bool


class Past(NamedTuple):
    """An access that was made."""

    place: object
    life: int
    cells: int
    writes: bool
    lane: Lane
    line: int
    work: str | None


@dataclass
class Memory:
    """What is known of the card's memory at one address."""

    owner: Lane | None = None
    life: int = 0
    ordered: int = (
        0  # comes before every access, because the allocator has waited for it, or its owner knows it
    )
    # What came before the owner's next action when it got the memory, and the line. What others do has to
    # come after that.
    born: int = 0
    born_at: int = 0
    kept_for: set[Lane] = field(default_factory=set)


@dataclass
class Handle:
    """A Work."""

    lane: Lane
    point: int
    names: set[str]
    future: int | None = None
    let_go: bool = False  # somebody has waited, so it no longer keeps memory
    gone: bool = False
    is_manager: bool = False
    has_future: bool = True
    has_result: bool = True  # on this rank: without one, the future is complete from the beginning

    @property
    def on_card(self) -> bool:
        return is_of_card(self.lane)


def is_of_card(lane: Lane) -> bool:
    return lane[0] == "stream" or (lane != HOST and lane[2] == CARD)


class Oracle:
    """Judges one rank's program.

    With `messages_have_order`, messages with one peer come one after the other, and a synchronisation of the
    card waits for them, as on a GPU: so the sanitizer sees them. On cards, only their own wait() orders
    messages, which is what the oracle believes without it.
    """

    def __init__(self, messages_have_order: bool) -> None:
        self.messages_have_order = messages_have_order
        self._before: dict[Lane, int] = defaultdict(int)
        self.accesses: list[Past] = []
        self.memory: dict[object, Memory] = defaultdict(Memory)
        self.places: dict[str, object] = {}  # of the tensors that the program makes
        self.handles: dict[str, Handle] = {}
        self.events: dict[int, int] = defaultdict(int)
        # For each line, and each of its accesses that races, the lines and kinds of the pairs.
        self.verdicts: dict[int, list[set[tuple[int, str]]]] = defaultdict(list)

    def before(self, lane: Lane) -> int:
        return self._before[lane]

    def knows(self, lane: Lane, access: int) -> bool:
        return bool(self._before[lane] >> access & 1)

    def order(self, lane: Lane, points: int) -> None:
        self._before[lane] |= points

    def record(self, lane: Lane) -> int:
        """Returns what an event has that the host records there now."""
        self.order(lane, self._before[HOST])
        return self._before[lane]

    def lane_of_message(self, group: str, device: str, peer: int, line: int) -> Lane:
        order = () if self.messages_have_order else (line,)
        return ("messages", group, device, peer, *order)

    def place(self, name: str) -> object:
        return self.places.get(name, name)

    def racing(self, lane: Lane, before: int, touches: list[Touch]) -> list[list[int]]:
        """Returns, for each access that `lane` would make, those of which nothing puts it behind."""
        found = []
        for touch in touches:
            numbers = self._conflicts(lane, before, touch)
            if late := self._late_for_birth(lane, before, touch):
                numbers.append(late.bit_length() - 1)
            found.append(numbers)
        return found

    def _conflicts(self, lane: Lane, before: int, touch: Touch) -> list[int]:
        place = self.place(touch.name)
        ordered = before | self.memory[place].ordered
        return [
            number
            for number, past in enumerate(self.accesses)
            if past.place == place
            and past.cells & touch.cells
            and (past.writes or touch.writes)
            and past.lane != lane
            and not ordered >> number & 1
        ]

    def _late_for_birth(self, lane: Lane, before: int, touch: Touch) -> int:
        """Returns what the memory's owner knew when it got the memory, and this lane does not."""
        memory = self.memory[self.place(touch.name)]
        return 0 if lane == memory.owner else memory.born & ~before

    def access(self, lane: Lane, line: int, touches: list[Touch], work: str | None = None) -> None:
        before = self._before[lane]
        # All accesses of a call are made at once, so each is judged before the first of them is noted.
        found = [
            {self._pair(touch, number) for number in self._conflicts(lane, before, touch)}
            for touch in touches
        ]
        for touch, pairs in zip(touches, found, strict=True):
            if self._late_for_birth(lane, before, touch):
                born_at = self.memory[self.place(touch.name)].born_at
                pairs.add((born_at, f"{'write' if touch.writes else 'read'} after write"))
        if any(found):
            self.verdicts[line] += [pairs for pairs in found if pairs]
        for touch in touches:
            place = self.place(touch.name)
            life = self.memory[place].life
            self.order(lane, 1 << len(self.accesses))
            self.accesses.append(Past(place, life, touch.cells, touch.writes, lane, line, work))

    def _pair(self, touch: Touch, number: int) -> tuple[int, str]:
        past = self.accesses[number]
        if past.life != self.memory[past.place].life:
            return past.line, "use after free"
        return past.line, " after ".join(
            "write" if writes else "read" for writes in (touch.writes, past.writes)
        )

    def allocated(self, name: str, address: int, stream: Lane, line: int) -> None:
        self.places[name] = address
        memory = self.memory[address]
        if memory.owner not in (None, stream):
            memory.ordered = (1 << len(self.accesses)) - 1  # the allocator has waited for everything
        memory.owner = stream
        memory.life += 1
        memory.born, memory.born_at = self._before[stream], line

    def kept_for(self, name: str, stream: Lane) -> None:
        self.memory[self.place(name)].kept_for.add(stream)

    def freed(self, name: str) -> None:
        memory = self.memory[self.place(name)]
        # The memory's stream gets it next, and other streams have to be behind what that stream had done when
        # it got the memory. That stands for all that it knew.
        assert memory.owner is not None
        for lane in (memory.owner, *memory.kept_for):
            memory.ordered |= self._before[lane]
        memory.kept_for = set()

    def late_for_reuse(self, name: str) -> list[int]:
        """Returns the accesses that the memory's next life would not come after."""
        place = self.place(name)
        memory = self.memory[place]
        assert memory.owner is not None
        before = self._before[memory.owner] | memory.ordered
        for lane in memory.kept_for:
            before |= self._before[lane]
        return [
            number
            for number, past in enumerate(self.accesses)
            if past.place == place and past.life == memory.life and not before >> number & 1
        ]

    def host_waits_for_card(self) -> None:
        for lane in list(self._before):
            if is_of_card(lane) and (self.messages_have_order or lane[0] != "messages"):
                self.order(HOST, self._before[lane])
