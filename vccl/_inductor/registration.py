"""Tells Dynamo and Inductor about the cards when a program first compiles something.

Importing this module imports neither, because ``import torch`` does.
"""

from vccl._device_type import device_type
from vccl._inductor import flex_attention
from vccl._torch_patches import imports


def register() -> None:
    """Has the cards registered with Dynamo and Inductor once these are imported."""
    imports.after("torch._dynamo.device_interface", _register_with_dynamo)
    imports.after("torch._dynamo", _say_what_to_trace)
    # This module imports all of Inductor that the registration needs.
    imports.after("torch._inductor.compile_fx", _register_with_inductor)
    imports.after("torch._inductor.kernel.flex.flex_attention", flex_attention.register)


def _register_with_dynamo() -> None:
    from torch._dynamo import device_interface

    from vccl._inductor.card_interface import CardInterface

    # Torch registers its own devices at the first question, and would replace what stands there for them.
    device_interface.init_device_reg()
    device_interface.register_interface_for_device(device_type(), CardInterface)


def _say_what_to_trace() -> None:
    """Has Dynamo call what it cannot look into: questions whose answers do not change, and generators."""
    import torch
    from torch._dynamo import trace_rules

    module = getattr(torch, device_type())
    for name in (
        "device_count",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "is_available",
        "is_bf16_supported",
    ):
        torch.compiler.assume_constant_result(getattr(module, name))
    trace_rules.add("vccl.vdev.random")


def _register_with_inductor() -> None:
    from torch._inductor import config, utils
    from torch._inductor.codegen import common
    from torch.utils import _triton

    from vccl._inductor import integer_division, user_kernels
    from vccl._inductor.card_operations import CardOperations
    from vccl._inductor.card_scheduling import CardScheduling
    from vccl._inductor.card_wrapper import CardWrapper
    from vccl._inductor.graph_pass import MoveScalarsToCards

    if device_type() == "cuda":
        # Triton would look for CUDA's driver. Dynamo may have asked before, and torch keeps the answer.
        config.triton_disable_device_detection = True
        _triton.has_triton.cache_clear()
        # Inductor plans softmax for CUDA with a reduction that it can write in Triton alone.
        config.online_softmax = False
    # Inductor expects Triton for these types. A card is no GPU, also where it poses as one.
    if device_type() in utils.GPU_TYPES:
        utils.GPU_TYPES.remove(device_type())
    user_kernels.register()
    integer_division.register()
    # Torch registers its own at the first question, and would replace what stands there for them.
    common.get_device_op_overrides("cpu")
    common.register_device_op_overrides(device_type(), CardOperations())
    common.register_backend_for_device(
        device_type(), CardScheduling, CardWrapper, device_custom_pass=MoveScalarsToCards()
    )
