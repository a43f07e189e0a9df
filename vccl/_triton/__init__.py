"""Runs Triton kernels on cards, through Triton's own interpreter and in the order of the streams.

Nothing here is imported before the program has imported Triton (docs/compile.md).
"""
