"""Turns a training script that names CUDA and NCCL into a script for whatever accelerator torch finds.

    python -m vccl.convert train.py              # shows the changes as a diff, and what is left to do by hand
    python -m vccl.convert --write src/          # makes them, in every *.py below src/
    python -m vccl.convert --check src/          # ends with 1 if there is something to change

The diff goes to the standard output and the report to the standard error, so `> train.patch` gives a patch.
docs/cuda.md has the table of changes.

What is changed means the same as before on CUDA. A name counts for what it was imported as, not for how it is
spelled. What could mean two things is left as it is, and reported with its line and with what to do.

The tool parses with LibCST, and does not use the standard `ast`. LibCST resolves names by scope, knows where
every node stands, also inside f-strings (`ast` does not before Python 3.12), and reads scripts for later
versions of Python than the one it runs on. The tree is only read: every change replaces a span of the
original text, so that all the rest stays as it was, byte for byte. LibCST is an optional dependency, and only
this package imports it.
"""
