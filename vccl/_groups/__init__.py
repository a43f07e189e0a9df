"""Holds what Python adds to process groups of vccl."""
