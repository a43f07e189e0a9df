"""Puts the cards in the place of CUDA (``VDEV_POSE=cuda``): fills ``torch.cuda`` in torch's CPU build.

The compiled module registers the cards under torch's own device type and dispatch key of CUDA, so tensors,
autograd and autocast are CUDA's. What is left is Python: ``torch.cuda`` calls functions of ``torch._C`` that
a build without CUDA lacks. The modules of this package define them under their names there:

- ``cards``: devices and their properties, and what ``torch.cuda`` initialises.
- ``streams``: the base classes of streams and events, which take the place of torch's empty ones.
- ``graphs``: the base class of graphs, in the same way.
- ``memory``: figures and limits of the cards' memory.
- ``pools``: memory pools of the program's own, and settings of the allocator.
- ``libraries``: settings of cuBLAS and of tuning, which are kept, and NVTX, whose ranges the profiler shows.
- ``nccl_calls``: ``torch.cuda.nccl``, with which one process passes tensors between its cards.
- ``refused``: the names that only a GPU can serve. Each raises an error that names it.
- ``dlpack``: refuses tensors of cards to other libraries.
- ``profiling``: the activity of CUDA in ``torch.profiler``.
- ``tensors``: the legacy tensor types, and storages.
- ``nccl``: ``ProcessGroupNCCL``.
- ``cpp``: extensions in CUDA C++.

docs/cuda.md says what a program finds.
"""

import atexit

import torch

from vccl import _C


def register() -> None:
    """Fills ``torch.cuda``. Call this once, when the compiled module has been loaded."""
    from vccl import _torch_patches
    from vccl._cards import copies
    from vccl._inductor import registration
    from vccl.cuda import (
        cards,
        dlpack,
        graphs,
        libraries,
        memory,
        nccl_calls,
        pools,
        profiling,
        refused,
        streams,
        tensors,
    )

    for module in (cards, streams, graphs, memory, pools, libraries, nccl_calls):
        for name in module.__all__:
            setattr(torch._C, name, getattr(module, name))
    copies.install()
    refused.install()
    cards.install()
    streams.install()
    memory.install()
    graphs.install()
    pools.install()
    _C.register_graphs()
    libraries.install()
    profiling.install()
    tensors.install()
    dlpack.install()
    _torch_patches.apply_to_device()
    registration.register()
    # The threads of streams must stop while the interpreter is still whole.
    atexit.register(_C.shutdown)


def register_nccl() -> None:
    """Gives ``torch.distributed`` the names of NCCL. Call this before the backend ``vccl`` is registered."""
    from vccl.cuda import nccl

    nccl.install()
