"""vccl: virtual cards for PyTorch (device ``vdev``) and a collective backend for them (``vccl``).

Nothing has to be imported: ``import torch`` finds this package through its entry point and brings both.
``import vccl`` does the same where that is switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``). Either way no
memory is reserved and no thread started before a card is used, or CPU memory shared.
"""

__version__ = "0.1.0"

_loaded = False


def _autoload() -> None:
    """Adds the device and the backend to torch; the entry point that ``import torch`` calls. Idempotent.

    Raises:
        ImportError: the installed torch is not of the version that this package was built for.
        ValueError: VCCL_SHARE_CPU has a value that is not allowed.
    """
    global _loaded
    if _loaded:
        return
    from vccl import _torch_version

    _torch_version.check()
    from vccl import _cpu_memory, distributed, vdev

    vdev.register()
    distributed.register()
    _cpu_memory.share_if_asked()
    _loaded = True


def __getattr__(name: str) -> object:
    """``vccl.Options``: what ``init_process_group`` and ``new_group`` take as ``pg_options``.

    ``vccl.monitored_barrier``: a barrier that names the ranks that did not come.

    ``vccl.share_cpu_memory``: large CPU tensors in memory that the peers of the host can map.
    """
    # Not at import, which may come in the midst of torch's own.
    if name == "Options":
        from vccl._C import ProcessGroupVccl

        return ProcessGroupVccl.Options
    if name == "monitored_barrier":
        from vccl._monitored_barrier import monitored_barrier

        return monitored_barrier
    if name == "share_cpu_memory":
        from vccl._cpu_memory import share_cpu_memory

        return share_cpu_memory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Options", "monitored_barrier", "share_cpu_memory"]


# Defined before torch is imported: that import calls _autoload() while this module is only half run.
import torch as _torch  # noqa: E402, F401

_autoload()
