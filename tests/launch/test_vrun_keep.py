"""vrun --keep: what runs through a server find, how they end, and which server they get."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import gone, read_when_there, wait_until
from torch.distributed import run as torchrun

from vccl_entry import client, messages, own_options, server_folder, server_key
from vccl_entry import server as server_module

COMMAND = Path(sysconfig.get_path("scripts"), "vrun")
SERVER = """
def parent(pid):
    with open(f"/proc/{pid}/stat") as file: return int(file.read().rpartition(")")[2].split()[1])
def server(): return parent(parent(os.getppid()))  # of the agent, which is the template's parent
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """The folder in which the servers of this file listen. They end with the tests."""
    folder = tmp_path_factory.mktemp("runtime", numbered=True)
    yield folder
    stop(folder)


def stop(runtime: Path) -> str:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run([COMMAND, "--stop"], env=env, timeout=300, text=True, capture_output=True)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


@pytest.fixture
def keep(run: Callable[..., str], runtime: Path) -> Callable[..., str]:
    """keep("--cards", 2, script, ...) returns the output of that command line with --keep."""

    def keep(*arguments: object, env: dict | None = None, **options) -> str:
        line = [str(COMMAND), "--keep", *map(str, arguments)]
        return run(line, env={"XDG_RUNTIME_DIR": str(runtime), **(env or {})}, **options)

    return keep


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text("import os, sys\n" + SERVER + text)
        return path

    return write


SHOW_SERVER = "if os.environ['RANK'] == '0': os.write(1, f'server {server()}\\n'.encode())"


def server_of(output: str) -> int:
    (line,) = [line for line in output.splitlines() if line.startswith("server ")]
    return int(line.split()[1])


LOOK = """
import json, random, tempfile, time, torch, numpy
mask = os.umask(0); os.umask(mask)
seen = dict(
    rank=os.environ["RANK"], argv=sys.argv, orig_argv=sys.orig_argv, path=sys.path, cwd=os.getcwd(),
    threads=torch.get_num_threads(), cards=torch.accelerator.device_count(), temporary=tempfile.gettempdir(),
    mask=mask, environment={name: os.environ.get(name) for name in ("OF_SCRIPT", "TZ", "OMP_NUM_THREADS")},
    memory=torch.vdev.get_device_properties(0).total_memory, zone=time.timezone, name=__name__, file=__file__,
    streams=[(s.encoding, s.errors, s.line_buffering, s.name) for s in (sys.stdin, sys.stdout, sys.stderr)],
    input=sys.stdin.read(), inherited=sorted(os.listdir("/proc/self/fd")),
    ignored=[str(n) for n in (1, 2, 3, 15) if signal.getsignal(n) == signal.SIG_IGN],
    limits=open("/proc/self/limits").read(),
)
os.write(1, (json.dumps([seen, torch.rand(1).item(), numpy.random.rand(), random.random()]) + "\\n").encode())
"""


def test_a_rank_is_as_without_a_server(keep, vrun, script, tmp_path):
    first = server_of(keep("--cards", 2, script(SHOW_SERVER)))
    path = script("import signal" + LOOK)
    other = tmp_path / "other"
    other.mkdir()
    changes = {
        "OF_SCRIPT": "1",
        "TZ": "XYZ-3",
        "OMP_NUM_THREADS": "1",
        "VDEV_MEMORY": "64M",
        "TMPDIR": str(other),
    }

    def ranks(start: Callable[..., str]) -> list:
        output = start("--cards", 2, path, "--cards", "a b", env=changes, cwd=other)
        seen = [json.loads(text) for text in output.splitlines() if text.startswith("[{")]
        assert len(seen) == 2
        return sorted(seen, key=lambda rank: rank[0]["rank"])

    kept, again, usual = ranks(keep), ranks(keep), ranks(vrun)
    for (one, *_), (other_one, *_) in zip(kept, usual, strict=True):
        assert one == other_one
        assert one["path"][0] == str(tmp_path) and one["environment"]["OF_SCRIPT"] == "1"
    drawn = [number for rank in (*kept, *again) for number in rank[1:]]
    assert len(set(drawn)) == len(drawn)
    assert server_of(keep("--cards", 2, script(SHOW_SERVER))) == first


