"""Makes accelerate, and transformers' Trainer over it, use the cards, or say that they do not.

    from vccl.integrations.accelerate import use_cards
    use_cards()
    accelerator = accelerate.Accelerator()

transformers' Trainer forgets the configuration, unless it is told to keep it:
``TrainingArguments(..., accelerator_config={"use_configured_state": True})``.

accelerate knows a list of devices. If it finds none of them it takes the CPU, every rank trains alone, and
nothing says so. ``use_cards`` configures it for this rank's card. ``refuse_the_cpu`` makes an error of the
silence. float16, the Trainer's bf16 and ``accelerate launch`` ask for devices of the list, and need the pose.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch.distributed as dist

from vccl import vdev
from vccl.integrations._needs import needs

needs("accelerate", tried="1.15.0")

from accelerate import DistributedType, PartialState  # noqa: E402

_ADVICE = (
    "Call vccl.integrations.accelerate.use_cards() before accelerate or TrainingArguments is used, and give "
    "TrainingArguments accelerator_config={'use_configured_state': True}."
)


def use_cards(**options: Any) -> PartialState:
    """Configures accelerate for this rank's card, calls ``refuse_the_cpu()``, and returns accelerate's state.

    Under torchrun or vrun this joins the process group of all ranks, with the backend vccl, and accelerate
    wraps models in DDP or FSDP as for GPUs. Elsewhere it uses the current card.

    Args:
        options: keywords of ``init_process_group``, such as ``timeout``.

    Raises:
        RuntimeError: accelerate has been configured before, and not for the cards.
    """
    if not PartialState._shared_state:
        index = int(os.environ.get("LOCAL_RANK", vdev.current_device()))
        vdev.set_device(index)
        # accelerate takes this device as it is. transformers reads the variable, too.
        os.environ["ACCELERATE_TORCH_DEVICE"] = f"vdev:{index}"
        if "LOCAL_RANK" in os.environ:
            state = PartialState(backend="vccl", **options)
            # accelerate's word for one process a card, whichever backend it has.
            state.distributed_type = DistributedType.MULTI_GPU
    refuse_the_cpu()
    check()
    return PartialState()


def check() -> None:
    """Checks that accelerate is configured for the cards.

    Raises:
        RuntimeError: it is not: it uses another device, or each of several ranks would train alone.
    """
    state = PartialState()
    if state.device.type != "vdev":
        raise RuntimeError(
            f"accelerate has taken the device {state.device}, not one of the {vdev.device_count()} cards. "
            f"{_ADVICE} If the CPU is meant, say Accelerator(cpu=True) or TrainingArguments(use_cpu=True)."
        )
    ranks = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1 and state.distributed_type == DistributedType.NO:
        raise RuntimeError(
            f"accelerate would train {ranks} models, in ranks that know nothing of each other. {_ADVICE}"
        )


def refuse_the_cpu() -> None:
    """Makes accelerate raise ``check``'s errors when it configures itself, unless it is told ``cpu=True``."""
    original = PartialState.__init__
    if getattr(original, "refuses_the_cpu", False):
        return

    @functools.wraps(original)
    def configure(self: Any, cpu: bool = False, **options: Any) -> None:
        known = bool(PartialState._shared_state)
        original(self, cpu, **options)
        if not known and not cpu and options.get("backend") != "vccl":
            try:
                check()
            except RuntimeError:
                PartialState._shared_state.clear()  # or the next call would find it configured
                raise

    configure.refuses_the_cpu = True  # type: ignore[attr-defined]
    PartialState.__init__ = configure
