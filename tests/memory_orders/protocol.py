"""What a model of a protocol consists of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from explorer import Order, Thread

Orders = dict[str, Order]


@dataclass(frozen=True)
class Access:
    """An access of the code, with its order, and an order that is too weak for it, or several."""

    order: Order
    too_weak: tuple[Order, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """A model, and what stands in the code that it is a model of."""

    name: str
    # For each file, lines that must stand there. A change of one of them calls for a look at the model.
    code: dict[str, Sequence[str]]
    accesses: dict[str, Access]
    threads: Callable[[Orders], Sequence[Thread]]
    # Other ways to make the program that must be found, such as a missing fence or a slot less.
    broken: dict[str, Callable[[Orders], Sequence[Thread]]] = field(default_factory=dict)

    @property
    def orders(self) -> Orders:
        return {name: access.order for name, access in self.accesses.items()}
