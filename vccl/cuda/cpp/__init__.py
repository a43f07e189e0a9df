"""CUDA C++ on the cards: what ``torch.utils.cpp_extension`` finds in the place of a CUDA toolkit.

- ``toolkit``: the folder that is ``CUDA_HOME``. Its ``bin/nvcc`` starts ``compiler.py``.
- ``compiler``: takes nvcc's arguments, and calls the C++ compiler of the host.
- ``rewriter``: makes C++ of the few things in CUDA's language that are not.
- ``extensions``: what changes in ``torch.utils.cpp_extension``.

docs/inside/cuda_extensions.md says how it works. ``compiler`` and ``rewriter`` run in a process of their own,
without torch.
"""
