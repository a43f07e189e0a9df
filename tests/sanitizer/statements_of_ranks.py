"""Statements of a rank's program. Each is a line of Python, and tells an oracle what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracle_of_ranks import CPU, HOST, Handle, Lane, Oracle, Touch

Variables = dict[str, Any]


def stream(k: int) -> Lane:
    return ("stream", k)


def on_stream(k: int, text: str) -> str:
    return f"with torch.vdev.stream(s[{k}]): {text}"


@dataclass
class Part:
    """What one lane does in a statement. The lane of a message is known when it is posted."""

    lane: Lane
    touches: list[Touch]


@dataclass
class Statement:
    text: str
    needs: set[str] = field(default_factory=set)
    step: int = 0  # of the program of all ranks

    def tell(self, oracle: Oracle, line: int, variables: Variables) -> None:
        raise NotImplementedError


@dataclass
class Launch(Statement):
    """Accesses memory: an operator, a copy, a collective, a message, or an access of the host."""

    parts: list[Part] = field(default_factory=list)
    current: int | None = None  # the current stream
    makes: str | None = None  # a new tensor of the card
    work: str | None = None
    is_manager: bool = False
    has_future: bool = True
    has_result: bool = True
    is_barrier: bool = False
    stream_waits: bool = False
    host_waits: bool = False

    @property
    def waiter(self) -> Lane:
        """Returns the lane that has to be behind what the statement must not race with."""
        return HOST if self.current is None else stream(self.current)

    def racing(self, oracle: Oracle, line: int) -> list[tuple[Lane, int]]:
        """Returns the lanes that would have to wait, and for which access. A new tensor is not known yet."""
        found = []
        for part in self.parts:
            lane = self._lane(oracle, part, line)
            before = oracle.before(lane) | oracle.before(HOST)
            if lane != HOST and self.current is not None:
                before |= oracle.before(stream(self.current))
            waiter = HOST if lane == HOST else self.waiter
            touches = [touch for touch in part.touches if touch.name != self.makes]
            found += [
                (waiter, number) for numbers in oracle.racing(lane, before, touches) for number in numbers
            ]
        return found

    def _lane(self, oracle: Oracle, part: Part, line: int) -> Lane:
        if part.lane[0] == "messages":
            return oracle.lane_of_message(*part.lane[1:], line)
        return part.lane

    def tell(self, oracle: Oracle, line: int, variables: Variables) -> None:
        if self.makes is not None:
            assert self.current is not None
            oracle.allocated(self.makes, variables[self.makes].data_ptr(), stream(self.current), line)
        lane = HOST
        for part in self.parts:
            lane = self._lane(oracle, part, line)
            if lane != HOST:
                oracle.order(lane, oracle.before(HOST))
                if self.current is not None:
                    oracle.order(lane, oracle.record(self.current_lane))
            if self.is_barrier:
                self._order_barrier(oracle, lane)
            oracle.access(lane, line, part.touches, self.work)
        if self.work is not None:
            names = {touch.name for part in self.parts for touch in part.touches}
            oracle.handles[self.work] = Handle(
                lane,
                oracle.before(lane),
                names,
                is_manager=self.is_manager,
                has_future=self.has_future,
                has_result=self.has_result,
            )
        if self.stream_waits:
            oracle.order(self.current_lane, oracle.before(lane))
        if self.host_waits:
            oracle.order(HOST, oracle.before(lane))

    @property
    def current_lane(self) -> Lane:
        assert self.current is not None
        return stream(self.current)

    @staticmethod
    def _order_barrier(oracle: Oracle, lane: Lane) -> None:
        """A barrier is an operation of the group on the CPU, behind its collectives on the card."""
        of_card = (*lane[:2], "card")
        oracle.order(lane, oracle.before(of_card))


@dataclass
class Order(Statement):
    """Orders lanes, and accesses nothing."""

    does: Callable[[Oracle, Variables], None] = lambda oracle, variables: None

    def tell(self, oracle: Oracle, line: int, variables: Variables) -> None:
        self.does(oracle, variables)


@dataclass
class Free(Statement):
    """Gives memory back. Without the waits for its works, the memory would stay for as long as they run."""

    name: str = ""
    works: list[str] = field(default_factory=list)

    def may_run(self, oracle: Oracle) -> bool:
        return all(oracle.handles[work].let_go for work in self.works if work in oracle.handles)

    def tell(self, oracle: Oracle, line: int, variables: Variables) -> None:
        oracle.freed(self.name)
        for work in self.works:
            if work in oracle.handles:
                oracle.handles[work].gone = True


def stream_waits_for_stream(k: int, other: int) -> Order:
    def does(oracle: Oracle, _: Variables) -> None:
        oracle.order(stream(k), oracle.record(stream(other)))

    return Order(f"s[{k}].wait_stream(s[{other}])", does=does)


def record(event: int, k: int, form: int) -> Order:
    def does(oracle: Oracle, _: Variables) -> None:
        oracle.events[event] = oracle.record(stream(k))

    text = (f"e[{event}].record(s[{k}])", f"s[{k}].record_event(e[{event}])")[form]
    return Order(text, does=does)


def stream_waits_for_event(k: int, event: int, form: int) -> Order:
    def does(oracle: Oracle, _: Variables) -> None:
        oracle.order(stream(k), oracle.events[event])

    return Order((f"e[{event}].wait(s[{k}])", f"s[{k}].wait_event(e[{event}])")[form], does=does)


def host_waits_for_event(event: int) -> Order:
    return Order(f"e[{event}].synchronize()", does=lambda oracle, _: oracle.order(HOST, oracle.events[event]))


def host_waits_for_stream(k: int) -> Order:
    return Order(f"s[{k}].synchronize()", does=lambda oracle, _: oracle.order(HOST, oracle.before(stream(k))))


def host_waits_for_card() -> Order:
    return Order("torch.vdev.synchronize()", does=lambda oracle, _: oracle.host_waits_for_card())


def ask_event(event: int, answer: str) -> Order:
    def does(oracle: Oracle, variables: Variables) -> None:
        if variables[answer]:
            oracle.order(HOST, oracle.events[event])

    return Order(f"{answer} = e[{event}].query()", does=does)


def ask_stream(k: int, answer: str) -> Order:
    def does(oracle: Oracle, variables: Variables) -> None:
        if variables[answer]:
            oracle.order(HOST, oracle.before(stream(k)))

    return Order(f"{answer} = s[{k}].query()", does=does)


def ask_work(work: str, answer: str) -> Order:
    def does(oracle: Oracle, variables: Variables) -> None:
        if variables[answer]:
            handle = oracle.handles[work]
            oracle.order(HOST, handle.point)
            handle.let_go = True

    return Order(f"{answer} = {work}.is_completed()", needs={work}, does=does)


def wait_for_work(work: str, k: int, form: str = "wait") -> Order:
    def does(oracle: Oracle, _: Variables) -> None:
        handle = oracle.handles[work]
        oracle.order(stream(k) if handle.on_card else HOST, handle.point)
        handle.let_go = True

    return Order(on_stream(k, f"{work}.{form}()"), needs={work}, does=does)


def stream_waits_for_work_of_host(work: str, k: int) -> Order:
    def does(oracle: Oracle, _: Variables) -> None:
        oracle.order(stream(k), oracle.handles[work].point)

    return Order(on_stream(k, f"{work}.block_current_stream()"), needs={work}, does=does)


def wait_for_future(work: str, k: int) -> Order:
    """The future of a collective on a card ends with all that its group has on the card when it is made."""

    def does(oracle: Oracle, _: Variables) -> None:
        handle = oracle.handles[work]
        if not handle.on_card:
            return oracle.order(HOST, handle.point)
        if not handle.has_result:
            return None
        if handle.future is None:
            oracle.order(handle.lane, oracle.before(HOST))
            in_order = handle.lane[0] == "group"
            handle.future = oracle.before(handle.lane) if in_order else handle.point | oracle.before(HOST)
        return oracle.order(stream(k), handle.future)

    return Order(on_stream(k, f"{work}.get_future().wait()"), needs={work}, does=does)


def keep_for(name: str, k: int) -> Order:
    return Order(
        f"{name}.record_stream(s[{k}])", needs={name}, does=lambda oracle, _: oracle.kept_for(name, stream(k))
    )


def free(name: str, works: list[str]) -> Free:
    return Free(" = ".join([name, *works, "None"]), needs={name}, name=name, works=works)


def barrier(group: str, k: int, work: str | None, asynchronous: bool) -> Launch:
    """A barrier comes after the group's collectives and the current stream, and then comes the host."""
    lane = ("group", group, CPU)
    text = f"dist.barrier(group=groups[{group!r}]{', async_op=True' if asynchronous else ''})"
    if asynchronous:
        text = f"{work} = {text}"
    return Launch(
        on_stream(k, text),
        parts=[Part(lane, [])],
        current=k,
        work=work if asynchronous else None,
        host_waits=not asynchronous,
        is_barrier=True,
    )
