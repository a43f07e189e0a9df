"""Reads TOML, also on Python 3.10, which has no tomllib: pytest brings tomli there."""

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(text: str) -> dict[str, Any]:
    return tomllib.loads(text)
