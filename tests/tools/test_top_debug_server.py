"""The page of torch's debug server with the jobs of each machine."""

import json
import sys
import urllib.request

import pytest

_frontend = pytest.importorskip("torch.distributed.debug._frontend")

from torch._C._distributed_c10d import _WorkerServer  # noqa: E402

from vccl.top import debug_server  # noqa: E402


def test_a_rank_answers_for_its_machine():
    server = _WorkerServer("127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.port}/handler/{debug_server.WORKER_HANDLER}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
            found = json.load(answer)
    finally:
        server.shutdown()
    assert found["version"] == 1 and found["host"] and isinstance(found["jobs"], list)


def test_the_page_has_each_machine_once(monkeypatch):
    machine = {"version": 1, "host": "node1", "jobs": [], "unreadable": []}
    answers = [
        _frontend.Response(200, json.dumps(machine)),
        _frontend.Response(200, json.dumps(machine)),
        _frontend.Response(503, "no answer"),
    ]

    def fetch_all(endpoint, *, timeout):
        assert endpoint == debug_server.WORKER_HANDLER and timeout > 0
        return ["http://a", "http://b", "http://c"], answers

    monkeypatch.setattr(_frontend, "fetch_all", fetch_all)
    page = debug_server.JobsPage()
    server = _frontend.FrontendServer(0, [page])
    try:
        port = server._server.server_address[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/vccl_top", timeout=60) as answer:
            shown = answer.read().decode()
    finally:
        server._server.shutdown()
        server.join()
        server._server.server_close()
    assert shown.count("No job of this user has a group of vccl.") == 1
    assert "node1" in shown and "http://c" in shown and "http://b" not in shown and "no answer" in shown
    assert page.dump_filename() == "vccl_top" and "node1\nNo job" in page.dump()


# An object with a finalizer shows deterministically that the function is destroyed after Python has ended.
ENDS_WITH_A_HANDLER = """
from vccl.top import debug_server

class Finalized:
    def __del__(self):
        pass

debug_server._answer.owned = Finalized()
"""


def test_a_process_with_the_handler_ends_well(run):
    run([sys.executable, "-c", ENDS_WITH_A_HANDLER])
