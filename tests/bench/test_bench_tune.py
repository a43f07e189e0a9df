"""vccl.bench tune: from made-up times to the exact table, what the table rests on, and one short run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vccl.bench import cli, tune
from vccl.bench.tuned_table import (
    COLLECTIVES,
    MEMORIES,
    Measured,
    Range,
    cheapest,
    header_text,
    read_measured,
    sections,
    write_measured,
)

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "csrc_pg" / "collectives" / "selection" / "tuned_table.hpp"
JSON = ROOT / "docs" / "bench" / "tune.json"
MACHINE = {"cpu": "A Made-Up Processor", "cores": 2}
SIZES = (1024, 4096, 16384, 65536)


def measured(collective, memory, ranks, **times):
    """`times`: of each algorithm, in microseconds, one a size; None where it cannot do it."""
    sizes = (0,) if collective == "barrier" else SIZES
    rows = {
        size: {name: [float(series[i])] for name, series in times.items() if series[i:] and series[i]}
        for i, size in enumerate(sizes[: max(map(len, times.values()))])
    }
    return Measured(collective, memory, ranks, rows)


def everything(ranks=(2, 4)):
    """All that a table needs: "fast" wins everywhere."""
    return [
        measured(collective, memory, count, fast=[5.0] * 4, slow=[9.0] * 4)
        for collective in COLLECTIVES
        for memory in MEMORIES
        for count in ranks
    ]


def ranges(**times):
    return cheapest(measured("reduce", "mapped", 2, **times).costs())[1]


def test_the_fastest_has_its_range():
    assert ranges(a=[1, 2, 4, 8], b=[2, 2.5, 3, 4]) == (Range("a", 4096), Range("b", None))
    assert ranges(a=[1, 2, 4, 8], b=[2, 4, 8, 16]) == (Range("a", None),)
    three = ranges(a=[1, 2, 4, 8], b=[2, 1, 2, 4], c=[4, 4, 1, 1])
    assert three == (Range("a", 1024), Range("b", 4096), Range("c", None))


def test_what_saves_little_is_not_worth_a_range():
    assert len(ranges(a=[1.0, 1.0, 1.0, 1.0], b=[0.98, 1.02, 0.97, 1.03])) == 1
    # 5 % at one size, but 5 % at all of three.
    assert ranges(a=[1, 1, 1, 1], b=[1.5, 1.5, 1.5, 0.95]) == (Range("a", None),)
    assert ranges(a=[1, 1, 1, 1], b=[1.5, 0.95, 0.95, 0.95]) == (Range("a", 1024), Range("b", None))


def test_an_algorithm_has_one_range_at_most():
    found = ranges(a=[1, 2, 1, 1], b=[2, 1, 2, 2])
    assert found == (Range("a", None),)


def test_an_algorithm_ends_where_it_cannot_go_on():
    assert ranges(a=[1, 1, None, None], b=[3, 3, 3, 3]) == (Range("a", 4096), Range("b", None))


def test_passes_count_alike_whatever_else_went_on_in_them():
    # Everything took ten times as long in the third.
    one = Measured("reduce", "mapped", 2, {1024: {"a": [1.0, 1.0, 20.0], "b": [1.5, 1.5, 10.0]}})
    assert cheapest(one.costs())[1] == (Range("a", None),)
    # 30 % better in two passes, six times worse in the other: in another state of the machine.
    one = Measured("reduce", "mapped", 2, {1024: {"a": [39.0, 240.0, 39.0], "b": [52.0, 40.0, 52.0]}})
    assert cheapest(one.costs())[1] == (Range("b", None),)
    # Left out after the first pass, in which it took three times as long.
    one = Measured("reduce", "mapped", 2, {1024: {"a": [3.0, None, None], "b": [1.0, 4.0, 4.0]}})
    assert cheapest(one.costs())[1] == (Range("b", None),)


def test_where_nothing_else_decides_the_first_listed_is_taken():
    assert ranges(b=[1.01], a=[1.0]) == (Range("b", None),)
    assert ranges(b=[1.05], a=[1.0]) == (Range("a", None),)


def test_passes_of_two_runs_stay_in_line():
    one = Measured("reduce", "mapped", 2, {64: {"a": [1.0, 1.0], "b": [5.0, None]}, 128: {"a": [1.0]}})
    one.add_all(
        Measured("reduce", "mapped", 2, {64: {"a": [2.0], "c": [1.0]}, 256: {"a": [3.0], "b": [4.0]}})
    )
    assert one.times == {
        64: {"a": [1.0, 1.0, 2.0], "c": [None, None, 1.0], "b": [5.0, None, None]},
        128: {"a": [1.0]},
        256: {"a": [3.0], "b": [4.0]},
    }


def chosen(*of_reduce):
    """The sections of reduce in mapped memory, for those made-up measurements."""
    others = [one for one in everything([one.ranks for one in of_reduce]) if one.key[:2] != (2, 0)]
    return [section for section in sections([*others, *of_reduce]) if section.collective == "reduce"][:-3]


def test_numbers_of_ranks_share_a_series_where_they_can():
    a, b = [1, 1, 4, 4], [4, 4, 1, 1]
    (both,) = chosen(measured("reduce", "mapped", 2, a=a, b=b), measured("reduce", "mapped", 4, a=a, b=b))
    assert (both.fewest, both.most, both.ranges) == (1, None, (Range("a", 4096), Range("b", None)))
    two, four = chosen(measured("reduce", "mapped", 2, a=a, b=b), measured("reduce", "mapped", 4, a=b, b=a))
    assert (two.fewest, two.most, two.ranges) == (1, 2, (Range("a", 4096), Range("b", None)))
    assert (four.fewest, four.most, four.ranges) == (3, None, (Range("b", 4096), Range("a", None)))


def test_sizes_that_one_number_of_ranks_lacks_are_between_its_others():
    a, b = [1, 1, 4, 4], [4, 4, 1, 1]
    four = measured("reduce", "mapped", 4, a=a, b=b)
    four.times[8192] = {"a": [1.0], "b": [2.0]}
    (both,) = chosen(measured("reduce", "mapped", 2, a=a, b=b), four)
    assert both.ranges == (Range("a", 8192), Range("b", None))


def test_a_table_needs_everything():
    with pytest.raises(ValueError, match=r"all_gather in staged memory was not measured with \[4\] ranks"):
        list(sections([one for one in everything() if one.key != (3, 1, 4)]))
    with pytest.raises(ValueError, match="all_reduce in mapped memory was not measured with any ranks"):
        list(sections([]))
    # One host and several may be measured with other numbers of ranks.
    near = [one for one in everything((2, 4, 8)) if not one.memory.endswith("_across")]
    far = [one for one in everything((2, 4)) if one.memory.endswith("_across")]
    assert {section.most for section in sections([*near, *far])} == {None}
    with pytest.raises(ValueError, match=r"reduce in mapped_across memory was not measured with \[4\] ranks"):
        list(sections([*near, *(one for one in far if one.key != (2, 2, 4))]))


EXPECTED = """\
// Which algorithm is the best one where. Written by `python -m vccl.bench tune` and not by hand: measured
// with 2 and 4 ranks of one host, and 2 and 4 of several, on 2 cores of A Made-Up Processor.
#pragma once