def test_streams_umask_and_ignored_signals_are_the_clients(runtime, script):
    path = script(
        "import signal\nprint(sys.stdin.read(), oct(os.umask(0)), signal.getsignal(1) == signal.SIG_IGN)\n"
        "print('of stderr', file=sys.stderr)"
    )
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"umask 077; trap '' HUP; exec {COMMAND} --keep --cards 1 --signals-to-handle SIGTERM {path}",
        ],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        input="of stdin",
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.stdout == "of stdin 0o77 True\n"
    assert "of stderr\n" in done.stderr and done.returncode == 0


CLOSED = pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])


def run_closed(
    closed: str, environment: dict[str, str], *options: object
) -> subprocess.CompletedProcess[str]:
    """Runs a command line of vrun with closed streams. Returns the completed process."""
    line = shlex.join(map(str, (COMMAND, *options)))
    done = subprocess.run(
        ["sh", "-c", f"exec {line} {closed}"],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@CLOSED
@pytest.mark.parametrize("options", [["--keep"], []], ids=["keep", "alone"])
def test_a_closed_stream_is_an_empty_one(runtime, script, tmp_path, closed, options):
    path = script(
        "import pathlib\n"
        "os.write(2, b'of stderr'); print('of stdout', flush=True)\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).write_text(sys.stdin.read() + 'ran')\n"
    )
    done = run_closed(closed, {"XDG_RUNTIME_DIR": str(runtime)}, *options, "--nproc-per-node", 1, path)
    assert (tmp_path / "ran").read_text() == "ran"
    assert done.stdout == ("" if ">&- " in f"{closed} ".replace("2>&-", "") else "of stdout\n")
    assert ("of stderr" in done.stderr) == ("2>&-" not in closed)


def test_a_note_for_a_closed_stream_is_not_printed_elsewhere(script, tmp_path):
    folder = tmp_path / "open"
    (folder / "vccl-vrun").mkdir(parents=True)
    (folder / "vccl-vrun").chmod(0o777)
    path = script("print('of stdout')")
    options = ("--keep", "--nproc-per-node", 1, path)
    assert run_closed("2>&-", {"XDG_RUNTIME_DIR": str(folder)}, *options).stdout == "of stdout\n"


@contextlib.contextmanager
def stopped(pid: int):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_server_is_named_and_left_out(keep, run, runtime, script):
    path = script(SHOW_SERVER)
    server = server_of(keep("--cards", 1, path))
    with stopped(server):
        output = keep("--nproc-per-node", 1, script("print('ran')"))
        assert f"--keep has no effect: the server (pid {server}) is stopped" in output and "ran" in output
        output = run([COMMAND, "--stop"], env={"XDG_RUNTIME_DIR": str(runtime)}, status=1)
        assert f"(pid {server}) is stopped" in output and f"kill -CONT {server}" in output


def test_a_server_that_is_stopped_during_a_run_is_named_at_its_end(keep, script):
    server = server_of(keep("--cards", 1, script(SHOW_SERVER)))
    try:
        output = keep("--nproc-per-node", 1, script("os.kill(server(), 19)"), status=1)
    finally:
        os.kill(server, signal.SIGCONT)
    assert f"nobody knows how: the server (pid {server}) is stopped" in output


@pytest.mark.parametrize(
    ("does", "status"),
    [("sys.exit(7)", 7), ("os.kill(os.getpid(), 11)", 139), ("no_such_name", 1)],
    ids=["exit", "signal", "error"],
)
def test_the_exit_status_is_the_runs(keep, script, does, status):
    keep("--cards", 2, script(does), status=status)


def test_a_wrong_command_line_is_told(keep, script):
    assert "contradict each other" in keep("--no-preload", script(""), status=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_client_ends_the_run(start, runtime, script, tmp_path, number):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = script(
        "import time\nname = 'pid' + os.environ['RANK']\n"
        "open(name + '.part', 'w').write(f'{os.getpid()} {os.getppid()} {parent(os.getppid())}')\n"
        "os.rename(name + '.part', name)\ntime.sleep(3600)"
    )
    env = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(temporary)}
    child = start([COMMAND, "--keep", "--cards", 2, path], env=env)
    texts = read_when_there([tmp_path / "pid0", tmp_path / "pid1"], child)
    child.send_signal(number)
    output = child.output(300)
    assert child.returncode == (-9 if number == signal.SIGKILL else 128 + number), output
    pids = {int(pid) for text in texts for pid in text.split()}
    assert len(pids) == 4
    wait_until(lambda: all(map(gone, pids)))
    assert list(temporary.iterdir()) == []


def test_runs_at_once_share_a_server_that_either_starts(start, script, tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir(0o700)
    path = script(
        "import time\nopen('there' + sys.argv[1], 'w')\n"
        "while not os.path.exists('end'): time.sleep(0.01)\n" + SHOW_SERVER
    )
    env = {"XDG_RUNTIME_DIR": str(runtime)}
    try:
        children = [start([COMMAND, "--keep", "--cards", 1, path, str(n)], env=env) for n in range(2)]
        wait_until(lambda: (tmp_path / "there0").exists() and (tmp_path / "there1").exists())
        assert stop(runtime) == "vrun: stopped 1 server (1 will end with the last of their runs)\n"
        (tmp_path / "end").touch()
        outputs = [child.output(300) for child in children]
        assert [child.returncode for child in children] == [0, 0], outputs
        assert len({server_of(output) for output in outputs}) == 1
    finally:
        stop(runtime)
    assert stop(runtime) == "vrun: stopped 0 servers\n"
    wait_until(lambda: gone(server_of(outputs[0])))
    assert os.listdir(runtime / "vccl-vrun") == ["lock"]


@pytest.mark.daily
def test_a_module_that_is_edited_is_imported_anew(keep, script, tmp_path):
    module = tmp_path / "preloaded.py"
    module.write_text("value = 'old'")
    path = script("import preloaded\nprint(preloaded.value)\n" + SHOW_SERVER)
    line = ("--preload", "preloaded", "--cards", 1, path)
    first = keep(*line)
    assert "old" in first
    assert server_of(keep(*line)) == server_of(first)
    module.write_text("value = 'written anew'")
    second = keep(*line)
    assert "written anew" in second and server_of(second) != server_of(first)
    wait_until(lambda: gone(server_of(first)))
    os.kill(server_of(second), signal.SIGKILL)  # a dead server leaves its socket
    wait_until(lambda: gone(server_of(second)))
    third = keep(*line, env={"VCCL_KEEP_SECONDS": "1"})
    assert server_of(third) != server_of(second)
    wait_until(lambda: gone(server_of(third)))


def test_a_server_that_cannot_fork_is_told_once(keep, script, tmp_path):
    (tmp_path / "unsafe.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    output = keep("--preload", "unsafe", "--cards", 2, script("os.write(1, b'ran\\n')"))
    assert output.count("ran\n") == 2
    assert output.count("vrun: --keep has no effect: a preloaded module has started a thread (1 run)") == 1


def test_a_folder_that_others_can_enter_is_not_used(keep, script, tmp_path):
    folder = tmp_path / "vccl-vrun"
    folder.mkdir()
    folder.chmod(0o755)
    output = keep("--cards", 1, script("os.write(1, b'ran\\n')"), env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert "ran\n" in output
    assert f"vrun: --keep has no effect: {folder} has to belong to its user alone, with mode 0700." in output
    assert list(folder.iterdir()) == []


def test_ranks_can_pose_as_cuda(keep, script):
    path = script(
        "import torch\nos.write(1, f'{torch.ones(1, device=\"cuda\").device}\\n'.encode())\n" + SHOW_SERVER
    )
    output = keep("--as-cuda", "--cards", 1, path)
    assert "cuda:0\n" in output
    assert server_of(keep("--cards", 1, script(SHOW_SERVER))) != server_of(output)


def test_the_client_imports_no_torch(keep, run, runtime, script):
    path = script("os.write(1, b'ran\\n')")
    keep("--cards", 1, path)
    line = ["vrun", "--keep", "--cards", "1", str(path)]
    code = f"import sys; sys.argv = {line!r}; sys.path[0] = {str(COMMAND.parent)!r}\n"
    # An import of these raises, with which a run without a server would end.
    code += "sys.modules.update(torch=None, argparse=None)\nfrom vccl_entry.vrun import command\ncommand()"
    output = run([sys.executable, "-c", code], env={"XDG_RUNTIME_DIR": str(runtime)})
    assert "ran\n" in output and "--keep has no effect" not in output


def test_what_selects_a_server():
    usual = {"PATH": "/bin", "LANG": "C", "PWD": "/", "OMP_NUM_THREADS": "2"}

    def key(environment: dict[str, str], preload: tuple[str, ...] = (), folder: str = "/a") -> str:
        return server_key.key({**usual, **environment}, list(preload), folder)

    assert key({}) == key({}, folder="/b")
    for name in ("PATH", "PWD", "OMP_NUM_THREADS", "OF_SCRIPT", "VDEV_DEVICE_COUNT"):
        assert key({name: "other"}) == key({}), name
    for name in (
        "VDEV_POSE",
        "TORCH_LOGS",
        "PYTHONPATH",
        "LD_PRELOAD",
        "KMP_AFFINITY",
        "LANG",
        "VCCL_SHARE_CPU",
    ):
        assert key({name: "other"}) != key({}), name
    module = ("module",)
    assert len({key({}), key({}, module), key({}, module, "/b"), key({"OF_SCRIPT": ""}, module)}) == 4
    assert key({"PWD": "/b", "OMP_NUM_THREADS": "3"}, module) == key({}, module)


@pytest.mark.parametrize("text", ["0", "-1", "", "x", "1.5", "604801", "\u0663"])
def test_a_wrong_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("VCCL_KEEP_SECONDS", text)
    with pytest.raises(ValueError, match=f"VCCL_KEEP_SECONDS={text}: allowed are 1 to 604800 seconds"):
        client.keep_seconds()


def test_the_seconds_that_a_server_is_kept(monkeypatch):
    monkeypatch.delenv("VCCL_KEEP_SECONDS", raising=False)
    assert client.keep_seconds() == 1800
    monkeypatch.setenv("VCCL_KEEP_SECONDS", "604800")
    assert client.keep_seconds() == 604800


def test_the_folder_is_private(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = server_folder.open_folder()
    folder.close()
    assert folder.path == f"{tmp_path}/vccl-vrun-{os.geteuid()}"
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    os.rename(folder.path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder.path)
    with pytest.raises(server_folder.FolderError):
        server_folder.open_folder()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = server_folder.open_folder()
    yield folder
    folder.close()


def fill_queue(folder: server_folder.Folder) -> None:
    """Leaves no room for one more connection to the server "key"."""
    with contextlib.suppress(BlockingIOError):
        while True:
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.setblocking(False)
                stranger.connect(f"{folder.path}/key.socket")


def test_a_client_waits_for_room_in_the_queue(monkeypatch, folder):
    with folder.listen("key") as listener:
        fill_queue(folder)
        accepted = []
        # The client pauses when it has found the queue full.
        monkeypatch.setattr(
            server_folder.time, "sleep", lambda seconds: accepted.append(listener.accept()[0])
        )
        with folder.connect("key") as connection:
            connection.sendall(b"request")
        assert len(accepted) == 1
        accepted[0].close()
        monkeypatch.setattr(server_folder.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(server_folder, "_PATIENCE", 0.01)
        fill_queue(folder)
        with pytest.raises(server_folder.FolderError, match="processes or more have waited for the server"):
            folder.connect("key")


def test_a_client_that_says_nothing_keeps_no_other_waiting(monkeypatch, folder):
    monkeypatch.setattr(server_module, "_SECONDS_FOR_HEAD", 600.0)
    server = server_module._Server(folder, "key", folder.listen("key"), refused=None)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(folder.connect("key")) for _ in range(server_module._MOST_SILENT + 1)]
        assert silent[0].recv(1) == b""  # there are too many of them
        speaking = stack.enter_context(folder.connect("key"))
        messages.send(speaking, messages.STOP)
        assert messages.receive(speaking).kind == messages.STOPPING
        assert silent[-1].recv(1) == b""
    thread.join(60)
    assert not thread.is_alive()


def test_options_in_front_of_the_script():
    find = own_options.find
    assert find(["--keep", "--cards", "2", "s.py", "--stop"]).script == "s.py"
    assert not find(["--cards", "--keep", "s.py"]).keep
    assert find(["--cards=2", "-r3", "-t", "3", "--no_python", "s.py"]).script == "s.py"
    found = find(["--preload", "a", "--preload=b", "--as-cuda", "-m", "package.module", "--keep"])
    assert (found.as_cuda, found.module, found.keep, found.stop) == (True, True, False, False)
    assert (found.preload, found.script) == (["a", "b"], "package.module")
    assert find([]).script is None


def test_options_without_a_value_are_those_of_the_parser(monkeypatch):
    from vccl.launch import vrun

    parsers = []
    original = torchrun.get_args_parser
    monkeypatch.setattr(torchrun, "get_args_parser", lambda: parsers.append(original()) or parsers[-1])
    vrun.parse(["script.py"])
    flags = {
        option.replace("_", "-")
        for action in parsers[0]._actions
        if action.nargs == 0
        for option in action.option_strings
    }
    assert flags == own_options.WITHOUT_VALUE
