"""Every racing program is found with its lines, and its repaired twin is not blamed."""

import pytest
import racing_collectives
import racing_memory
import racing_processes
import racing_programs
import racing_streams
import racing_views
import torch
import torch.distributed as dist
from racing import Program, judge

import vccl.sanitizer

PROGRAMS = [
    *racing_streams.PROGRAMS,
    *racing_views.PROGRAMS,
    *racing_memory.PROGRAMS,
    *racing_programs.PROGRAMS,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: Program):
    judge(program)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", racing_collectives.PROGRAMS)
def test_program_of_ranks(ranks, program: Program):
    judge(program)


def play_on_both(ranks, program: Program, repaired: bool):
    """Returns what both ranks report."""
    store = dist.PrefixStore(str(repaired), ranks.store)
    with vccl.sanitizer.enabled() as found:
        program.play(racing_processes.Pair(ranks.rank, store), repaired)
        torch.accelerator.synchronize(0)
        # The reports come at the latest when both ranks have said what came before their operations.
        store.set(f"played {ranks.rank}", "")
        store.wait(["played 0", "played 1"])
    torch.vdev.ipc_collect()
    reports = [None] * ranks.size
    dist.all_gather_object(reports, found.reports)
    return [report for own in reports for report in own]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", racing_processes.PROGRAMS)
def test_program_of_processes(ranks, program: Program):
    (report,) = play_on_both(ranks, program, False)
    lines = {report[side]["line"] for side in ("first", "second")}
    assert lines == {program.line_of("first"), program.line_of("second")}, report
    assert {report[side]["rank"] for side in ("first", "second")} == {0, 1}, report
    assert program.kind in report["kind"] and program.missing in report["missing"], report
    assert play_on_both(ranks, program, True) == []
