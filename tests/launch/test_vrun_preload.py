"""Ranks that vrun forks from a process that has imported torch are as Python would have started them."""

import json
import os
import signal
import sys

import pytest
from processes import gone, read_when_there, wait_until

LOOK = """
import json, os, sys, threading
import __main__, torch
import numpy
class Local: pass
import ctypes
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
seen = dict(
    blas=[ctypes.CDLL(path).scipy_openblas_get_num_threads64_() for path in sorted(libraries)],
    rank=os.environ["RANK"], argv=sys.argv, orig_argv=sys.orig_argv, folder=sys.path[0], file=__file__,
    name=__name__, package=__package__, main=__main__.Local is Local, spec=__spec__ and __spec__.name,
    docs=__doc__, threads=torch.get_num_threads(), cards=torch.accelerator.device_count(),
    memory=torch.vdev.get_device_properties(0).total_memory, numpy=numpy.random.rand(),
    alone=threading.active_count() == 1, leader=os.getsid(0) == os.getpid(),
    unbuffered=sys.stdout.write_through and not hasattr(sys.stdout.buffer, "raw"),
    hooks=sys.excepthook is sys.__excepthook__, stdout=sys.stdout is sys.__stdout__,
)
os.write(1, (json.dumps(seen) + "\\n").encode())
"""
SAME = {"argv", "orig_argv", "folder", "file", "name", "package", "main", "spec", "docs", "threads", "cards"}
SAME |= {"memory", "blas", "alone", "leader", "unbuffered", "hooks", "stdout"}


def looked(output: str) -> list[dict]:
    seen = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(seen, key=lambda rank: rank["rank"])


@pytest.mark.daily
@pytest.mark.parametrize(("module", "threads"), [(False, "1"), (True, "2")], ids=["script", "module"])
def test_a_forked_rank_is_as_a_new_one(vrun, tmp_path, module, threads):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "look.py").write_text('"""Says what it is."""\n' + LOOK)
    what = ["-m", "folder.look"] if module else ["folder/look.py"]
    line = ["--cards", 9, *what, "--max", "a b"]
    env = {"VDEV_DEVICE_COUNT": "12", "OMP_NUM_THREADS": threads, "VDEV_MEMORY": None}
    forked = looked(vrun(*line, env=env))
    new = looked(vrun("--no-preload", *line, env=env))
    assert len(forked) == len(new) == 9
    for one, other in zip(forked, new, strict=True):
        assert {name: one[name] for name in SAME} == {name: other[name] for name in SAME}
    assert forked[0]["cards"] == 12 and forked[0]["threads"] == min(
        int(threads), len(os.sched_getaffinity(0))
    )
    assert len({rank["numpy"] for rank in forked}) == 9


ENDS = """
import os, signal, sys, threading, time, atexit
atexit.register(print, "atexit")
how = sys.argv[1]
def inner():
    raise ValueError("of the script")
class Leaving:
    def __del__(self): print("deleted", os.getpid() == self.pid)
if how == "returns":
    kept = [Leaving()]; kept[0].pid = os.getpid(); kept.append(kept)
    file = open("written", "w"); file.write("what was buffered")
    sys.modules["made"] = made = type(sys)("made")
    made.file = open("also_written", "w"); made.file.write("too")
if how == "returns": threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
if how == "tee":
    class Tee:
        def write(self, text): sys.__stdout__.write(text)
        def flush(self): sys.__stdout__.flush()
    sys.stdout = Tee()
    sys.modules["no_module"] = Leaving
    import builtins
    builtins.journal = open("written", "w"); journal.write("what was buffered")
if how == "daemon":
    def work():
        while True: os.getpid()
    threading.Thread(target=work, daemon=True).start()
if how == "raises": inner()
if how == "text": sys.exit("a text")
if how == "interrupt": raise KeyboardInterrupt
if how == "signal": os.kill(os.getpid(), signal.SIGSEGV)
if how == "hook":
    sys.excepthook = lambda *error: print("hooked", error[0].__name__)
    inner()
"""


@pytest.mark.parametrize(
    ("how", "status", "printed", "not_printed"),
    [
        ("returns", 0, ["thread", "atexit", "deleted True"], ["Traceback"]),
        ("tee", 0, ["atexit"], ["Traceback", "Exception"]),
        ("daemon", 0, ["atexit"], ["Traceback", "Exception"]),
        ("raises", 1, ["in inner", "ValueError: of the script", "atexit"], ["forked_rank.py", "vrun.py"]),
        ("text", 1, ["a text", "atexit"], ["Traceback"]),
        ("interrupt", 130, ["KeyboardInterrupt", "atexit", "Signal 2 (SIGINT)"], ["forked_rank.py"]),
        ("signal", 139, ["Signal 11 (SIGSEGV)"], ["atexit"]),
        ("hook", 1, ["hooked ValueError", "atexit"], ["of the script"]),
    ],
)
def test_a_forked_rank_ends_as_a_new_one(vrun, tmp_path, how, status, printed, not_printed):
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    output = vrun("--cards", 1, script, how, status=status)
    for text in printed:
        assert text in output, output
    if how == "returns":
        assert output.index("thread") < output.index("atexit") < output.index("deleted")
        assert (tmp_path / "also_written").read_text() == "too"
    if how in ("returns", "tee"):
        assert (tmp_path / "written").read_text() == "what was buffered"
    # torchrun's report has a traceback of the launcher, after what the rank has printed.
    rank, _, _ = output.partition("ChildFailedError")
    rank, _, _ = rank.partition("failed (exitcode")
    for text in not_printed:
        assert text not in rank, output


