"""Holds the patches that the device needs."""
