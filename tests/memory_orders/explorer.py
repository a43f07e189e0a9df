"""Plays small programs of atomic operations in every way that C++'s memory model allows.

A program is a list of threads, and a thread a generator that yields operations and is sent their results:

    def writer():
        yield Store("data", 1)
        yield Store("flag", 1, RELEASE)

    def reader():
        yield Await("flag", lambda value: value == 1, ACQUIRE)
        assert (yield Load("data")) == 1

`explore([writer, reader])` plays all interleavings, and in each of them every value that a load may return:
a load may be stale until something orders it behind the store. It raises Found with the steps that led there
if an assertion fails, if two plain accesses race, or if threads wait for ever.

The model is C++20's, without load buffering (no store becomes visible before a load that precedes it in its
thread). Each location has its stores in modification order, each thread a view of how far it has seen every
location, and each store carries the view that an acquire load takes over. Sequentially consistent accesses
are those of RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer: Repairing Sequential Consistency in C/C++11, 2017),
which is what C++20 has taken over: there must be one order of them that agrees with the threads' orders,
with happens-before, with modification orders, and with reads that come before a store that they do not see.
It need not agree with when other accesses become visible: behind a sequentially consistent store, a relaxed
one may be seen first, as it may on arm64.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Order(Enum):
    PLAIN = 0
    RELAXED = 1
    ACQUIRE = 2
    RELEASE = 3
    ACQ_REL = 4
    SEQ_CST = 5

    @property
    def acquires(self) -> bool:
        return self in (Order.ACQUIRE, Order.ACQ_REL, Order.SEQ_CST)

    @property
    def releases(self) -> bool:
        return self in (Order.RELEASE, Order.ACQ_REL, Order.SEQ_CST)


PLAIN, RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = Order


@dataclass
class Load:
    location: str
    order: Order = PLAIN


@dataclass
class Await:
    """A loop that loads until `accepts(value)`. It may be stale for a while, but not for ever."""

    location: str
    accepts: Callable[[int], bool]
    order: Order = SEQ_CST


@dataclass
class Store:
    location: str
    value: int
    order: Order = PLAIN


@dataclass
class Update:
    """A read-modify-write, whose result is the old value. If `change` returns None, it is a load: an exchange
    that finds another value than the expected one."""

    location: str
    change: Callable[[int], int | None]
    order: Order = SEQ_CST


@dataclass
class Fence:
    order: Order


@dataclass
class Sleep:
    """The system call that sleeps while a futex word has the value `seen`. It reads the newest value, as the
    system compares under a lock, and orders nothing else."""

    location: str
    seen: int


Operation = Load | Await | Store | Update | Fence | Sleep
Thread = Callable[[], Generator[Operation, Any, None]]
Id = tuple[
    int, int
]  # of a store: the thread, and how many operations the thread had done; (-1, 0): the initial value
View = dict[Any, Id]
INITIAL: Id = (-1, 0)


class Found(Exception):
    """A way in which a program goes wrong."""


@dataclass
class Message:
    id: Id
    value: int
    view: View = field(default_factory=dict)
    updated: bool = False  # a read-modify-write has read it, and comes right behind it


@dataclass(frozen=True)
class Ordered:
    """A sequentially consistent access."""

    id: Id
    place: str
    read: Id | None  # the store that it has read
    wrote: bool


@dataclass
class State:
    """What has happened so far. `histories` has, for each thread, the result of each operation and the store
    that it has read."""

    histories: list[list[tuple[int | None, Id | None]]]
    memory: dict[Any, list[Message]]
    seen: list[View]
    pending: list[View]  # what relaxed loads have read, for an acquire fence to take over
    released: list[View]  # what the thread had seen at its last release fence
    done: list[list[tuple[str, View]]]  # the place of each operation, and the thread's view after it
    ordered: list[Ordered]  # the sequentially consistent accesses
    before: set[tuple[Id, Id]]  # which of them must come before which
    steps: tuple[str, ...]

    def copy(self) -> "State":
        return State(
            [list(history) for history in self.histories],
            {
                place: [Message(m.id, m.value, m.view, m.updated) for m in stores]
                for place, stores in self.memory.items()
            },
            [dict(view) for view in self.seen],
            [dict(view) for view in self.pending],
            [dict(view) for view in self.released],
            [list(done) for done in self.done],
            list(self.ordered),
            set(self.before),
            self.steps,
        )

    def key(self) -> object:
        """Two states with the same key go on alike: all else follows from what the threads have read."""
        return (
            tuple(tuple(history) for history in self.histories),
            tuple(sorted((str(place), tuple(m.id for m in stores)) for place, stores in self.memory.items())),
        )

    def stores(self, place: Any) -> list[Message]:
        return self.memory.setdefault(place, [Message(INITIAL, 0)])

    def index(self, place: Any, store: Id) -> int:
        return next(i for i, message in enumerate(self.stores(place)) if message.id == store)

    def first_visible(self, thread: int, place: Any) -> int:
        return self.index(place, self.seen[thread].get(place, INITIAL))

    def join(self, view: View, more: View) -> None:
        for place, store in more.items():
            if place[0] == "clock":
                view[place] = max(view.get(place, INITIAL), store)
            elif self.index(place, store) > self.index(place, view.get(place, INITIAL)):
                view[place] = store

    def tick(self, thread: int) -> Id:
        """Names the operation that the thread is about to do, and counts it in the thread's view."""
        operation: Id = (thread, len(self.histories[thread]))
        self.seen[thread]["clock", thread] = operation
        return operation

    def may_be_ordered(self, new: Ordered) -> bool:
        """Adds a sequentially consistent access. Returns False if no order of all of them is left."""
        for old in self.ordered:
            if self._comes_before(old, new):
                self.before.add((old.id, new.id))
            if self._is_unseen_by(new, old):
                self.before.add((new.id, old.id))
        self.ordered.append(new)
        return not self._comes_round_to(new.id)

    def _comes_before(self, old: Ordered, new: Ordered) -> bool:
        (thread, number), (later, _) = old.id, new.id
        if thread == later or self._is_unseen_by(old, new):
            return True
        _, view = self.done[later][-1]
        if old.place == new.place and _knows(view, thread) >= number:
            return True
        # By way of accesses to other places, of which the one happens before the other.
        aside = (i for i, (place, _) in enumerate(self.done[thread]) if i > number and place != old.place)
        first = next(aside, None)
        behind = (view for place, view in reversed(self.done[later][:-1]) if place != new.place)
        last = next(behind, {})
        return first is not None and _knows(last, thread) >= first

    def _is_unseen_by(self, one: Ordered, other: Ordered) -> bool:
        """Whether `one` comes before what `other` writes, in the order of that place."""
        if one.place != other.place or not other.wrote:
            return False
        own = one.id if one.wrote else one.read
        return own is not None and self.index(one.place, own) < self.index(one.place, other.id)

    def _comes_round_to(self, start: Id) -> bool:
        reached: set[Id] = set()
        todo = [start]
        while todo:
            at = todo.pop()
            for earlier, later in self.before:
                if earlier == at and later not in reached:
                    reached.add(later)
                    todo.append(later)
        return start in reached


