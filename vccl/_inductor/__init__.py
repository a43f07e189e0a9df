"""Lets ``torch.compile`` generate code for the cards: Inductor's C++ kernels, run on the cards' own memory.

A card's memory is host memory, so the C++ that Inductor generates for the CPU works on it as it is. What
differs from the CPU is the code around the kernels: where buffers are made, and that a kernel waits for what
is queued on the card's current stream. docs/compile.md describes it.
"""
