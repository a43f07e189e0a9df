"""Draws docs/inside/floors.svg and docs/inside/collective.svg: ``python docs/inside/drawings.py``.

Floors, rooms and folders are those of rooms.json. tests/project/test_docs.py compares the drawings with it.
Each drawing has a background of its own, so it can be read on a light page and on a dark page.
"""

import json
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
ROOMS: dict[str, dict] = json.loads((HERE.parents[1] / "rooms.json").read_text())
WIDTH = 1000
LINE = 16  # from one line of text to the next

# What a room is for, by its name or the last part of it. A room without a caption is drawn without.
CAPTIONS = {
    "base": "what the other rooms need of the system",
    "recorder": "the last operations, for readers from outside",
    "sanitizer": "accesses without an order: races",
    "transport": "bytes and signals between ranks",
    "runtime": "the card: memory, streams, events, failures",
    "collectives": "the algorithms, and the choice of one for a call",
    "torch": "the device as PyTorch sees it",
    "csrc_pg": "the process group as PyTorch sees it",
    "include/vccl": "what is installed for programs in C++",
    "vccl": "torch.vdev, the registration of the backend, patches of torch, the pose as CUDA, tools",
    "launch": "vrun, which forks ranks from a process that has imported torch",
    "testing": "tests on many ranks",
    "vccl_entry": "commands, pytest plugin and torch's way in, as far as they run before torch is imported",
}

KINDS = {"plain": "C++ without torch", "torch": "C++ with torch", "python": "Python"}
STYLE = """
  text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }
  .title { font-size: 17px; font-weight: bold }
  .name { font-family: Menlo, Consolas, monospace; font-size: 13px; font-weight: bold }
  .folder { font-family: Menlo, Consolas, monospace; font-size: 11px }
  .faint { fill: #59636e }
  .middle { text-anchor: middle }
  .paper { fill: #ffffff; stroke: #d1d9e0 }
  .host { fill: #f6f8fa; stroke: #818b98; stroke-dasharray: 5 4 }
  .chip { fill: #ffffff; stroke: #818b98 }
  .plain { fill: #dafbe1; stroke: #2da44e }
  .torch { fill: #ddf4ff; stroke: #218bff }
  .python { fill: #fbefff; stroke: #8250df }
  .outside { fill: #fff8c5; stroke: #bf8700 }
  .line { stroke: #59636e; stroke-width: 1.5; fill: none }
  .head { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .faint { fill: #9198a1 }
    .paper { fill: #0d1117; stroke: #3d444d }
    .host { fill: #151b23; stroke: #656c76 }
    .chip { fill: #0d1117; stroke: #656c76 }
    .plain { fill: #12351c; stroke: #2ea043 }
    .torch { fill: #0c2d6b; stroke: #388bfd }
    .python { fill: #3c1e70; stroke: #a371f7 }
    .outside { fill: #3b2a04; stroke: #d29922 }
    .line { stroke: #9198a1 }
    .head { fill: #9198a1 }
  }
"""


def kind_of(room: str) -> str:
    """Returns the kind of a room, which is its colour."""
    entry = ROOMS[room]
    return "plain" if "library" in entry else "python" if "package" in entry else "torch"


class Drawing:
    """Shapes and texts. What is added later lies on top."""

    def __init__(self, title: str, description: str) -> None:
        self.parts: list[str] = []
        self.title = title
        self.description = description

    def box(self, x: float, y: float, width: float, height: float, kind: str, radius: int = 6) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect class="{kind}" {place} rx="{radius}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def lines(self, x: float, y: float, text: str, letters: int, kind: str = "") -> float:
        """Writes a text of several lines, and returns the place of the line after it."""
        for line in textwrap.wrap(text, letters):
            self.text(x, y, line, kind)
            y += LINE
        return y

    def arrow(self, x1: float, y1: float, x2: float, y2: float, both: bool = False) -> None:
        ends = ' marker-start="url(#head)"' if both else ""
        place = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self.parts.append(f'<line class="line" {place}{ends} marker-end="url(#head)"/>')

    def svg(self, height: float) -> str:
        """Returns the whole file."""
        head = '<path class="head" d="M 0 0 L 8 4 L 0 8 z"/>'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<desc>{escape(self.description)}</desc>",
                f"<style>{STYLE}</style>",
                '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" '
                f'orient="auto-start-reverse">{head}</marker></defs>',
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>',
                f'<text class="title" x="24" y="34">{escape(self.title)}</text>',
                *self.parts,
                "</svg>\n",
            ]
        )


# ---- the floors


