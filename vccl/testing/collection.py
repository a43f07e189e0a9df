"""A session of pytest that collects tests and does not run them: the template's, and so that of its forks."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from .messages import Begin
from .rank_plugin import RankPlugin

# What options of pytest and xdist have when they are not given: those that choose among tests, and those for
# the process that reports. pytest's own process has heeded them.
_WITHOUT: dict[str, Any] = {
    "basetemp": None,
    "collectonly": False,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "junitxml": None,
    "keyword": "",
    "last_failed": False,
    "lf": False,
    "loadgroup": False,
    "log_file": None,
    "looponfail": False,
    "markexpr": "",
    "maxfail": 0,
    "maxprocesses": None,
    "newfirst": False,
    "numprocesses": None,
    "stepwise": False,
    "stepwise_skip": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}


class CollectionError(Exception):
    """A file of tests cannot be collected here."""


class Collection:
    """The tests of the files that were asked for, by their node ids."""

    def __init__(self, begin: Begin) -> None:
        """Starts the session, with the options, plugins and conftest files of pytest's own."""
        from _pytest.config import _prepareconfig

        os.chdir(begin.folder)
        sys.path[:] = begin.import_path
        self.config = _prepareconfig([*begin.arguments, *begin.arguments_of_ranks], None)
        for name, value in _WITHOUT.items():
            if hasattr(self.config.option, name):
                setattr(self.config.option, name, value)
        if begin.worker_input is not None:
            self.config.workerinput = dict(begin.worker_input)  # type: ignore[attr-defined]
            self.config.workeroutput = {}  # type: ignore[attr-defined]
        self.plugin = RankPlugin(begin)
        # pytest's reporter keeps this file, and may write to it at any time.
        self._nothing = open(os.devnull, "w")  # noqa: SIM115
        with contextlib.redirect_stdout(self._nothing):
            self.config._do_configure()
            self.config.pluginmanager.register(self.plugin, "vccl-rank")
            self.session: Any = pytest.Session.from_config(self.config)
            self.config.hook.pytest_sessionstart(session=self.session)
        self._items: dict[str, dict[str, pytest.Item]] = {}

    @property
    def files(self) -> frozenset[str]:
        return frozenset(self._items)

    def collect(self, file: str) -> None:
        """Imports a file of tests, unless that was done.

        Raises:
            CollectionError: pytest's process can collect it, and this one cannot.
        """
        if file in self._items:
            return
        self.plugin.collect_errors.clear()
        self.session.testsfailed = 0
        items = self.session.perform_collect([file])
        if self.plugin.collect_errors:
            raise CollectionError("\n".join(self.plugin.collect_errors))
        self._items[file] = {item.nodeid: item for item in items}

    def item(self, file: str, node_id: str) -> pytest.Item:
        """Returns a test.

        Raises:
            CollectionError: the file has no such test in this process.
        """
        found = self._items.get(file, {}).get(node_id)
        if found is None:
            raise CollectionError(
                f"a rank has not found {node_id} in {Path(file).name}, although pytest's own process has. "
                "Names of tests and of their parameters have to be the same in every process"
            )
        return found
