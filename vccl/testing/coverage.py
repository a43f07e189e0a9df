"""Coverage of the code that runs on ranks, where pytest's own process measures it.

A rank measures for itself and writes files of its own, which `pytest --cov` and `coverage combine` join. The
package coverage is only imported if it is there already.
"""

import sys
from collections.abc import Mapping
from typing import Any

_settings: Mapping[str, Any] | None = None
_measuring: Any = None


def of_this_process() -> dict[str, Any] | None:
    """Returns how this process measures coverage, or None if it does not."""
    package = sys.modules.get("coverage")
    active = package and package.Coverage.current()
    if not active:
        return None
    return {
        "data_file": active.config.data_file,
        "config_file": active.config.config_file or False,
        "branch": active.config.branch,
        "source": active.config.source,
        "source_pkgs": active.config.source_pkgs,
        "include": active.config.run_include,
        "omit": active.config.run_omit,
    }


def remember(settings: Mapping[str, Any] | None) -> None:
    """Keeps what ``of_this_process`` has returned in pytest's process, for forks of this one."""
    global _settings
    _settings = settings


def start() -> None:
    """Begins to measure, if pytest's process does."""
    global _measuring
    if _settings is None:
        return
    import coverage

    _measuring = coverage.Coverage(data_suffix=True, messages=False, **_settings)
    _measuring.start()


def write() -> None:
    """Writes what was measured so far. A rank that is killed has written what the tests before ran."""
    if _measuring is not None:
        _measuring.stop()
        _measuring.save()
        _measuring.start()
