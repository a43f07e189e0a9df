"""Measures collectives. The columns and bandwidths are those of nccl-tests.

    vrun --cards 2 -m vccl.bench all_reduce --min 4 --max 64M --factor 4
    vrun --cards 2 -m vccl.bench all_reduce --backend vccl,gloo,mpi --memory    # side by side, in one run
    python -m vccl.bench plot figures.json --output figures.png                 # what --json wrote
    python -m vccl.bench table figures.json                                     # the same, as Markdown
    python -m vccl.bench check                                                  # ratios against the baseline
    python -m vccl.bench steps                                                  # training steps: card and CPU
    python -m vccl.bench graphs                                                 # replays and eager calls
    python -m vccl.bench tune --write                                           # the selector's table, anew

Each call is timed alone, as a training script sees it: from the Python call until the host of this rank can
read the result. measure.py describes what happens around a call. mpi is a small C program, built with mpicc.
"""