#include "csrc_pg/collectives/selection/tuned_range.hpp"

namespace vccl {

inline constexpr TunedRange kTunedTable[] = {
    {Collective::all_reduce, MemoryKind::mapped, 1, 2, 4 * 1024, "fast"},
    {Collective::all_reduce, MemoryKind::mapped, 1, 2, kAnyLength, "slow"},
    {Collective::all_reduce, MemoryKind::mapped, 3, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_reduce, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_reduce, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_reduce, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::broadcast, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::broadcast, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::broadcast, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::broadcast, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_gather, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_gather, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_gather, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_gather, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce_scatter, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce_scatter, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce_scatter, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::reduce_scatter, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::gather, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::gather, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::gather, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::gather, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::scatter, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::scatter, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::scatter, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::scatter, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_to_all, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_to_all, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_to_all, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::all_to_all, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::barrier, MemoryKind::mapped, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::barrier, MemoryKind::staged, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::barrier, MemoryKind::mapped_across, 1, kAnyRanks, kAnyLength, "fast"},
    {Collective::barrier, MemoryKind::staged_across, 1, kAnyRanks, kAnyLength, "fast"},
};

}  // namespace vccl
"""


def made_up():
    first = measured("all_reduce", "mapped", 2, slow=[9, 9, 9, 9], fast=[5.0, 5.0, 20.0, 40.0])
    return [first, *everything()[1:]]


def test_the_text_of_the_table(tmp_path):
    # Through the file, in another order: the text depends on the measurements alone.
    write_measured(tmp_path / "tune.json", MACHINE, made_up()[::-1])
    machine, found = read_measured(tmp_path / "tune.json")
    assert found == sorted(made_up(), key=lambda one: one.key) and machine == MACHINE
    assert header_text(machine, found) == EXPECTED


def test_the_committed_table_is_that_of_the_committed_measurements():
    assert header_text(*read_measured(JSON)) == TABLE.read_text(), (
        "the table is not what docs/bench/tune.json gives; python -m vccl.bench tune --rewrite writes it"
    )
    assert JSON.stat().st_size < 150_000


@pytest.mark.skipif(not shutil.which("clang-format"), reason="clang-format is not installed")
@pytest.mark.parametrize("text", [EXPECTED, TABLE.read_text()], ids=["made up", "committed"])
def test_the_table_is_formatted(text):
    command = ["clang-format", f"--assume-filename={TABLE}"]
    assert subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout == text


def test_the_table_is_written_anew_from_what_was_measured(tmp_path, capsys):
    write_measured(tmp_path / "tune.json", MACHINE, made_up())
    files = ["--json", str(tmp_path / "tune.json"), "--table", str(tmp_path / "table.hpp")]
    assert cli.main(["tune", "--rewrite", *files]) == 0
    assert (tmp_path / "table.hpp").read_text() == EXPECTED
    printed = capsys.readouterr().out
    assert "all_reduce, mapped, 1 to 2 ranks: fast to 4K, then slow\n" in printed
    assert "all_reduce, mapped, 3 or more ranks: fast\n" in printed


def test_what_was_not_measured_anew_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "facts", lambda: MACHINE)
    path = tmp_path / "tune.json"
    write_measured(path, MACHINE, everything())
    anew = measured("reduce", "staged", 2, fast=[7, 7, 7, 7])
    monkeypatch.setattr(tune, "run", lambda args, ranks: [anew])
    arguments = [
        "tune",
        "--ranks",
        "2",
        "--collectives",
        "reduce",
        "--memories",
        "staged",
        "--json",
        str(path),
    ]
    assert cli.main(arguments) == 0
    _, found = read_measured(path)
    assert found == sorted(
        [*(one for one in everything() if one.key != anew.key), anew], key=lambda one: one.key
    )

    monkeypatch.setattr(tune, "facts", lambda: {**MACHINE, "cores": 4})
    with pytest.raises(SystemExit, match="measure everything anew, or give another --json"):
        cli.main(arguments)


def test_passes_are_added(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(tune, "facts", lambda: MACHINE)
    path = tmp_path / "tune.json"
    write_measured(path, MACHINE, everything())
    monkeypatch.setattr(tune, "run", lambda args, ranks: everything([ranks]))
    assert cli.main(["tune", "--add", "--ranks", "2", "--json", str(path)]) == 0
    _, found = read_measured(path)
    for one in found:
        passes = {len(series) for times in one.times.values() for series in times.values()}
        assert passes == {2 if one.ranks == 2 else 1}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--ranks", "1,2"], "nothing to choose below 2 ranks"),
        (["--collectives", "all_reduce,send_recv"], "no send_recv; there are all_reduce"),
        (["--memories", "mapped,cpu"], "no cpu; there are mapped, staged"),
        (["--hosts", "3", "--ranks", "2,4"], "every host needs a rank: --hosts 3 is not 1 to 2"),
        (["--rewrite", "--json", "none.json"], "there is no none.json: measure first"),
    ],
)
def test_arguments_that_cannot_be(arguments, message, capsys):
    with pytest.raises(SystemExit):
        tune.parse(arguments)
    assert message in capsys.readouterr().err


def test_a_file_that_it_did_not_write(tmp_path):
    (tmp_path / "f.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"f\.json is not a file that vccl\.bench tune wrote"):
        read_measured(tmp_path / "f.json")


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_short_run(run, tmp_path, hosts):
    """Every algorithm of some collectives, between two ranks: what is measured, and by whom."""
    run(
        [
            *(sys.executable, "-m", "vccl.bench", "tune", "--ranks", "2", "--passes", "2"),
            *("--collectives", "all_gather,barrier", "--max", "256", "--seconds", "0.001"),
            *("--json", "tune.json", "--hosts", str(hosts)),
        ],
        # What somebody prefers for his own jobs chooses nothing here.
        env={"VCCL_ALGO": "all_gather:ring", "RANK": None},
    )
    machine, found = read_measured(tmp_path / "tune.json")
    assert machine == tune.facts()
    memories = MEMORIES[:2] if hosts == 1 else MEMORIES[2:]
    assert [(one.collective, one.memory, one.ranks) for one in found] == [
        *(("all_gather", memory, 2) for memory in memories),
        *(("barrier", memory, 2) for memory in memories),
    ]
    able = {
        "mapped": {"oneshot", "direct", "staged", "ring"},
        "staged": {"oneshot", "staged", "ring"},
        "mapped_across": {"oneshot", "hierarchical", "ring"},
        "staged_across": {"oneshot", "ring"},
    }
    for one in found:
        if one.collective == "barrier":
            assert one.times.keys() == {0} and one.times[0].keys() == {"oneshot", "ring"}
        else:
            assert {16, 64, 256} <= one.times.keys()
            assert all(able[one.memory] == times.keys() for times in one.times.values())
        for series in (series for times in one.times.values() for series in times.values()):
            assert (
                series[0] > 0 and 1 <= len(series) <= 2 and all(time is None or time > 0 for time in series)
            )
