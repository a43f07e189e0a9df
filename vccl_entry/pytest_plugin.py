"""The pytest plugin: options, the mark and the fixtures. docs/testing.md describes them.

It imports nothing of vccl until a test asks for ranks. In the process of a rank, vccl.testing.rank_plugin
adds what differs there.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .ranks_repr import RanksRepr

MARK = """\
ranks(*sizes, hosts=1, group=True, device=None, backend=None, timeout=None, group_timeout=1800, env=None): \
run the test on every rank of a world of that size, once for each size"""
MARK_OF_FAULTS = """\
faults(plan, seed=None): let the faults of a plan (vccl.faults.plan) strike while the test is called, on \
every rank"""
_session: pytest.StashKey[Any] = pytest.StashKey()
# The seconds that pytest-timeout gives a test on ranks.
_timeout: pytest.StashKey[float] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks", "tests on many ranks (vccl)")
    group.addoption(
        "--ranks-device",
        choices=["vdev", "cuda", "cpu"],
        default="vdev",
        help="device type of the ranks' cards; cuda are real ones, or virtual ones that pose as such",
    )
    group.addoption(
        "--ranks-backend",
        default=None,
        metavar="NAME",
        help="backend of the default group (default: vccl for vdev, nccl for cuda, gloo for cpu)",
    )
    group.addoption("--ranks-fresh", action="store_true", help="start new ranks for every test")
    group.addoption(
        "--ranks-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a test on ranks may take (default: 300)",
    )
    group.addoption(
        "--ranks-sanitize",
        action="store_true",
        help="look for races in every test, on ranks or not, and fail the test that has one",
    )
    group.addoption(
        "--ranks-schedules",
        type=_schedules,
        default=None,
        metavar="COUNT",
        help="run every test, on ranks or not, under so many schedules, until it fails; with COUNT,exact the "
        "ranks of a test take turns",
    )
    group.addoption(
        "--rank-pdb",
        type=int,
        default=None,
        metavar="N",
        help="start the debugger where a test fails on rank N",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Lets cards pose as CUDA, if tests ask for CUDA and torch has none. torch is not imported yet."""
    if early_config.known_args_namespace.ranks_device == "cuda" and not _torch_is_built_for_gpus():
        os.environ.setdefault("VDEV_POSE", "cuda")


def _torch_is_built_for_gpus() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).with_name("version.py").read_text()
    return re.search(r"^(cuda|hip)\b.*=\s*'", text, re.MULTILINE) is not None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.addinivalue_line("markers", MARK_OF_FAULTS)
    config.addinivalue_line("markers", "world_size(n): how many ranks a method of vccl's DistributedTest has")
    if config.getoption("rank_pdb") is not None and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--rank-pdb needs the terminal, which the workers of xdist (-n) do not have")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is not None and len(mark.args) > 1:
        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", mark.args, indirect=True, ids=[f"{size}_ranks" for size in mark.args])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if _is_rank(item.config):
        return None
    texts = _texts_of_schedules(item.config)
    if _asks_for_ranks(item):
        ranks_session(item.config).protocol(item, nextitem, item.stash.get(_timeout, None), texts)
        return True
    if sessions := sys.modules.get("vccl.testing.session"):  # a test may call functions on ranks
        sessions.set_running(ranks_session(item.config), item)
    if not texts:
        return None
    from vccl.testing import schedules

    schedules.protocol(item, nextitem, texts)
    return True


def _texts_of_schedules(config: pytest.Config) -> list[str]:
    """Returns the schedules under which each test runs: those of the option, or that of VDEV_SCHEDULE."""
    wanted = config.getoption("ranks_schedules")
    if wanted is None:
        own = os.environ.get("VDEV_SCHEDULE", "")
        return [own] if own else []
    from vccl.testing import schedules

    return schedules.texts_of(*wanted)


