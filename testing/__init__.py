"""Tests on many ranks, for pytest."""
