"""Records of communication as vccl.replay reads them: damage, differences, scaling, and other forms."""

import json
import pathlib

import pytest

from vccl.replay import (
    RecordError,
    chakra,
    comparison,
    matching,
    nccl_tests,
    plan,
    read_job,
    scaling,
    summary,
)
from vccl.replay.cli import main

MS = 1_000_000


class Recorder:
    """Writes the file of a rank, as recorder/spool/lines.cpp does."""

    def __init__(self, folder: pathlib.Path, rank: int, size: int, **header: object) -> None:
        self.path = folder / f"rank-{rank}.jsonl"
        first = {"vccl_record": 1, "library": "vccl 0", "job": "j", "rank": rank, "size": size, "host": "h"}
        self.lines = [json.dumps({**first, "steady_ns": 0, "wall_ns": 5, **header})]
        self.rank = rank
        self.calls = self.operations = 0
        self.sequences: dict[tuple[int, bool], int] = {}
        self.now = 0

    def group(self, serial: int, ranks: list[int], name: str = "") -> None:
        number = ranks.index(self.rank)
        self.lines.append(
            json.dumps(
                {"group": serial, "name": name or str(serial), "rank": number, "size": len(ranks),
                 "opened_ns": 0, "ranks": ranks}
            )
        )  # fmt: skip

    def call(self, name: str, group: int = 1, *, ms: float = 1, gap: float = 1, state: str = "over",
             hashes=(), **fields: object) -> int:  # fmt: skip
        self.calls += 1
        listed = {"call": self.calls, "name": name, "group": group, "card": -1, "timeout_ms": 1000, **fields}
        self.lines.append(json.dumps(listed))
        kind = group, bool(fields.get("message"))
        self.sequences[kind] = self.sequences.get(kind, 0) + 1
        start = self.now = self.now + int(gap * MS)
        line: list[object] = [self.operations, self.calls, self.sequences[kind], start]
        if state != "under way":
            self.now += int(ms * MS)
            line += [start, self.now if state == "over" else None, *hashes]
        self.lines.append(json.dumps(line))
        self.operations += 1
        return self.operations - 1

    def write(self, finished: bool = True, end: str = "\n") -> None:
        lines = [*self.lines, *(['["finished",0,9]'] if finished else [])]
        self.path.write_text("\n".join(lines) + end)


def tensor(*shape: int, dtype: str = "Float") -> list[object]:
    return [dtype, list(shape)]


def all_reduce(recorder: Recorder, group: int = 1, elements: int = 4, **fields: object) -> None:
    recorder.call(
        "all_reduce", group, inputs=[tensor(elements)], outputs=[tensor(elements)], reduction="SUM", **fields
    )


def write_job(
    folder: pathlib.Path, size: int, body, groups: dict[int, list[list[int]]] | None = None
) -> None:
    """Writes a record of `size` ranks, each with the groups that it is in, numbered from 1."""
    folder.mkdir(exist_ok=True)
    for rank in range(size):
        recorder = Recorder(folder, rank, size)
        recorder.group(1, list(range(size)))
        for serial, sets in (groups or {}).items():
            recorder.group(serial, next(ranks for ranks in sets if rank in ranks))
        body(recorder)
        recorder.write()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "record"


def test_a_record_is_read(folder):
    write_job(folder, 2, all_reduce)
    job = read_job(folder)
    assert job.problems == [] and job.size == 2 and sorted(job.ranks) == [0, 1]
    (operation,) = job.ranks[0].operations
    assert str(operation.call) == "all_reduce(Float [4])" and operation.state == "completed"
    assert operation.call.reduction == "SUM" and job.ranks[0].groups[1].ranks == (0, 1)
    assert summary.job_communication_seconds(job) == pytest.approx(1e-3)


def test_a_cut_file_is_used_as_far_as_it_goes(folder):
    folder.mkdir()
    recorder = Recorder(folder, 0, 2)
    recorder.group(1, [0, 1])
    all_reduce(recorder)
    recorder.write(finished=False, end="\n[1,1,2,77")
    job = read_job(folder)
    assert len(job.ranks[0].operations) == 1
    said = " ".join(job.problems)
    assert "ends within a line" in said and "no last line" in said and "no record of rank 1" in said