def _schedules(text: str) -> tuple[int, bool]:
    """Reads the option's value: how many schedules, and whether they are exact."""
    count, comma, exact = text.partition(",")
    if not count.isdecimal() or int(count) < 1 or (comma and exact != "exact"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1, or one with ',exact' behind it")
    return int(count), bool(comma)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _faults_of(item):
        return (yield from _call_with_sanitizer(item))


def _faults_of(item: pytest.Item) -> contextlib.AbstractContextManager[None]:
    """Returns the plan of faults that the test's mark names, switched on in a ``with`` block."""
    mark = item.get_closest_marker("faults")
    if mark is None:
        return contextlib.nullcontext()
    from vccl import faults

    return faults.plan(*mark.args, **mark.kwargs)


def _call_with_sanitizer(item: pytest.Item) -> Iterator[None]:
    if not item.config.getoption("ranks_sanitize"):
        return (yield)
    from vccl import sanitizer
    from vccl.sanitizer import reports

    with sanitizer.enabled() as found:
        result: Any = yield
    if found.count:
        pytest.fail("\n".join(reports.text_of(report) for report in found.reports), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> Iterator[None]:
    report: Any = yield
    told = getattr(call.excinfo and call.excinfo.value, "told", None)
    if report.failed and told is not None and hasattr(told, "parts"):  # it is a RankFailed
        report.longrepr = RanksRepr(told.parts, told.place, told.message)
        report.sections += told.sections
    return report


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Takes the place of pytest-timeout's own timer, which would end the wait for the ranks, and not them."""
    if _is_rank(item.config):
        return True
    if not _asks_for_ranks(item):
        return None
    item.stash[_timeout] = settings.timeout
    return True


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    return True if _is_rank(item.config) or _asks_for_ranks(item) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    end_ranks(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    try:
        return (yield)
    finally:
        # Before others report: the files of coverage are written when ranks end.
        end_ranks(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_report_to_serializable(report: Any) -> dict[str, Any] | None:
    if not isinstance(report.longrepr, RanksRepr):  # which xdist would send without its parts
        return None
    data = report._to_json()
    data.update({"$report_type": "TestReport", "$ranks": report.longrepr.to_data()})
    return data


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> pytest.TestReport | None:
    if "$ranks" not in data:
        return None
    longrepr = RanksRepr.from_data(data.pop("$ranks"))
    report = pytest.TestReport._from_json(data)
    report.longrepr = longrepr
    return report


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Any:
    """The world of ranks in which the test runs: rank, size, device, store. See vccl.testing.World."""
    from vccl.testing import world

    return world.current()


@pytest.fixture
def rank_pool(request: pytest.FixtureRequest) -> Any:
    """Calls functions on ranks, from a test that runs in pytest's process. See vccl.testing.RankPool."""
    if _is_rank(request.config):
        pytest.fail("rank_pool is for tests of pytest's own process; this one runs on ranks", pytrace=False)
    from vccl.testing.session import RankPool, set_running

    session = ranks_session(request.config)
    set_running(session, request.node)
    return RankPool(session)


def ranks_session(config: pytest.Config) -> Any:
    """Returns what runs tests on ranks, in pytest's process. Nothing is started yet."""
    if _session not in config.stash:
        from vccl.testing.session import RanksSession

        config.stash[_session] = RanksSession(config, RanksRepr)
    return config.stash[_session]


def end_ranks(config: pytest.Config) -> None:
    """Ends all ranks, if any were started."""
    if _session in config.stash:
        config.stash[_session].close()
        sys.modules["vccl.testing.session"].set_running(None, None)


def _asks_for_ranks(item: pytest.Item) -> bool:
    if item.get_closest_marker("ranks") is not None:
        return True
    # A project may have a fixture of that name, which then is another one.
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("ranks", ())
    return bool(definitions) and definitions[-1].func.__module__ == __name__


def _is_rank(config: pytest.Config) -> bool:
    return config.pluginmanager.hasplugin("vccl-rank")
