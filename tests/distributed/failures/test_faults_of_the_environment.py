"""Plans from VCCL_FAULTS and vrun --faults, the words of a plan, the soak, and VCCL_CHECK against damage."""

import json
import re
import sys

import pytest

from vccl.faults import draws, rules, soak
from vccl.faults.plans import Struck
from vccl.faults.runs import Run

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("vccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.accelerator.set_device_index(rank)
{body}
dist.destroy_process_group()
"""
SUMS = """
x = torch.ones(1000, device="vdev")
for step in range(4):
    dist.all_reduce(x)
    x /= size
print("sum", x.sum().item(), flush=True)
"""


@pytest.fixture
def ranks(start, tmp_path):
    """ranks(body, *options) returns what two ranks print, and what vrun prints; also where they fail."""

    def ranks(body, *options, status=0, **env):
        script = tmp_path / "ranks.py"
        script.write_text(SCRIPT.format(body=body))
        process = start([sys.executable, "-m", "vccl.launch.vrun", "--cards", 2, *options, script], env=env)
        output = process.output(300)
        assert (process.returncode != 0) == (status != 0), output
        return output

    return ranks


# --- the words


@pytest.mark.parametrize(
    "text, said",
    [
        ("rank=1,do=kil", "do=kil is no kind of a plan of faults. The kinds are kill, segv, abort, exit:N"),
        (
            "rank=1,op=all_reduce,do=bend-link",
            "do=bend-link is no kind of a plan of faults. The kinds are kill",
        ),
        ("do=cut-link", "cut-link is given as cut-link:SECONDS"),
        ("do=drop-link:1", "drop-link takes nothing behind a colon"),
        ("do=delay-link:60001", "allowed is a number above 0 and up to 60000"),
        ("do=loss-link:1.5", "allowed is a number above 0 and up to 1"),
        ("phase=init,do=drop-link", "before phase=init there are none: at=after is when they are there"),
        ("rang=1,do=kill", "'rang' is no key of a plan of faults. The keys are rank, host, group, op"),
        ("rank=1", "says what it does: do="),
        ("", "has no rule"),
        ("seed=3", "has no rule"),
        ("kill", "is not of the form key=value"),
        ("rank=1,rank=2,do=kill", "rank= stands twice"),
        (
            "rank=2-1,do=kill",
            "rank=2-1 is not allowed in a plan of faults; allowed are a number (1), several",
        ),
        ("rank=-1,do=kill", "rank=-1 is not allowed"),
        ("op=allreduce,do=kill", "op=allreduce is not allowed in a plan of faults; allowed are all_gather,"),
        ("phase=start,do=kill", "allowed are init, new_group, first_use, destroy, checkpoint"),
        (
            "at=midst,do=kill",
            "at=midst is not allowed in a plan of faults; allowed are before, during, after",
        ),
        ("n=0,do=kill", "n=0 is not allowed in a plan of faults; allowed is a whole number from 1"),
        ("p=2,do=kill", "p=2 is not allowed in a plan of faults; allowed is a number from 0 to 1"),
        ("p=nan,do=kill", "p=nan is not allowed"),
        ("do=stall", "stall is given as stall:SECONDS"),
        (
            "do=stall:0",
            "stall=0 is not allowed in a plan of faults; allowed is a number above 0 and up to 86400",
        ),
        ("do=kill:3", "kill takes nothing behind a colon"),
        ("do=exit:256", "a whole number from 0 to 255"),
        ("do=raise:NoSuchError", "names no exception type"),
        ("do=raise:os.path", "names no exception type"),
        ("op=all_reduce,do=late:1", "is for a meeting"),
        ("at=during,do=raise:ValueError", "strikes at=before"),
        ("at=during,do=nan", "changes what a rank contributes"),
        ("op=barrier,do=corrupt:1", "has no buffer in a barrier"),
        ("phase=init,op=send,do=kill", "a phase has no operation"),
        ("phase=init,at=during,do=kill", "at=before or at=after"),
        ("phase=init,do=slow:2", "is for operations"),
        ("op=matmul,do=kill", "sdc is for op=matmul"),
        ("op=send,do=sdc", "sdc is for op=matmul"),
        ("do=kill;seed=x", "seed=x is not allowed"),
    ],
)
def test_what_no_plan_has_is_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        rules.read(text)


def test_a_plan_as_text_as_json_and_as_dicts(tmp_path):
    text = "rank=1,op=all_reduce,n=3,at=during,do=kill;rank=*,p=0.01,do=stall:0.2;seed=7"
    read = rules.read(text)
    assert read.seed == 7 and [rule.kind for rule in read.rules] == ["kill", "stall"]
    assert read.rules[0] == rules.Rule("kill", rank=((1, 1),), op="all_reduce", n=3, at="during")
    assert read.rules[1] == rules.Rule("stall", 0.2, p=0.01)
    dicts = [
        {"rank": 1, "op": "all_reduce", "n": 3, "at": "during", "do": "kill"},
        {"p": 0.01, "do": "stall:0.2"},
    ]
    whole = {"seed": 7, "rules": dicts}
    assert rules.read(whole) == rules.read(json.dumps(whole)) == read
    assert rules.read(dicts).rules == read.rules and rules.read(dicts[0]).rules == read.rules[:1]
    file = tmp_path / "plan"
    file.write_text(text.replace(";", "  # a comment\n"))
    assert rules.read(f"@{file}") == read
    assert rules.read("rank=0+2-3,do=exit:0").rules[0].rank == ((0, 0), (2, 3))
    with pytest.raises(FileNotFoundError):
        rules.read("@/no/such/file")


def test_a_plan_is_read_from_its_own_words():
    for seed in range(200):
        places = [
            Struck(seed % 3, "stall", "before", name, "g", 1, 0, 0, 0.0)
            for name in ("all_reduce", "init", "send", "barrier")
        ]
        plan = draws.plan_of(seed, places, tuple(draws.KINDS))
        assert rules.read(plan.words()) == plan
        assert plan == draws.plan_of(seed, places, tuple(draws.KINDS))
    assert rules.read(draws.probe().words()) == draws.probe()


# --- the environment


# vrun ends the other ranks when one has failed, so a rank that shall be heard must not fail.
REFUSED = """
import torch.distributed as dist
try:
    dist.init_process_group("vccl")
except ValueError as error:
    print("ValueError:", error, flush=True)
else:
    print("began", flush=True)
"""


def test_a_wrong_plan_ends_init_on_every_rank(vrun, script):
    wrong = {"VCCL_FAULTS": "rank=1,op=allreduce,do=kill", "VCCL_FAULTS_LOG": "/dev/null"}
    output = vrun("--cards", 2, script(REFUSED), env=wrong)
    assert "began" not in output
    assert output.count("ValueError: VCCL_FAULTS='rank=1,op=allreduce,do=kill' is not valid") == 2, output
    output = vrun("--cards", 2, "--faults", "rank=1,do=bend-link", script(REFUSED), status=2)
    assert "vrun: --faults 'rank=1,do=bend-link' is not valid: do=bend-link is no kind" in output, output


def test_vrun_tells_what_struck_a_rank_that_is_dead(ranks, tmp_path):
    plan = tmp_path / "plan"
    plan.write_text("rank=0,op=all_reduce,n=1,do=stall:0.01\nrank=1,op=all_reduce,n=2,at=during,do=kill\n")
    output = ranks(SUMS, "--faults", f"@{plan}", status=1)
    assert "[vccl] 2 faults of the plan struck:" in output, output
    assert "rank 0: stall before all_reduce 1 of group default_pg, step 0 (rule 1)" in output, output
    assert "rank 1: kill during all_reduce 2 of group default_pg, step 0 (rule 2)" in output, output


def test_vrun_tells_what_could_do_nothing(ranks):
    output = ranks(SUMS, "--faults", "rank=1,op=all_reduce,n=1,do=reset-link;rank=0,n=1,do=stall:0.01")
    assert "[vccl] 1 fault of the plan struck:" in output, output
    assert "[vccl] 1 fault of the plan could do nothing:" in output, output
    assert re.search(r"rank 1: reset-link .*\(rule 1\): this process has no link to another host", output), (
        output
    )


def test_a_rank_without_vrun_says_it_itself(run, tmp_path):
    script = tmp_path / "alone.py"
    body = "dist.all_reduce(torch.ones(3))\ndist.barrier()"
    script.write_text(SCRIPT.format(body=body).replace("torch.accelerator.set_device_index(rank)", ""))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    script.write_text(
        script.read_text().replace('("vccl")', '("vccl", store=dist.HashStore(), rank=0, world_size=1)')
    )
    output = run([sys.executable, script], env={**alone, "VCCL_FAULTS": "do=stall:0.01"})
    assert "[vccl] 2 faults of the plan struck:" in output and "rank 0: stall before barrier 2" in output, (
        output
    )


def test_a_rank_is_late_at_its_first_meeting(ranks):
    plan = "rank=1,phase=init,do=late:0.2;host=*,phase=first_use,do=late:0.01;rank=5,do=kill"
    output = ranks(SUMS, "--faults", plan)
    assert "rank 1: late before init of group default_pg" in output, output
    assert output.count("late before first_use") == 2 and output.count("sum 1000.0") == 2, output


def test_a_rule_for_one_host_and_one_attempt(ranks):
    body = f"attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n{SUMS}print('attempt', attempt, flush=True)"
    plan = "host=host0,op=all_reduce,n=2,restart=0,do=exit:3;host=nowhere,do=kill"
    output = ranks(body, "--max-restarts", 1, "--faults", plan.replace("host=host0,", "rank=0,"))
    assert output.count("attempt 1") == 2 and "attempt 0" not in output, output
    assert "1 fault of the plan struck" in output, output


# --- what finds damage


@pytest.mark.parametrize(
    "do, check, said",
    [
        ("at=before,do=nan", "nan", r"rank 1 refuses all_reduce.*element \d+ of 1000 of the input is NaN"),
        ("at=after,do=nan", "nan:outputs", r"rank 1 of group default_pg: element \d+ of 1000 of the output"),
        ("at=after,do=corrupt:1", "content", r"the ranks of group default_pg differ in the output.*rank 1"),
    ],
)
def test_checks_find_damage(ranks, do, check, said):
    output = ranks(SUMS, "--faults", f"rank=1,op=all_reduce,n=2,{do}", status=1, VCCL_CHECK=check)
    assert re.search(said, output), output


# --- the soak


@pytest.mark.daily
def test_a_soak_judges_each_seed(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=SUMS))
    found = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "vccl.faults",
        "soak",
        "--count",
        3,
        "--seed",
        1,
        "--kinds",
        "kill,corrupt,stall",
    ]
    output = run([*command, "--json", found, script])
    judged = json.loads(found.read_text())
    assert [each["seed"] for each in judged] == [1, 2, 3] and "3 runs:" in output, output
    for each in judged:
        kind = rules.read(each["plan"]).rules[0].kind
        allowed = {"kill": {"named", "right"}, "corrupt": {"damaged", "right"}, "stall": {"right"}}[kind]
        assert each["verdict"] in allowed, (each, output)


@pytest.mark.daily
def test_a_soak_refuses_a_script_that_prints_what_it_likes(start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body="print(os.getpid())\ndist.all_reduce(torch.ones(3))"))
    process = start([sys.executable, "-m", "vccl.faults", "soak", "--count", 1, script])
    output = process.output(300)
    assert process.returncode == 2 and "two runs without faults have different results" in output, output


def judged(kind, status, result, errors="", struck=True):
    def run_of(status, result):
        where = [Struck(1, kind, "before", "all_reduce", "g", 1, 0, 0, 0.0)] if struck else []
        return Run(status, 1.0, result, errors, result, where, ["rank 1 is to blame"])

    plan = rules.read(f"rank=1,op=all_reduce,do={kind}")
    whole = soak.Reference(run_of(0, "right"), [])
    return soak.judge(whole, 0, plan, run_of(status, result)).verdict


def test_verdicts():
    verdict = soak.Verdict
    assert judged("kill", 0, "right") is verdict.RIGHT
    assert judged("kill", 0, "right", struck=False) is verdict.MISSED
    assert judged("kill", 1, "", "Rank 1 (pid 7) is dead") is verdict.NAMED
    assert judged("kill", 1, "", "rank 11 is dead") is verdict.UNNAMED
    assert judged("kill", 0, "wrong") is verdict.WRONG
    assert judged("nan", 0, "wrong") is verdict.DAMAGED
    assert judged("reset-link", 0, "right") is verdict.RIGHT
    assert judged("reset-link", 1, "", "rank 1 is dead") is verdict.BROKEN
    assert judged("drop-link", 1, "", "rank 1 is dead") is verdict.NAMED
    assert judged("kill", None, "") is verdict.HUNG
    assert set(soak.BAD) == {verdict.WRONG, verdict.BROKEN, verdict.HUNG}
