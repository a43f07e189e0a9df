"""Exports a record as execution traces of MLCommons Chakra, which simulators and Chakra's own tools read.

Each rank gets a file ``record.RANK.et``: a GlobalMetadata and then Nodes (et_def.proto), each with its length
before it. ``comm_groups.json`` has the ranks of the groups by the names that the nodes give in ``pg_name``.
"""

import json
import pathlib

from vccl.replay.files import Call, Job, Operation, RankRecord
from vccl.replay.matching import shared_groups
from vccl.replay.protobuf import Message
from vccl.replay.summary import bytes_of

SCHEMA = "1.0.0"  # of the traces
# NodeType.
_COMP, _SEND, _RECV, _COLL = 4, 5, 6, 7
# CollectiveCommType, by the beginnings of our names. The longer ones come first.
_TYPES = (
    ("all_reduce", 0), ("reduce_scatter", 7), ("reduce", 1), ("all_gather", 2), ("gather", 3), ("scatter", 4),
    ("broadcast", 5), ("all_to_all", 6), ("barrier", 9),
)  # fmt: skip


def export(job: Job, target: pathlib.Path) -> list[str]:
    """Writes the traces into the folder `target`, and returns what they leave out, as sentences."""
    target.mkdir(parents=True, exist_ok=True)
    groups = shared_groups(job)
    names = {
        (rank, serial): str(number)
        for number, group in enumerate(groups)
        for rank, serial in group.serials.items()
    }
    listed = {str(number): list(group.key.ranks) for number, group in enumerate(groups)}
    (target / "comm_groups.json").write_text(json.dumps(listed))
    left_out: dict[str, int] = {}
    for rank, record in job.ranks.items():
        nodes = _nodes(record, names, left_out)
        metadata = Message().text(1, SCHEMA)
        for name, value in (("schema", SCHEMA), ("source", record.library), ("job", record.job)):
            metadata.message(2, _text(name, value))
        metadata.message(2, _number("rank", rank)).message(2, _number("world_size", job.size))
        content = metadata.delimited() + b"".join(node.delimited() for node in nodes)
        (target / f"record.{rank}.et").write_bytes(content)
    return [
        f"{count} calls of {name} have no type in Chakra, and are left out."
        for name, count in left_out.items()
    ]


def _nodes(record: RankRecord, names: dict[tuple[int, int], str], left_out: dict[str, int]) -> list[Message]:
    """Returns the nodes of a rank: its operations, and before each what it has computed.

    A node depends on the operations that were over before it has started, and on the computation before it.
    """
    nodes: list[Message] = []
    open_nodes: dict[int, int] = {}  # the ends of operations that no later node depends on, by their nodes
    last_compute: int | None = None
    before: int | None = None  # when the operation before has started
    operations = [op for op in record.operations if not op.call.batch]
    for operation in sorted(operations, key=lambda op: (op.started or op.created, op.number)):
        start = operation.started or operation.created
        ended = {node: end for node, end in open_nodes.items() if end <= start}
        since = max([*ended.values(), before if before is not None else start])
        depends = sorted(ended)
        for number in depends:
            del open_nodes[number]
        if last_compute is not None:
            depends.append(last_compute)
        if start > since:
            last_compute = len(nodes)
            nodes.append(_compute(len(nodes), since, start, depends))
            depends = [last_compute]
        if (node := _communication(len(nodes), record, operation, names, depends)) is None:
            left_out[operation.call.name] = left_out.get(operation.call.name, 0) + 1
            continue
        if operation.completed is not None:
            open_nodes[len(nodes)] = operation.completed
        nodes.append(node)
        before = start
    return nodes


def _node(number: int, name: str, kind: int, depends: list[int]) -> Message:
    return Message().number(1, number).text(2, name).number(3, kind).numbers(5, depends)


def _timed(node: Message, start_ns: int, duration_ns: int) -> Message:
    return node.number(6, max(0, start_ns) // 1000).number(7, max(0, duration_ns) // 1000)


def _compute(number: int, since: int, start: int, depends: list[int]) -> Message:
    node = _timed(_node(number, "computation", _COMP, depends), since, start - since)
    for attribute in (_number("num_ops", 0), _number("tensor_size", 0), _flag("is_cpu_op", False)):
        node.message(10, attribute)
    return node.message(10, _number("runtime_ns", start - since))


def _communication(
    number: int,
    record: RankRecord,
    operation: Operation,
    names: dict[tuple[int, int], str],
    depends: list[int],
) -> Message | None:
    call = operation.call
    kind = (_SEND if call.sends else _RECV) if call.message else _COLL
    comm_type = next((value for name, value in _TYPES if call.name.startswith(name)), None)
    if kind == _COLL and comm_type is None:
        return None
    start = operation.started or operation.created
    node = _timed(_node(number, call.name, kind, depends), start, (operation.completed or start) - start)
    for field, tensors in ((8, call.inputs), (9, call.outputs)):
        shapes, types = [list(tensor.shape) for tensor in tensors], [tensor.dtype for tensor in tensors]
        node.message(field, Message().text(2, json.dumps(shapes)).text(3, json.dumps(types)))
    node.message(10, _flag("is_cpu_op", call.card < 0))
    node.message(10, _number("comm_size", bytes_of(call)))
    node.message(10, _text("pg_name", names[record.rank, call.group]))
    if kind == _COLL:
        node.message(10, _number("comm_type", comm_type or 0))
        if call.root >= 0:
            node.message(10, _number("root", _in_job(record, call, call.root)))
        if call.reduction:
            node.message(10, _text("reduction", call.reduction))
        return node
    peer = call.peer if call.peer >= 0 else operation.peer
    ends = (record.rank, _in_job(record, call, peer))
    source, target = ends if call.sends else ends[::-1]
    for name, value in (("comm_src", source), ("comm_dst", target), ("comm_tag", call.tag)):
        node.message(10, Message().text(1, name).number(7, value, always=True))
    return node


def _in_job(record: RankRecord, call: Call, number: int) -> int:
    ranks = record.groups[call.group].ranks
    return ranks[number] if 0 <= number < len(ranks) else -1


# AttributeProto: the name, and a field of its oneof.
def _number(name: str, value: int) -> Message:
    return Message().text(1, name).number(9, value, always=True)  # int64_val


def _flag(name: str, value: bool) -> Message:
    return Message().text(1, name).number(27, value, always=True)


def _text(name: str, value: str) -> Message:
    return Message().text(1, name).text(29, value, always=True)
