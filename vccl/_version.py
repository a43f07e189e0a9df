"""Holds the version of vccl, which pyproject.toml repeats."""

VERSION = "0.1.0"
