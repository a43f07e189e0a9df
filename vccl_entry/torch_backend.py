"""``import torch`` calls this: it adds the cards, unless they are not wanted or something is wrong with them.

vccl may be installed where few programs use it, so its own troubles are no reason for an `import torch` to
fail: they become one line on stderr. torch tells its extensions from other modules by the group
``torch.backends`` of entry points (``torch._import_device_backends``).
"""

import contextlib
import glob
import os
import sys
import warnings


def autoload() -> None:
    """Imports vccl, which adds the device and the backend to torch. An error is one line on stderr.

    Does nothing if the program imports vccl itself at this moment, or if torch has a GPU and nothing asks for
    cards (``are_asked_for``).

    Raises:
        SystemExit: VDEV_POSE asks for CUDA, and torch was built with it. The program must not run on GPUs
            that it was to be kept from, and torch would hide the text of any other exception behind its own.
    """
    if "vccl" in sys.modules:
        return
    try:
        if are_asked_for() or not torch_has_a_gpu():
            import vccl  # noqa: F401
    except Exception as error:
        if is_refusal(error):
            raise SystemExit(f"vccl: {error}") from None
        _warn(error)


def is_refusal(error: Exception) -> bool:
    """Returns whether an import of vccl has refused to pose as CUDA (``vccl._torch_version.check_pose``)."""
    checks = sys.modules.get("vccl._torch_version")  # which stays, although the package's import has failed
    return checks is not None and isinstance(error, checks.PoseRefused)


def are_asked_for() -> bool:
    """Returns whether a VDEV_* variable is set. ``vrun`` sets one for its ranks."""
    return any(name.startswith("VDEV_") and value for name, value in os.environ.items())


def torch_has_a_gpu() -> bool:
    """Returns whether this torch was built for GPUs and the process sees one.

    torch knows one accelerator, and an extension's device always goes before its own. The answer uses no GPU:
    a process that has initialised CUDA cannot use it in its forks.
    """
    import torch

    if not (torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None)):
        return False
    if not (torch.version.cuda or torch.version.hip):
        return bool(glob.glob("/dev/dri/renderD*"))
    count = torch.cuda._device_count_amdsmi if torch.version.hip else torch.cuda._device_count_nvml
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = count()
    if known >= 0:
        return known > 0
    # The library that counts is missing, as on a machine without a GPU, or refuses. torch's next question
    # would initialise CUDA. A driver makes these files, the last two on WSL and on Tegra.
    files = ("/dev/kfd",) if torch.version.hip else ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu")
    return bool(torch.cuda._parse_visible_devices()) and any(map(glob.glob, files))


def _warn(error: Exception) -> None:
    text = " ".join(str(error).partition("\n")[0].split()) or "no text"
    line = f"vccl: there are no virtual cards in this process: {type(error).__name__}: {text}\n"
    # A closed stderr is no reason to fail, either. With `python -W error`, the module warnings would raise.
    with contextlib.suppress(Exception):
        sys.stderr.write(line)
