"""Writes random programs for ranks, and calculates what they have to give.

All ranks write the same program from the same seed, each of them for all ranks. So they know each other's
values, and what is common to them. A rank puts waits into its own part later (player_of_ranks.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from oracle_of_ranks import ANY_PEER, CARD, CPU, HOST, Touch
from statements_of_ranks import Free, Launch, Part, Statement, barrier, free, on_stream, stream

SIZE, STREAMS, STEPS = 12, 4, 45
CARDS, GATHERED = ("c0", "c1", "c2"), ("g0", "g1")  # of the card; GATHERED has SIZE elements for each rank
PINNED, PAGEABLE = ("h0", "h1"), ("p0", "p1")
GATHERED_ON_HOST = ("q0", "q1")


def sizes_of(ranks: int) -> dict[str, int]:
    many = dict.fromkeys((*GATHERED, *GATHERED_ON_HOST), SIZE * ranks)
    return {**dict.fromkeys((*CARDS, *PINNED, *PAGEABLE), SIZE), **many}


@dataclass
class View:
    """A part of a tensor of a rank: as text, and by the numbers of its elements."""

    name: str
    text: str
    index: np.ndarray

    @property
    def is_contiguous(self) -> bool:
        return bool((np.diff(self.index) == 1).all())

    def touch(self, writes: bool) -> Touch:
        return Touch(self.name, sum(3 << 2 * int(element) for element in self.index), writes)


@dataclass
class Made:
    """A tensor that the program has made."""

    size: int
    is_written: bool
    works: list[str] = field(default_factory=list)


class Author:
    def __init__(self, seed: int, ranks: int, groups: dict[str, list[int]]) -> None:
        self.random, self.ranks, self.groups = random.Random(seed), ranks, groups
        self.values = [
            {
                name: np.arange(size, dtype=np.int64) + 100 * rank + 10 * number
                for number, (name, size) in enumerate(sizes_of(ranks).items())
            }
            for rank in range(ranks)
        ]
        self.made: list[dict[str, Made]] = [{} for _ in range(ranks)]
        self.number = 0

    def steps(self) -> Iterator[dict[int, Statement]]:
        """Yields the statements of one step after the other, by rank."""
        for self.number in range(1, STEPS + 1):
            kinds = (self.local, self.collective, self.message, self.batch, self.coalesced, self.barrier)
            statements = self.random.choices(kinds, (10, 6, 2, 1, 1, 0.4))[0]()
            for statement in statements.values():
                statement.step = self.number
            yield statements

    # What a rank does alone.

    def local(self) -> dict[int, Statement]:
        kinds = {
            self.fill: 3, self.multiply: 2, self.add: 2, self.copy: 1, self.halves: 1, self.read: 3,
            self.new: 2, self.empty: 1.5, self.upload: 2, self.download: 2, self.fill_on_host: 1.5,
            self.read_on_host: 1.5, self.item: 0.7, self.to_host: 0.5, self.release: 2.5,
        }  # fmt: skip
        statements = {}
        for rank in range(self.ranks):
            statement = self.random.choices(tuple(kinds), tuple(kinds.values()))[0](rank)
            if statement is not None:
                statements[rank] = statement
        return statements

    def size_of(self, rank: int, name: str) -> int:
        return self.values[rank][name].size

    def of_card(self, rank: int) -> list[str]:
        return [*CARDS, *GATHERED, *(name for name, made in self.made[rank].items() if made.is_written)]

    def slice(self, rank: int, name: str, size: int, strided: bool = True) -> View:
        """Returns a random part of so many elements."""
        whole = self.size_of(rank, name)
        step = self.random.choice([step for step in (1, 1, 2, 3) if (size - 1) * step < whole])
        step = step if strided else 1
        begin = self.random.randrange(whole - (size - 1) * step)
        end = begin + (size - 1) * step + 1
        text = f"{name}[{begin}:{end}]" if step == 1 else f"{name}[{begin}:{end}:{step}]"
        return View(name, text, np.arange(begin, end, step))

    def any_part(self, rank: int, names: list[str] | tuple[str, ...], most: int = 6) -> View:
        """Returns a random part of a random one of the tensors: a slice, or a part of a matrix."""
        name = self.random.choice(names)
        whole = self.size_of(rank, name)
        if whole % 4 == 0 and self.random.random() < 0.3:
            rows = whole // 4
            top, left = self.random.randrange(rows), self.random.randrange(4)
            bottom, right = self.random.randint(top + 1, rows), self.random.randint(left + 1, 4)
            index = np.arange(whole).reshape(rows, 4)[top:bottom, left:right]
            text = f"{name}.view({rows}, 4)[{top}:{bottom}, {left}:{right}]"
            return View(name, text, index.reshape(-1))
        return self.slice(rank, name, self.random.randint(1, min(most, whole)))

    def two_parts(self, rank: int, names: list[str], others: list[str]) -> tuple[View, View] | None:
        name = self.random.choice(names)
        different = [other for other in others if other != name]
        if not different:
            return None
        other = self.random.choice(different)
        size = self.random.randint(1, min(6, self.size_of(rank, name), self.size_of(rank, other)))
        return self.slice(rank, name, size), self.slice(rank, other, size)

    def get(self, rank: int, view: View) -> np.ndarray:
        return self.values[rank][view.name][view.index]

    def set(self, rank: int, view: View, values: np.ndarray | int) -> None:
        self.values[rank][view.name][view.index] = values

    def launch(self, text: str, *touches: Touch, makes: str | None = None, **options: object) -> Launch:
        """Returns a launch to a random stream."""
        k = self.random.randrange(STREAMS)
        needs = {touch.name for touch in touches} - {makes}
        return Launch(
            on_stream(k, text), needs=needs, parts=[Part(stream(k), list(touches))], current=k, makes=makes,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip

    def fill(self, rank: int) -> Launch:
        unwritten = [name for name, made in self.made[rank].items() if not made.is_written]
        if unwritten and self.random.random() < 0.7:
            made = self.made[rank][unwritten[0]]
            made.is_written = True
            view = View(unwritten[0], unwritten[0], np.arange(made.size))
        else:
            view = self.any_part(rank, self.of_card(rank))
        self.set(rank, view, self.number)
        return self.launch(f"{view.text}.fill_({self.number})", view.touch(True))

    def multiply(self, rank: int) -> Launch:
        view = self.any_part(rank, self.of_card(rank))
        self.set(rank, view, self.get(rank, view) * 3)
        return self.launch(f"{view.text}.mul_(3)", view.touch(True))

    def add(self, rank: int) -> Launch | None:
        views = self.two_parts(rank, self.of_card(rank), self.of_card(rank))
        if views is None:
            return None
        to, of = views
        self.set(rank, to, self.get(rank, to) + self.get(rank, of))
        return self.launch(f"{to.text}.add_({of.text})", to.touch(True), of.touch(False))

    def copy(self, rank: int) -> Launch | None:
        views = self.two_parts(rank, self.of_card(rank), self.of_card(rank))
        if views is None:
            return None
        to, of = views
        self.set(rank, to, self.get(rank, of))
        return self.launch(f"{to.text}.copy_({of.text})", to.touch(True), of.touch(False))

    def halves(self, rank: int) -> Launch:
        """Writes elements of another dtype, which are halves of elements."""
        name = self.random.choice(CARDS)
        begin = self.random.randrange(2 * SIZE)
        end = self.random.randint(begin + 1, 2 * SIZE)
        self.values[rank][name].view(np.int32)[begin:end] = self.number
        cells = sum(1 << half for half in range(begin, end))
        text = f"{name}.view(torch.int32)[{begin}:{end}].fill_({self.number})"
        return self.launch(text, Touch(name, cells, True))

    def read(self, rank: int) -> Launch:
        view, name = self.any_part(rank, self.of_card(rank)), f"r{self.number}"
        self.values[rank][name] = np.array(self.get(rank, view).sum())
        return self.launch(f"{name} = {view.text}.sum()", view.touch(False), Touch(name, 3, True), makes=name)

    def new(self, rank: int) -> Launch:
        of, name = self.any_part(rank, self.of_card(rank)), f"d{self.number}"
        self.values[rank][name] = self.get(rank, of) * 3
        size = of.index.size
        self.made[rank][name] = Made(size, True)
        whole = Touch(name, (1 << 2 * size) - 1, True)
        # The result of a part that is transposed or strided is contiguous.
        return self.launch(f"{name} = ({of.text} * 3).view(-1)", of.touch(False), whole, makes=name)

    def empty(self, rank: int) -> Launch:
        size, name = self.random.randint(1, SIZE), f"d{self.number}"
        self.values[rank][name] = np.zeros(size, dtype=np.int64)
        self.made[rank][name] = Made(size, False)
        return self.launch(f'{name} = torch.empty({size}, dtype=torch.int64, device="vdev")', makes=name)

    def upload(self, rank: int) -> Launch | None:
        name = self.random.choice((*PINNED, *PINNED, *PAGEABLE))
        views = self.two_parts(rank, self.of_card(rank), [name])
        if views is None:
            return None
        to, of = views
        self.set(rank, to, self.get(rank, of))
        blocks = self.random.random() < 0.3
        text = f"{to.text}.copy_({of.text}{'' if blocks else ', non_blocking=True'})"
        launch = self.launch(text, to.touch(True), of.touch(False), host_waits=blocks)
        if name in PAGEABLE or not of.is_contiguous:  # is read within the call
            launch.parts = [Part(HOST, [of.touch(False)]), Part(launch.parts[0].lane, [to.touch(True)])]
        return launch

    def download(self, rank: int) -> Launch | None:
        name = self.random.choice((*PINNED, *PINNED, *PAGEABLE))
        views = self.two_parts(rank, [name], self.of_card(rank))
        if views is None:
            return None
        to, of = views
        self.set(rank, to, self.get(rank, of))
        blocks = self.random.random() < 0.3
        text = f"{to.text}.copy_({of.text}{'' if blocks else ', non_blocking=True'})"
        return self.launch(text, of.touch(False), to.touch(True), host_waits=blocks)

    def on_host(self, text: str, *touches: Touch) -> Launch:
        return Launch(text, parts=[Part(HOST, list(touches))])

    def fill_on_host(self, rank: int) -> Launch:
        view = self.any_part(rank, (*PINNED, *PAGEABLE, *GATHERED_ON_HOST))
        self.set(rank, view, self.number)
        return self.on_host(f"{view.text}.fill_({self.number})", view.touch(True))

    def read_on_host(self, rank: int) -> Launch:
        view, name = self.any_part(rank, (*PINNED, *PAGEABLE, *GATHERED_ON_HOST)), f"v{self.number}"
        values = self.get(rank, view)
        form = self.random.choice(("sum", "tolist", "numpy"))
        if form == "sum":
            self.values[rank][name] = np.array(values.sum())
            return self.on_host(f"{name} = {view.text}.sum()", view.touch(False))
        self.values[rank][name] = values
        text = f"{view.text}.tolist()" if form == "tolist" else f"{view.text}.numpy().copy()"
        return self.on_host(f"{name} = {text}", view.touch(False))

    def item(self, rank: int) -> Launch:
        name, made = self.random.choice(self.of_card(rank)), f"v{self.number}"
        element = self.random.randrange(self.size_of(rank, name))
        view = View(name, f"{name}[{element}]", np.array([element]))
        self.values[rank][made] = np.array(self.get(rank, view)[0])
        return self.launch(f"{made} = {view.text}.item()", view.touch(False), host_waits=True)

    def to_host(self, rank: int) -> Launch:
        view, name = self.any_part(rank, self.of_card(rank)), f"v{self.number}"
        self.values[rank][name] = self.get(rank, view)
        return self.launch(f"{name} = {view.text}.cpu()", view.touch(False), host_waits=True)

    def release(self, rank: int) -> Free | None:
        names = [name for name, made in self.made[rank].items() if made.is_written]
        if not names:
            return None
        name = self.random.choice(names)
        works = self.made[rank].pop(name).works
        del self.values[rank][name]
        return free(name, works)

    # What the ranks do together.

    def group(self) -> tuple[str, list[int]]:
        name = self.random.choice(tuple(self.groups))
        return name, self.groups[name]

    def pool(self, rank: int, device: str, size: int = 1) -> list[str]:
        """Returns the tensors of a device that have so many elements."""
        names = self.of_card(rank) if device == CARD else [*PINNED, *PAGEABLE, *GATHERED_ON_HOST]
        return [name for name in names if self.size_of(rank, name) >= size]

    def distinct(self, rank: int, device: str, sizes: list[int], strided: bool = False) -> list[View]:
        """Returns a part of that size of a tensor each. No two are the same tensor."""
        views: dict[int, View] = {}
        for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):  # few tensors are large
            used = {view.name for view in views.values()}
            names = [name for name in self.pool(rank, device, sizes[place]) if name not in used]
            views[place] = self.slice(rank, self.random.choice(names), sizes[place], strided)
        return [views[place] for place in range(len(sizes))]

    def operation(self, rank: int, group: str, device: str, text: str, *touches: Touch) -> Launch:
        """Returns a collective whose text has {options} where it says whether the call is asynchronous."""
        asynchronous = self.random.random() < 0.6
        work = f"w{self.number}" if asynchronous else None
        if work is not None:
            text = f"{work} = {text}"
            for touch in touches:
                if touch.name in self.made[rank]:
                    self.made[rank][touch.name].works.append(work)
        text = text.replace("{options}", f"group=groups[{group!r}]" + ", async_op=True" * asynchronous)
        needs = {touch.name for touch in touches}
        if device == CPU:
            lane = ("group", group, CPU) if asynchronous else HOST
            return Launch(text, needs=needs, parts=[Part(lane, list(touches))], work=work)
        launch = self.launch(text, *touches)
        launch.work = work
        if asynchronous:
            launch.parts[0].lane = ("group", group, CARD)
        return launch

    def collective(self) -> dict[int, Statement]:
        group, members = self.group()
        device = CARD if self.random.random() < 0.75 else CPU
        kinds = (
            self.all_reduce, self.reduce, self.broadcast, self.all_gather, self.all_gather_list,
            self.reduce_scatter, self.all_to_all, self.scatter, self.gather,
        )  # fmt: skip
        return self.random.choices(kinds, (3, 1, 2, 2, 1, 2, 2, 1, 1))[0](group, members, device)

    def all_reduce(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size, most = self.random.randint(1, 6), self.random.random() < 0.3
        strided = self.random.random() < 0.3
        views = {rank: self.distinct(rank, device, [size], strided)[0] for rank in members}
        parts = [self.get(rank, views[rank]) for rank in members]
        result = np.max(parts, axis=0) if most else np.sum(parts, axis=0)
        statements = {}
        for rank, view in views.items():
            self.set(rank, view, result)
            op = ", op=dist.ReduceOp.MAX" if most else ""
            text = f"dist.all_reduce({view.text}{op}, {{options}})"
            statements[rank] = self.operation(rank, group, device, text, view.touch(True))
        return statements

    def reduce(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size, root = self.random.randint(1, 6), self.random.choice(members)
        views = {rank: self.distinct(rank, device, [size])[0] for rank in members}
        self.set(root, views[root], np.sum([self.get(rank, views[rank]) for rank in members], axis=0))
        return {
            rank: self.operation(
                rank,
                group,
                device,
                f"dist.reduce({view.text}, {root}, {{options}})",
                view.touch(rank == root),
            )
            for rank, view in views.items()
        }

    def broadcast(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size, root = self.random.randint(1, 6), self.random.choice(members)
        views = {rank: self.distinct(rank, device, [size])[0] for rank in members}
        sent = self.get(root, views[root])
        statements = {}
        for rank, view in views.items():
            self.set(rank, view, sent)
            text = f"dist.broadcast({view.text}, {root}, {{options}})"
            statements[rank] = self.operation(rank, group, device, text, view.touch(rank != root))
        return statements

    def all_gather(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size = self.random.randint(1, 4)
        in_place = len(members) > 1 and self.random.random() < 0.25
        views = {}
        for place, rank in enumerate(members):
            out, part = self.distinct(rank, device, [size * len(members), size])
            if in_place:
                begin = int(out.index[0]) + place * size
                part = View(out.name, f"{out.name}[{begin}:{begin + size}]", np.arange(begin, begin + size))
            views[rank] = (out, part)
        gathered = np.concatenate([self.get(rank, views[rank][1]) for rank in members])
        statements = {}
        for rank, (out, part) in views.items():
            self.set(rank, out, gathered)
            text = f"all_gather_single({out.text}, {part.text}, {{options}})"
            statements[rank] = self.operation(rank, group, device, text, part.touch(False), out.touch(True))
        return statements

    def all_gather_list(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size = self.random.randint(1, 4)
        views = {rank: self.distinct(rank, device, [size * len(members), size]) for rank in members}
        gathered = np.concatenate([self.get(rank, views[rank][1]) for rank in members])
        statements = {}
        for rank, (out, part) in views.items():
            self.set(rank, out, gathered)
            pieces = self.pieces(out, size)
            text = f"dist.all_gather([{', '.join(piece.text for piece in pieces)}], {part.text}, {{options}})"
            touches = [part.touch(False), *(piece.touch(True) for piece in pieces)]
            statements[rank] = self.operation(rank, group, device, text, *touches)
        return statements

    @staticmethod
    def pieces(whole: View, size: int) -> list[View]:
        begins = range(int(whole.index[0]), int(whole.index[-1]) + 1, size)
        return [View(whole.name, f"{whole.name}[{a}:{a + size}]", np.arange(a, a + size)) for a in begins]

    def reduce_scatter(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size = self.random.randint(1, 4)
        views = {rank: self.distinct(rank, device, [size * len(members), size]) for rank in members}
        total = np.sum([self.get(rank, views[rank][0]) for rank in members], axis=0)
        statements = {}
        for place, rank in enumerate(members):
            whole, out = views[rank]
            self.set(rank, out, total[place * size : (place + 1) * size])
            text = f"reduce_scatter_single({out.text}, {whole.text}, {{options}})"
            statements[rank] = self.operation(rank, group, device, text, whole.touch(False), out.touch(True))
        return statements

    def all_to_all(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        size = self.random.randint(1, 3)
        views = {rank: self.distinct(rank, device, [size * len(members)] * 2) for rank in members}
        sent = [self.get(rank, views[rank][0]).reshape(len(members), size) for rank in members]
        statements = {}
        for place, rank in enumerate(members):
            of, out = views[rank]
            self.set(rank, out, np.concatenate([part[place] for part in sent]))
            text = f"dist.all_to_all_single({out.text}, {of.text}, {{options}})"
            statements[rank] = self.operation(rank, group, device, text, of.touch(False), out.touch(True))
        return statements

    def with_root(
        self, members: list[int], device: str
    ) -> tuple[int, dict[int, list[View]], list[View], dict[int, str]]:
        """Returns a root, the ranks' views, the root's pieces of its second one, and how ranks list them."""
        size, root = self.random.randint(1, 3), self.random.choice(members)
        sizes = [size, size * len(members)]
        views = {rank: self.distinct(rank, device, sizes[: 1 + (rank == root)]) for rank in members}
        pieces = self.pieces(views[root][1], size)
        texts = f"[{', '.join(piece.text for piece in pieces)}]"
        return root, views, pieces, {rank: texts if rank == root else "None" for rank in members}

    def scatter(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        root, views, pieces, listed = self.with_root(members, device)
        sent = [self.get(root, piece) for piece in pieces]
        statements = {}
        for place, rank in enumerate(members):
            out = views[rank][0]
            self.set(rank, out, sent[place])
            text = f"dist.scatter({out.text}, {listed[rank]}, {root}, {{options}})"
            touches = [out.touch(True), *(piece.touch(False) for piece in pieces if rank == root)]
            statements[rank] = self.operation(rank, group, device, text, *touches)
        return statements

    def gather(self, group: str, members: list[int], device: str) -> dict[int, Statement]:
        root, views, pieces, listed = self.with_root(members, device)
        sent = [self.get(rank, views[rank][0]) for rank in members]
        for piece, values in zip(pieces, sent, strict=True):
            self.set(root, piece, values)
        statements = {}
        for rank in members:
            part = views[rank][0]
            text = f"dist.gather({part.text}, {listed[rank]}, {root}, {{options}})"
            touches = [part.touch(False), *(piece.touch(True) for piece in pieces if rank == root)]
            statements[rank] = self.operation(rank, group, device, text, *touches)
            statements[rank].has_result = rank == root
        return statements

    def coalesced(self) -> dict[int, Statement]:
        """Several collectives in one."""
        group, members = self.group()
        kind = self.random.choice(("all_reduce", "all_gather_single", "broadcast"))
        size, count = self.random.randint(1, 3), self.random.randint(1, 2)
        outer = [size * len(members)] * (kind == "all_gather_single")
        views = {rank: self.distinct(rank, CARD, [*outer, size] * count) for rank in members}
        root = members[0]
        statements = {}
        per_call = 1 + len(outer)
        before = {rank: [self.get(rank, view) for view in views[rank]] for rank in members}
        for rank in members:
            calls, touches = [], []
            for call in range(count):
                its = views[rank][call * per_call : (call + 1) * per_call]
                parts = [before[other][(call + 1) * per_call - 1] for other in members]
                if kind == "all_reduce":
                    self.set(rank, its[0], np.sum(parts, axis=0))
                elif kind == "broadcast":
                    self.set(rank, its[0], parts[0])
                else:
                    self.set(rank, its[0], np.concatenate(parts))
                    touches.append(its[1].touch(False))
                touches.append(its[0].touch(kind != "broadcast" or rank != root))
                arguments = ", ".join(view.text for view in its) + f", {root}" * (kind == "broadcast")
                # In this form broadcasts do not go to the backend one by one.
                own = ", async_op=True" if kind == "broadcast" else ""
                module = "" if kind == "all_gather_single" else "dist."
                calls.append(f"{module}{kind}({arguments}, group=groups[{group!r}]{own})")
            statements[rank] = self.coalesced_statement(rank, group, kind == "broadcast", calls, touches)
        return statements

    def coalesced_statement(
        self, rank: int, group: str, is_batch: bool, calls: list[str], touches: list[Touch]
    ) -> Launch:
        asynchronous = self.random.random() < 0.6
        k, work = self.random.randrange(STREAMS), f"w{self.number}"
        device = ', device=torch.device("vdev")' if is_batch else ""
        manager = (
            f"dist._coalescing_manager(group=groups[{group!r}]{device}, async_ops={asynchronous}) as {work}"
        )
        if asynchronous:
            for touch in touches:
                if touch.name in self.made[rank]:
                    self.made[rank][touch.name].works.append(work)
        # A batch is always an operation of its own, for which a call that is not asynchronous then waits.
        own = asynchronous or is_batch
        return Launch(
            f"with torch.vdev.stream(s[{k}]), {manager}: {'; '.join(calls)}",
            needs={touch.name for touch in touches},
            parts=[Part(("group", group, CARD) if own else stream(k), touches)],
            current=k, work=work if asynchronous else None, is_manager=True,
            stream_waits=not asynchronous and is_batch,
        )  # fmt: skip

    def barrier(self) -> dict[int, Statement]:
        group, members = self.group()
        return {
            rank: barrier(
                group, self.random.randrange(STREAMS), f"w{self.number}", self.random.random() < 0.4
            )
            for rank in members
        }

    def message(self) -> dict[int, Statement]:
        group, members = self.group()
        if len(members) < 2:
            return {}
        source, target = self.random.sample(members, 2)
        device = CARD if self.random.random() < 0.75 else CPU
        size = self.random.randint(1, 6)
        (sent,), (received,) = (self.distinct(rank, device, [size]) for rank in (source, target))
        self.set(target, received, self.get(source, sent))
        any_source = self.random.random() < 0.15
        return {
            source: self.one_message(source, group, device, sent, target, "send"),
            target: self.one_message(target, group, device, received, None if any_source else source, "recv"),
        }

    def one_message(
        self, rank: int, group: str, device: str, view: View, peer: int | None, name: str
    ) -> Launch:
        asynchronous = peer is not None and self.random.random() < 0.6
        work = f"w{self.number}" if asynchronous else None
        options = f"group=groups[{group!r}], tag={self.number}"
        text = f"dist.{'i' * asynchronous}{name}({view.text}, {peer}, {options})"
        touch = view.touch(name == "recv")
        if work is not None:
            text = f"{work} = {text}"
            if view.name in self.made[rank]:
                self.made[rank][view.name].works.append(work)
        lane = ("messages", group, device, ANY_PEER if peer is None else peer)
        if device == CPU:
            return Launch(
                text, needs={view.name}, parts=[Part(lane, [touch])], work=work, host_waits=not asynchronous
            )
        launch = self.launch(text, touch, stream_waits=not asynchronous, host_waits=peer is None)
        launch.parts[0].lane, launch.work = lane, work
        return launch

    def batch(self) -> dict[int, Statement]:
        """A batch of messages between random pairs."""
        group, members = self.group()
        pairs = [(a, b) for a in members for b in members if a != b]
        pairs = self.random.sample(pairs, min(len(pairs), self.random.randint(1, 3)))
        size = self.random.randint(1, 3)
        ends = [(rank, pair) for pair in pairs for rank in pair]
        views: dict[tuple[int, tuple[int, int]], View] = {}
        for rank in members:
            own = [pair for its, pair in ends if its == rank]
            chosen = self.distinct(rank, CARD, [size] * len(own))
            views.update({(rank, pair): view for pair, view in zip(own, chosen, strict=True)})
        for pair in pairs:
            self.set(pair[1], views[pair[1], pair], self.get(pair[0], views[pair[0], pair]))
        statements = {}
        for rank in members:
            calls, touches = [], []
            for pair in pairs:
                if rank not in pair:
                    continue
                view = views[rank, pair]
                sends = rank == pair[0]
                peer = pair[1] if sends else pair[0]
                name = "isend" if sends else "irecv"
                calls.append(f"dist.P2POp(dist.{name}, {view.text}, {peer}, groups[{group!r}])")
                touches.append(view.touch(not sends))
            if calls:
                statements[rank] = self.batch_statement(rank, group, calls, touches)
        return statements

    def batch_statement(self, rank: int, group: str, calls: list[str], touches: list[Touch]) -> Launch:
        work = f"w{self.number}"
        for touch in touches:
            if touch.name in self.made[rank]:
                self.made[rank][touch.name].works.append(work)
        launch = self.launch(f"({work},) = dist.batch_isend_irecv([{', '.join(calls)}])", *touches)
        launch.parts[0].lane, launch.work = ("messages", group, CARD, ANY_PEER), work
        launch.has_future = False
        return launch
