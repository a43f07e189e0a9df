"""Which backends of a process group are vccl's."""

from typing import TYPE_CHECKING, Any

from vccl._device_type import backend_name

if TYPE_CHECKING:
    from vccl._C import ProcessGroupVccl


def names_vccl(backends: object) -> bool:
    """Returns whether the argument ``backend`` of a call, such as "cpu:gloo,vdev:vccl", names vccl."""
    names = str(backends).lower().replace(",", ":").split(":")
    return "vccl" in names or backend_name() in names


def vccl_backends(group: Any) -> "list[ProcessGroupVccl]":
    """Returns the backends of a group that are vccl's, each once.

    Takes them out of the wrappers that torch puts around backends with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    Returns [] for an object that is no group, such as GroupMember.NON_GROUP_MEMBER.
    """
    found: list[ProcessGroupVccl] = []
    for backend in devices_of_vccl(group).values():
        while hasattr(backend, "wrapped_pg"):
            backend = backend.wrapped_pg
        if backend not in found:  # one backend may serve several devices
            found.append(backend)
    return found


def devices_of_vccl(group: Any) -> dict[str, Any]:
    """Returns the device types that vccl serves in a group, each with its backend, which may be a wrapper.

    Returns {} for an object that is no group. A group that is a subclass of ProcessGroup in Python, such as
    torchft's, may have no backends at all, and gets {} too.
    """
    from torch.distributed import distributed_c10d as c10d

    if not isinstance(group, c10d.ProcessGroup):
        return {}
    backends = {device.type: group._get_backend(device) for device in group._device_types}
    return {device: backend for device, backend in backends.items() if backend.name() == backend_name()}
