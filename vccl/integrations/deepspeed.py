"""Makes DeepSpeed use the cards.

    import vccl.integrations.deepspeed  # before deepspeed
    import deepspeed
    engine, *_ = deepspeed.initialize(model=model, config=config)

Optimizers have to be torch's own (``"torch_adam": true``), or run on the CPU (``offload_optimizer``):
DeepSpeed's fused ones are CUDA kernels.
"""

import sys

from vccl._torch_patches import imports
from vccl.integrations._needs import needs

needs("deepspeed", tried="0.19.8")
if "deepspeed" in sys.modules:
    raise ImportError(
        "Import vccl.integrations.deepspeed before deepspeed, whose modules keep the accelerator that they "
        "find while they are imported."
    )


def _set_accelerator() -> None:
    from deepspeed.accelerator.real_accelerator import set_accelerator

    from vccl.integrations._deepspeed_accelerator import VdevAccelerator

    set_accelerator(VdevAccelerator())


# DeepSpeed's modules ask this one for the accelerator, so none of them can have asked before it is imported.
imports.after("deepspeed.accelerator.real_accelerator", _set_accelerator)

import deepspeed  # noqa: E402, F401