def rows_of_folders(folders: list[str], width: float) -> list[list[tuple[str, float]]]:
    """Divides the folders of a room into rows. Each folder comes with the width of its chip."""
    rows: list[list[tuple[str, float]]] = [[]]
    used = 0.0
    for folder in folders:
        chip = 7.0 * len(folder) + 14
        if rows[-1] and used + chip > width:
            rows.append([])
            used = 0.0
        rows[-1].append((folder, chip))
        used += chip + 6
    return [row for row in rows if row]


def height_of(room: str, width: float) -> float:
    return 68 + 26 * len(rows_of_folders(ROOMS[room]["folders"], width - 28))


def draw_room(drawing: Drawing, room: str, x: float, y: float, width: float, height: float) -> None:
    drawing.box(x, y, width, height, kind_of(room))
    drawing.text(x + 14, y + 22, f"{room}/", "name")
    drawing.text(x + 14, y + 40, CAPTIONS.get(room, CAPTIONS.get(room.split("/")[-1], "")))
    top = y + 50
    for row in rows_of_folders(ROOMS[room]["folders"], width - 28):
        left = x + 14
        for folder, chip in row:
            drawing.box(left, top, chip, 20, "chip", 4)
            drawing.text(left + 7, top + 14, folder, "folder")
            left += chip + 6
        top += 26
    may_include = ", ".join(ROOMS[room]["may_include"])
    verb = "imports" if kind_of(room) == "python" else "includes"
    drawing.text(x + 14, top + 10, f"{verb} {may_include or 'no room'}", "faint")


def arrows() -> list[tuple[str, str]]:
    """Returns the pairs of rooms, one that includes and one that is included, that an arrow joins.

    An arrow goes from a floor to the next one. It is left out where it follows from others.
    """

    def reached(start: str) -> set[str]:
        return {start}.union(*(reached(below) for below in ROOMS[start]["may_include"]))

    floors = sorted({entry["floor"] for entry in ROOMS.values()})
    found = []
    for room, entry in ROOMS.items():
        for below in entry["may_include"]:
            follows = any(below in reached(other) for other in entry["may_include"] if other != below)
            if not follows and floors.index(entry["floor"]) == floors.index(ROOMS[below]["floor"]) + 1:
                found.append((room, below))
    return found


def shares(floor: int, centres: dict[str, float]) -> list[tuple[str, float]]:
    """Returns the rooms of a floor from left to right, below the rooms that use them, with their widths.

    `centres` has the rooms of the floors above. A room to which no arrow leads is narrower than the others.
    """

    def centre(room: str) -> float:
        users = [x for user, x in centres.items() if room in ROOMS[user]["may_include"]]
        return sum(users) / len(users) if users else 0.0

    rooms = sorted((room for room, entry in ROOMS.items() if entry["floor"] == floor), key=centre)
    pointed_at = {below for _, below in arrows()}
    weights = [2 if room in pointed_at else 1 for room in rooms]
    width = (WIDTH - 100 - 24 - 16 * (len(rooms) - 1)) / sum(weights)
    return [(room, weight * width) for room, weight in zip(rooms, weights, strict=True)]


def floors() -> str:
    """Draws the rooms, each on its floor, with their folders."""
    drawing = Drawing(
        "Floors and rooms",
        "Each room stands on its floor and lists its folders and the rooms that it includes.",
    )
    places: dict[str, tuple[float, float, float, float]] = {}
    y = 58.0
    for floor in sorted({entry["floor"] for entry in ROOMS.values()}, reverse=True):
        rooms = shares(floor, {room: x + width / 2 for room, (x, _, width, _) in places.items()})
        height = max(height_of(room, width) for room, width in rooms)
        drawing.text(24, y + height / 2 + 4, f"floor {floor}", "faint")
        x = 100.0
        for room, width in rooms:
            places[room] = (x, y, width, height)
            draw_room(drawing, room, *places[room])
            x += width + 16
        y += height + 26
    for room, below in arrows():
        x, top, width, height = places[room]
        other_x, other_top, other_width, _ = places[below]
        left, right = max(x, other_x), min(x + width, other_x + other_width)
        ends = ((left + right) / 2,) * 2 if left < right else (x + width / 2, other_x + other_width / 2)
        drawing.arrow(ends[0], top + height, ends[1], other_top)
    left = 100.0
    for kind, meaning in KINDS.items():
        drawing.box(left, y - 6, 20, 14, kind, 3)
        drawing.text(left + 28, y + 5, meaning)
        left += 170
    explained = (
        "An arrow leads to an included room on the floor below; each room names all that it includes. "
        "The folders of a room are in order: a folder includes the folders before it, and none after it."
    )
    y = drawing.lines(100, y + 30, explained, 130, "faint")
    return drawing.svg(y + 8)


