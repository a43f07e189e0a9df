"""Options of the tests that need several ranks."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-tables", action="store_true", help="write what test_matrix finds into its page")