def _knows(view: View, thread: int) -> int:
    """The last operation of the thread that happens before what has the view, or -1."""
    return view.get(("clock", thread), (thread, -1))[1]


@dataclass
class Outcome:
    states: int = 0
    ends: int = 0


def explore(threads: Sequence[Thread], most: int = 500_000) -> Outcome:
    """Plays the program in every way. Raises Found if one of them goes wrong."""
    count = len(threads)
    empty: list[View] = [{} for _ in threads]
    start = State(
        [[] for _ in threads],
        {},
        empty,
        [{} for _ in threads],
        [{} for _ in threads],
        [[] for _ in threads],
        [],
        set(),
        (),
    )
    known: set[object] = set()
    todo = [start]
    outcome = Outcome()
    while todo:
        state = todo.pop()
        if state.key() in known:
            continue
        known.add(state.key())
        outcome.states += 1
        if outcome.states > most:
            raise RuntimeError(f"the program has more than {most} states")
        coming = [_next_operation(threads[i], state, i) for i in range(count)]
        if not any(coming):
            outcome.ends += 1
            continue
        # A plain access may go first: whether it races depends on what orders it, not on when it comes.
        private = [i for i in range(count) if _is_private(coming[i])]
        follow = [
            after
            for i in private[:1] or range(count)
            if (operation := coming[i]) is not None
            for after in _play(state, i, operation)
        ]
        if not follow:
            waiting = ", ".join(f"thread {i} in {_name(op)}" for i, op in enumerate(coming) if op)
            raise Found(_story(state, f"wait for ever: {waiting}"))
        todo += follow
    return outcome


def _is_private(operation: Operation | None) -> bool:
    return isinstance(operation, Fence) or (isinstance(operation, Load | Store) and operation.order is PLAIN)


def _next_operation(thread: Thread, state: State, number: int) -> Operation | None:
    """What the thread does next, or None if it has ended."""
    running = thread()
    try:
        operation = next(running)
        for result, _ in state.histories[number]:
            operation = running.send(result)
        return operation
    except StopIteration:
        return None
    except AssertionError as error:
        raise Found(_story(state, f"thread {number} finds what must not be: {error}")) from None


