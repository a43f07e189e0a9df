"""Holds the patches that the backend needs."""
