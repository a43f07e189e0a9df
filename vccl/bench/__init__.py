"""Measures collectives; the columns and bandwidths are those of nccl-tests.

    vrun --cards 2 -m vccl.bench all_reduce --min 4 --max 64M --factor 4
    vrun --cards 2 -m vccl.bench all_reduce --backend vccl,gloo,mpi --memory    # side by side, in one run
    python -m vccl.bench plot figures.json --output figures.png                 # what --json wrote
    python -m vccl.bench table figures.json                                     # the same, as Markdown
    python -m vccl.bench check                                                  # ratios against the baseline
    python -m vccl.bench tune --write                                           # the selector's table, anew

What is timed is one call at a time, as a training script sees it: from the Python call until this rank's host
can read the result. measure.py says what happens around it. mpi is a small C program, built with mpicc.

(torchrun before Python 3.12 takes a script's --max for one of its own options; it lets -e pass.)
"""