def _play(before: State, thread: int, operation: Operation) -> Iterator[State]:
    """Yields the states that the operation may lead to."""
    match operation:
        case Load() | Store() if operation.order is PLAIN:
            state = before.copy()
            state.tick(thread)
            access = _plain_load if isinstance(operation, Load) else _plain_store
            yield access(state, thread, operation)
        case Load() | Await() | Store() | Update():
            for i in range(
                before.first_visible(thread, operation.location), len(before.stores(operation.location))
            ):
                yield from _access(before, thread, operation, i)
        case Fence():
            if operation.order is SEQ_CST:
                raise NotImplementedError("sequentially consistent fences")
            state = before.copy()
            state.tick(thread)
            if operation.order.acquires:
                state.join(state.seen[thread], state.pending[thread])
            if operation.order.releases:
                state.released[thread] = dict(state.seen[thread])
            yield _done(state, thread, operation, None, None)
        case Sleep():
            newest = before.stores(operation.location)[-1]
            if newest.value != operation.seen:
                state = before.copy()
                state.tick(thread)
                state.join(state.seen[thread], {operation.location: newest.id})
                state.join(state.pending[thread], newest.view)
                yield _done(state, thread, operation, None, None)


def _access(before: State, thread: int, operation: Load | Await | Store | Update, i: int) -> Iterator[State]:
    """Reads the store `i` of the modification order, writes right behind it, or both, if that is possible."""
    old = before.stores(operation.location)[i]
    new: int | None = None
    if isinstance(operation, Store):
        new = operation.value
    elif isinstance(operation, Update):
        new = operation.change(old.value)
    elif isinstance(operation, Await) and not operation.accepts(old.value):
        return
    if new is not None and old.updated:
        return
    reads = not isinstance(operation, Store)
    state = before.copy()
    identity = state.tick(thread)
    message = state.stores(operation.location)[i]
    if reads:
        _read(state, thread, operation, message)
    if new is not None:
        message.updated = reads
        # A read-modify-write goes on with the release sequence of the store that it reads.
        _write(state, thread, operation, new, i, message.view if reads else {})
    state = _done(state, thread, operation, old.value if reads else None, old.id if reads else None)
    if operation.order is SEQ_CST:
        ordered = Ordered(identity, operation.location, old.id if reads else None, new is not None)
        if not state.may_be_ordered(ordered):
            return
    yield state


def _read(state: State, thread: int, operation: Load | Await | Update, message: Message) -> None:
    state.join(state.seen[thread], {operation.location: message.id})
    state.join(state.seen[thread] if operation.order.acquires else state.pending[thread], message.view)


def _write(state: State, thread: int, operation: Store | Update, value: int, i: int, sequence: View) -> None:
    place = operation.location
    store: Id = (thread, len(state.histories[thread]))
    message = Message(store, value)
    state.stores(place).insert(i + 1, message)
    state.seen[thread][place] = store
    view = dict(state.seen[thread] if operation.order.releases else state.released[thread])
    view[place] = store
    state.join(view, sequence)
    message.view = view


def _plain_load(state: State, thread: int, operation: Load) -> State:
    place = operation.location
    last = state.stores(place)[-1]
    if state.seen[thread].get(place, INITIAL) != last.id:
        raise Found(_story(state, f"thread {thread} reads {place} while thread {last.id[0]} may write it"))
    # A read is remembered as a store to a place of its own, so that a write can be asked whether it has seen
    # the read.
    mark = ("read", place, thread)
    store: Id = (thread, len(state.histories[thread]))
    state.memory[mark] = [Message(INITIAL, 0), Message(store, 0)]
    for stores in state.memory.values():
        for message in stores:
            message.view = {known: seen for known, seen in message.view.items() if known != mark}
    for view in (*state.seen, *state.pending, *state.released):
        view.pop(mark, None)
    state.seen[thread][mark] = store
    return _done(state, thread, operation, last.value, last.id)


def _plain_store(state: State, thread: int, operation: Store) -> State:
    place = operation.location
    last = state.stores(place)[-1]
    if state.seen[thread].get(place, INITIAL) != last.id:
        raise Found(_story(state, f"thread {thread} writes {place} while thread {last.id[0]} may write it"))
    for mark, stores in state.memory.items():
        if mark[0] != "read" or mark[1] != place or mark[2] == thread:
            continue
        if state.seen[thread].get(mark, INITIAL) != stores[-1].id:
            raise Found(_story(state, f"thread {thread} writes {place} while thread {mark[2]} may read it"))
    store: Id = (thread, len(state.histories[thread]))
    state.stores(place).append(Message(store, operation.value))
    state.seen[thread][place] = store
    return _done(state, thread, operation, None, None)


def _done(state: State, thread: int, operation: Operation, result: int | None, store: Id | None) -> State:
    state.histories[thread].append((result, store))
    state.done[thread].append((getattr(operation, "location", ""), dict(state.seen[thread])))
    state.steps = (
        *state.steps,
        f"thread {thread}: {_name(operation)}{'' if result is None else f' = {result}'}",
    )
    return state


def _name(operation: Operation) -> str:
    place = getattr(operation, "location", "")
    order = getattr(operation, "order", PLAIN).name.lower()
    value = f" := {operation.value}" if isinstance(operation, Store) else ""
    return f"{type(operation).__name__.lower()} {place}{value} ({order})"


def _story(state: State, end: str) -> str:
    return "\n".join((*state.steps, end))