# ---- a collective

# Each step has the room (or "torch") in which it is done, the text on rank 0, what passes between the ranks
# of a host, and what passes between hosts.
STEPS = [
    ("torch", "c10d finds the backend that the group has for vdev.", "", ""),
    ("csrc_pg", "The process group checks the tensors, and makes a CollectivePlan.", "", ""),
    (
        "csrc_pg",
        "The communicator of the device is made at its first use. "
        "All ranks meet, and hand over their memory.",
        "descriptors of memory, over Unix sockets",
        "addresses and keys, in the rendezvous store",
    ),
    (
        "csrc_device/runtime",
        "The task goes on a stream, and the call returns. "
        "The thread that waits for the stream runs the task, or the worker of the stream.",
        "",
        "",
    ),
    (
        "csrc_pg/collectives",
        "run() chooses an algorithm, and an Operation announces this rank's signature.",
        "signatures, compared in shared memory",
        "signatures, in the first messages",
    ),
    (
        "csrc_pg/collectives",
        "The algorithm reads and writes the memory of its peers, or posts blocks to its neighbour.",
        "elements, read and written in place",
        "blocks on rings and leaps, over ZeroMQ",
    ),
    (
        "transport",
        "Each wait ends: what was waited for is there; the time is up or the peer is dead; "
        "the group has failed; a signal handler has raised.",
        "flags; the first failure",
        "heartbeats; the first failure",
    ),
]


def draw_step(drawing: Drawing, number: int, x: float, y: float, height: float, width: float) -> None:
    """Draws a step in one rank. Rank 0 has the text, the other ranks have the room alone."""
    room, text, _, _ = STEPS[number]
    drawing.box(x, y, width, height, "outside" if room == "torch" else kind_of(room))
    if width < 200:
        drawing.text(x + width / 2, y + height / 2 + 4, room.split("/")[-1], "name middle")
        return
    floor = "PyTorch" if room == "torch" else f"floor {ROOMS[room]['floor']}"
    drawing.text(x + 12, y + 21, f"{number + 1}  {'c10d' if room == 'torch' else room + '/'}", "name")
    drawing.text(x + width - 62, y + 21, floor, "faint")
    drawing.lines(x + 12, y + 39, text, 54)


def draw_traffic(drawing: Drawing, x1: float, x2: float, y: float, text: str) -> None:
    """Draws an arrow between two ranks, with what passes on it."""
    lines = textwrap.wrap(text, 20)
    for index, line in enumerate(lines):
        drawing.text((x1 + x2) / 2, y - 8 - LINE * (len(lines) - 1 - index), line, "middle")
    drawing.arrow(x1, y, x2, y, both=True)


def collective() -> str:
    """Draws the steps of an all_reduce on three ranks of two hosts."""
    drawing = Drawing(
        "How a collective travels: dist.all_reduce(x)",
        "The steps of an all_reduce on a rank, and what passes between ranks of one host and between hosts.",
    )
    columns = [(34.0, 380.0), (566.0, 120.0), (846.0, 120.0)]  # the place and the width of each rank
    heights = [48.0 + LINE * max(1, len(textwrap.wrap(text, 54))) for _, text, _, _ in STEPS]
    bottom = 116 + sum(heights) + 24 * (len(STEPS) - 1) + 16
    drawing.box(20, 54, 680, bottom - 54, "host", 10)
    drawing.box(832, 54, 148, bottom - 54, "host", 10)
    drawing.text(34, 76, "host 0", "faint")
    drawing.text(846, 76, "host 1", "faint")
    for rank, (x, width) in enumerate(columns):
        drawing.text(x + width / 2, 100, f"rank {rank}", "middle")
    y = 116.0
    for number, ((_, _, inside, between), height) in enumerate(zip(STEPS, heights, strict=True)):
        for x, width in columns:
            draw_step(drawing, number, x, y, height, width)
            if number + 1 < len(STEPS):
                drawing.arrow(x + width / 2, y + height, x + width / 2, y + height + 24)
        middle = y + height / 2 + 10
        if inside:
            draw_traffic(drawing, 414, 566, middle, inside)
        if between:
            draw_traffic(drawing, 686, 846, middle, between)
        y += height + 24
    return drawing.svg(bottom + 16)


def drawings() -> dict[str, str]:
    """Returns each file's name with its text."""
    return {"floors.svg": floors(), "collective.svg": collective()}


if __name__ == "__main__":
    for name, svg in drawings().items():
        (HERE / name).write_text(svg)