def test_what_was_lost_is_told(folder):
    folder.mkdir()
    recorder = Recorder(folder, 0, 1)
    recorder.group(1, [0])
    all_reduce(recorder, state="under way")
    recorder.lines += ['["lost",7,8]', '["end",0]']
    recorder.write()
    job = read_job(folder)
    said = " ".join(job.problems)
    assert "lost 7 operations" in said and "lost the end of operation 0" in said
    assert matching.differences(job) == []  # nobody knows


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "not even a first line"),
        ('{"vccl_record":9,"library":"vccl 7"}\n',
         r"version 9, and this vccl reads version 1\. Read it with vccl 7"),
        ("[1]\n", "version None"),
        ("no JSON\n", "line 1 is damaged"),
        ('{"vccl_record":1,"rank":0}\n', "in its first line"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(folder, text, said):
    folder.mkdir()
    (folder / "rank-0.jsonl").write_text(text)
    with pytest.raises(RecordError, match=said):
        read_job(folder)


def test_damage_in_the_middle_is_refused(folder):
    folder.mkdir()
    recorder = Recorder(folder, 0, 1)
    recorder.lines.append("[3,99,1,2]")  # a call that is not there
    recorder.write()
    with pytest.raises(RecordError, match="line 2 is damaged"):
        read_job(folder)


def test_a_directory_without_a_record_or_with_two_is_refused(folder, capsys):
    with pytest.raises(RecordError, match="is no directory"):
        read_job(folder)
    folder.mkdir()
    with pytest.raises(RecordError, match=r"no file rank-0\.jsonl"):
        read_job(folder)
    Recorder(folder, 0, 2).write()
    Recorder(folder, 1, 2, job="other").write()
    with pytest.raises(RecordError, match="records of 2 jobs"):
        read_job(folder)
    assert main([str(folder), "--summary"]) == 2
    assert "records of 2 jobs" in capsys.readouterr().err


def test_ranks_that_differ_are_named(folder):
    def body(recorder: Recorder) -> None:
        all_reduce(recorder)
        if recorder.rank == 2:
            recorder.call("broadcast", inputs=[tensor(4)], outputs=[tensor(4)], root=0)
        else:
            all_reduce(recorder)

    write_job(folder, 3, body)
    (said,) = matching.differences(read_job(folder))
    assert said.startswith(
        "Collective 2 of group 1: ranks 0, 1 called all_reduce(Float [4]), and rank 2 called "
    )


def test_a_rank_that_misses_a_collective_is_named(folder, capsys):
    write_job(folder, 3, lambda recorder: [all_reduce(recorder) for _ in range(1 + (recorder.rank != 1))])
    (said,) = matching.differences(read_job(folder))
    assert said == (
        "Collective 2 of group 1: ranks 0, 2 called all_reduce(Float [4]), and rank 1 did not call it."
    )
    assert main([str(folder), "--check"]) == 1
    assert said in capsys.readouterr().out


def message(recorder: Recorder, sends: bool, peer: int, tag: int = 0, hashes=()) -> None:
    side = {"inputs" if sends else "outputs": [tensor(3)]}
    recorder.call(
        "send" if sends else "recv", message=True, sends=sends, peer=peer, tag=tag, hashes=hashes, **side
    )


def test_a_message_without_its_other_end_is_named(folder):
    write_job(folder, 2, lambda r: message(r, r.rank == 0, 1 - r.rank, tag=r.rank))
    said = matching.differences(read_job(folder))
    assert said == [
        "Messages of group 1 from rank 0 to rank 1 with tag 0: 1 sent, and 0 received.",
        "Messages of group 1 from rank 0 to rank 1 with tag 1: 0 sent, and 1 received.",
    ]


def test_elements_that_differ_are_named(folder, capsys):
    def body(recorder: Recorder) -> None:
        all_reduce(recorder, hashes=[f"in{recorder.rank}", "same"])
        all_reduce(recorder, hashes=["x", "one" if recorder.rank else "two"])
        message(recorder, recorder.rank == 0, 1 - recorder.rank, hashes=[f"m{recorder.rank}"] * 2)

    write_job(folder, 2, body)
    one, two = matching.content_differences(read_job(folder))
    assert "collective 2 of group 1, differ: rank 0 two, and rank 1 one." in one
    assert two.startswith("Message 1 of group 1 from rank 0 to rank 1 with tag 0 was received with other")
    assert main([str(folder), "--check"]) == 1


def test_records_are_compared(folder, tmp_path, capsys):
    def body(recorder: Recorder) -> None:
        for turn in range(3):
            all_reduce(recorder, hashes=["a", f"b{turn}"])

    def other(recorder: Recorder) -> None:
        for turn in range(3):
            all_reduce(recorder, hashes=["a", "c" if (turn, recorder.rank) == (1, 1) else f"b{turn}"], ms=2)

    write_job(folder, 2, body)
    write_job(tmp_path / "again", 2, other)
    same, again = read_job(folder), read_job(tmp_path / "again")
    assert comparison.compare(same, same) == []
    (said,) = comparison.compare(same, again)
    assert said.startswith("Rank 1, collective of the group of ranks [0, 1]: number 2")
    assert said.endswith("has written other elements.")
    assert "(+100.0 %)" in comparison.times(same, again)
    assert main([str(folder), "--compare", str(tmp_path / "again")]) == 1


def data_and_tensor_parallel(recorder: Recorder) -> None:
    """Blocks of two ranks: group 2 within a block, group 3 across blocks."""
    all_reduce(recorder, 2, elements=8)
    recorder.call("all_gather_into_tensor", 3, inputs=[tensor(6)], outputs=[tensor(12)])
    recorder.call("reduce_scatter_tensor", 3, inputs=[tensor(12)], outputs=[tensor(6)], reduction="SUM")
    # Between neighbours of a block, over the group of all ranks.
    message(recorder, recorder.rank % 2 == 0, recorder.rank ^ 1)


MESH = {2: [[0, 1], [2, 3]], 3: [[0, 2], [1, 3]]}


def test_a_regular_job_is_scaled(folder):
    write_job(folder, 4, data_and_tensor_parallel, MESH)
    job = read_job(folder)
    roles = scaling.scaled_roles(job, 6)
    assert roles.records == [0, 1, 2, 3, 0, 1]
    assert sorted(roles.groups) == [[0, 1], [0, 1, 2, 3, 4, 5], [0, 2, 4], [1, 3, 5], [2, 3], [4, 5]]
    made = plan.make_plan(job, roles)
    for rank in range(6):
        calls = [call for step in made.ranks[rank].steps for call in step.calls]
        groups = [made.groups[call["group"]] for call in calls]
        assert all(rank in group for group in groups)
        assert len(groups[0]) == 2 and len(groups[1]) == len(groups[2]) == 3
        assert calls[1]["inputs"] == [["Float", [4]]] and calls[1]["outputs"] == [["Float", [3, 4]]]
        assert calls[2]["outputs"] == [["Float", [4]]] and calls[2]["inputs"] == [["Float", [3, 4]]]
        assert groups[3][calls[3]["peer"]] == rank ^ 1
    smaller = scaling.scaled_roles(job, 2)
    assert smaller.records == [0, 1] and sorted(smaller.groups) == [[0], [0, 1], [0, 1], [1]]


@pytest.mark.parametrize(
    "size, groups, ranks, said",
    [
        (4, MESH, 5, "blocks of 2 .* a multiple of 2 ranks, and not 5"),
        (4, {2: [[0, 1, 2], [3]]}, 8, "not regular"),
        (4, {2: [[0, 3], [1, 2]]}, 8, "not regular"),
    ],
)
def test_what_cannot_be_scaled_is_refused(folder, size, groups, ranks, said):
    write_job(folder, size, all_reduce, groups)
    with pytest.raises(RecordError, match=said):
        scaling.scaled_roles(read_job(folder), ranks)


def test_splits_cannot_be_scaled(folder):
    def body(recorder: Recorder) -> None:
        recorder.call(
            "all_to_all_single",
            inputs=[tensor(4)],
            outputs=[tensor(4)],
            input_splits=[1, 3],
            output_splits=[1, 3],
        )

    write_job(folder, 2, body)
    job = read_job(folder)
    with pytest.raises(RecordError, match="cannot be scaled"):
        plan.make_plan(job, scaling.scaled_roles(job, 4))


def test_a_call_that_cannot_be_made_again_is_refused_or_left_out(folder):
    def body(recorder: Recorder) -> None:
        recorder.call("multimem_all_reduce_", inputs=[tensor(4)])
        all_reduce(recorder)

    write_job(folder, 2, body)
    job = read_job(folder)
    with pytest.raises(RecordError, match="--skip 'multimem_all_reduce_'"):
        plan.make_plan(job, plan.recorded_roles(job))
    made = plan.make_plan(job, plan.recorded_roles(job), frozenset(["multimem_all_reduce_"]))
    assert made.skipped == 2 and len(made.ranks[0].steps) == 1


def test_a_plan_waits_for_what_was_over_and_no_more(folder):
    """The second call overlaps with the first, and the third comes 3 ms after the end of both."""
    folder.mkdir()
    recorder = Recorder(folder, 0, 1)
    recorder.group(1, [0])
    all_reduce(recorder, ms=10)
    recorder.now = 4 * MS
    all_reduce(recorder, ms=2, gap=1)
    recorder.now = 11 * MS
    all_reduce(recorder, gap=3)
    all_reduce(recorder, state="under way")
    recorder.write(finished=False)
    job = read_job(folder)
    (one,) = plan.make_plan(job, plan.recorded_roles(job)).ranks
    assert [step.waits for step in one.steps] == [[], [], [1, 0], [2]]
    assert [step.gap_ns // MS for step in one.steps][:3] == [0, 4, 3]
    assert one.lingers


def fields_of(encoded: bytes) -> dict[int, list]:
    """Decodes a message of protobuf: numbers, and bytes of everything else."""
    found: dict[int, list] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = encoded[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(encoded):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
        else:
            assert key & 7 == 2
            length = varint()
            found.setdefault(key >> 3, []).append(encoded[at : at + length])
            at += length
    return found


def messages_of(content: bytes) -> list[dict[int, list]]:
    """Decodes a file of messages with their lengths before them."""
    found = []
    while content:
        length = shift = used = 0
        while True:
            byte = content[used]
            length |= (byte & 0x7F) << shift
            used, shift = used + 1, shift + 7
            if byte < 0x80:
                break
        found.append(fields_of(content[used : used + length]))
        content = content[used + length :]
    return found


def attributes_of(node: dict[int, list]) -> dict[str, object]:
    named = {}
    for attribute in map(fields_of, node.get(10, [])):
        (name,), ((value,),) = attribute.pop(1), attribute.values()
        named[name.decode()] = value.decode() if isinstance(value, bytes) else value
    return named


def test_chakra_traces_have_nodes_and_what_they_depend_on(folder, tmp_path):
    write_job(folder, 4, data_and_tensor_parallel, MESH)
    assert main([str(folder), "--export", "chakra", "--output", str(tmp_path / "et")]) == 0
    groups = json.loads((tmp_path / "et" / "comm_groups.json").read_text())
    assert sorted(groups.values()) == [[0, 1], [0, 1, 2, 3], [0, 2], [1, 3], [2, 3]]
    metadata, *nodes = messages_of((tmp_path / "et" / "record.3.et").read_bytes())
    assert metadata[1] == [chakra.SCHEMA.encode()]
    kinds = [node[3][0] for node in nodes]
    assert kinds == [7, 4, 7, 4, 7, 4, 6]  # a computation between two operations
    assert [node.get(1, [0])[0] for node in nodes] == list(range(7))
    assert [list(node.get(5, [b""])[0]) for node in nodes] == [[], [0], [1], [2, 1], [3], [4, 3], [5]]
    first, gather, received = (attributes_of(nodes[at]) for at in (0, 2, 6))
    assert first["comm_type"] == 0 and first["comm_size"] == 32 and groups[first["pg_name"]] == [2, 3]
    assert gather["comm_type"] == 2 and gather["comm_size"] == 48 and groups[gather["pg_name"]] == [1, 3]
    assert (received["comm_src"], received["comm_dst"], received["comm_tag"]) == (2, 3, 0)
    assert nodes[0][7] == [1000]  # microseconds


def test_nccl_tests_have_a_line_for_each_size(folder, tmp_path):
    def body(recorder: Recorder) -> None:
        for _ in range(3):
            all_reduce(recorder)
        recorder.call("broadcast", inputs=[tensor(2, 3, dtype="BFloat16")], outputs=[], root=1)
        recorder.call("barrier")
        message(recorder, recorder.rank == 0, 1 - recorder.rank)

    write_job(folder, 2, body)
    assert main([str(folder), "--export", "nccl-tests", "--output", str(tmp_path / "run.sh")]) == 0
    lines = (tmp_path / "run.sh").read_text().splitlines()
    assert "mpirun -np 2 all_reduce_perf -b 16 -e 16 -d float -o sum -g 1  # 3 times" in lines
    assert "mpirun -np 2 broadcast_perf -b 12 -e 12 -d bfloat16 -r 1 -g 1  # 1 times" in lines
    assert "# 1 times: barrier() of 2 ranks, which nccl-tests does not measure" in lines
    assert "# 1 messages, which sendrecv_perf measures in a ring only" in lines
    assert nccl_tests.lines(read_job(folder)) == lines


def test_the_summary_adds_up(folder, capsys):
    write_job(folder, 2, lambda recorder: [all_reduce(recorder, elements=1000, ms=2) for _ in range(3)])
    assert main([str(folder), "--summary"]) == 0
    said = capsys.readouterr().out
    (row,) = summary.rows(read_job(folder))
    assert (row.count, row.bytes, row.seconds) == (3, 12000, pytest.approx(6e-3))
    assert row.bus_bandwidth == pytest.approx(12000 / 6e-3)
    assert (
        "all_reduce" in said
        and "2 of 2 ranks, 6 operations. A rank communicated for 6.0 ms of 8.0 ms." in said
    )