def test_restarts_logs_and_processes_of_a_rank(vrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, sys, time\n"
        "def work(n): return n + 1\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(work, [1, 2]))\n"
        "    print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], file=sys.stderr)\n"
        "    open(f\"there{os.environ['RANK']}\", 'w')\n"
        "    while not (os.path.exists('there0') and os.path.exists('there1')): time.sleep(0.01)\n"
        "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n"
    )
    logs = tmp_path / "logs"
    vrun(
        "--cards",
        2,
        "--max-restarts",
        1,
        "--monitor-interval",
        0.1,
        "--log-dir",
        logs,
        "--redirects",
        3,
        script,
    )
    for attempt in (0, 1):
        assert [path.read_text() for path in logs.rglob(f"attempt_{attempt}/*/stdout.log")] == [
            "[2, 3]\n"
        ] * 2
    assert {path.read_text() for path in logs.rglob("attempt_1/*/stderr.log")} == {"attempt 1\n"}


def test_modules_are_preloaded(vrun, tmp_path):
    (tmp_path / "slow.py").write_text("import os\npid = os.getpid()\n")
    script = tmp_path / "script.py"
    script.write_text("import os, slow\nassert slow.pid == os.getppid()\nos.write(1, b'preloaded\\n')\n")
    env = {"PYTHONPATH": str(tmp_path)}
    assert vrun("--preload", "slow", "--cards", 2, script, env=env).count("preloaded") == 2


REFUSED = "vrun: every rank imports torch by itself: a preloaded module has"
ASKING = "import torch\ntorch.vdev.is_available()"


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "started a thread (1 run)",
        ),
        (ASKING, "asked about cards"),
    ],
    ids=["thread", "card"],
)
def test_a_module_that_does_not_survive_a_fork(vrun, tmp_path, does, told):
    (tmp_path / "unsafe.py").write_text(does)
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nos.write(1, f'loaded: {\"unsafe\" in sys.modules}\\n'.encode())\n")
    output = vrun("--preload", "unsafe", "--cards", 2, script, env={"PYTHONPATH": str(tmp_path)})
    assert output.count("loaded: False") == 2
    (line,) = [line for line in output.splitlines() if line.startswith(REFUSED)]
    assert told in line


def test_a_module_that_cannot_be_imported(vrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    output = vrun("--preload", "no_such_module", "--cards", 1, script, status=1)
    assert "vrun: --preload no_such_module: ModuleNotFoundError: No module named 'no_such_module'" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("whom", ["vrun", "template"])
def test_nothing_outlives_vrun(start, tmp_path, whom):
    script = tmp_path / "sleep.py"
    script.write_text(
        "import os, time\nname = f\"pid{os.environ['RANK']}\"\n"
        "open(name + '.part', 'w').write(f'{os.getpid()}')\nos.rename(name + '.part', name)\n"
        "open('parent.part', 'w').write(f'{os.getppid()}')\nos.rename('parent.part', 'parent')\n"
        "time.sleep(3600)\n"
    )
    child = start([sys.executable, "-m", "vccl.launch.vrun", "--cards", 2, script])
    pids = read_when_there([tmp_path / name for name in ("pid0", "pid1", "parent")], child)
    *ranks, template = map(int, pids)
    os.kill(child.pid if whom == "vrun" else template, signal.SIGKILL)
    output = child.output(300)
    assert child.returncode == (-9 if whom == "vrun" else 137), output
    wait_until(lambda: all(map(gone, (*ranks, template))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_module_is_imported(start, tmp_path, number):
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('pid.part', 'w').write(f'{os.getpid()}')\nos.rename('pid.part', 'pid')\n"
        "time.sleep(3600)\n"
    )
    script = tmp_path / "script.py"
    script.write_text("")
    line = [sys.executable, "-m", "vccl.launch.vrun", "--preload", "slow", "--cards", 2, script]
    child = start(line, env={"PYTHONPATH": str(tmp_path)})
    (template,) = read_when_there([tmp_path / "pid"], child)
    child.send_signal(number)
    output = child.output(300)
    # vrun may have been on the way to torchrun's handlers, or behind them.
    assert child.returncode in (128 + number, -number), output
    wait_until(lambda: gone(template))  # the kernel kills it where vrun could not


def test_without_autoload_ranks_import_for_themselves(vrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nassert 'vccl' not in sys.modules\nassert not hasattr(torch, 'vdev')\n"
    )
    vrun("--nproc-per-node", 1, script, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_an_error_of_torchruns_cleaning_up_does_not_hide_ctrl_c(run, tmp_path):
    (tmp_path / "script.py").write_text("")
    code = f"""
import sys
from vccl.launch import vrun
def interrupted(args):
    try: raise KeyboardInterrupt
    except KeyboardInterrupt: raise RuntimeError("cannot join thread before it is started")
vrun.torchrun.run = interrupted
sys.exit(vrun.main(["--nproc-per-node", "1", {str(tmp_path / "script.py")!r}]))
"""
    output = run([sys.executable, "-c", code], status=130)
    assert "Traceback" not in output
