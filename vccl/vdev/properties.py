"""The properties of a card, with the names that ``torch.cuda.get_device_properties`` has."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from vccl import _C

# The figures of cards without a profile. They are an A100's.
_DEFAULTS = {
    "major": 8,
    "minor": 0,
    "clock_rate": 1410000,
    "memory_clock_rate": 1593000,
    "memory_bus_width": 5120,
    "L2_cache_size": 40 << 20,
    "max_threads_per_multi_processor": 2048,
    "shared_memory_per_multiprocessor": 164 << 10,
}
# The version of the features of torch.vdev's cards.
CAPABILITY = (1, 0)


@dataclasses.dataclass(frozen=True)
class CardProperties:
    """Describes one card. Sizes are in bytes, clocks in kHz."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    pci_bus_id: int
    uuid: uuid.UUID
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    pci_device_id: int = 0
    pci_domain_id: int = 0
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    warp_size: int = 32
    gcnArchName: str = ""

    @property
    def shared_memory_per_block_optin(self) -> int:
        """Returns the most shared memory that a block may ask for."""
        return max(self.shared_memory_per_multiprocessor - 1024, self.shared_memory_per_block)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


@dataclasses.dataclass(frozen=True, repr=False)
class DeviceProperties(CardProperties):
    """The result of ``torch.vdev.get_device_properties``. Major and minor are ``get_device_capability()``.

    The other figures that say nothing about a card of vdev, such as L2_cache_size, are those of VDEV_PROFILE,
    and without a profile those of an A100. They are there for programs that print or compare them.
    """

    physical_index: int = 0  # the card's number without VDEV_VISIBLE_DEVICES


def figures_of(index: int) -> dict[str, Any]:
    """Returns the fields of CardProperties that have no default. Raises RuntimeError for a missing card."""
    card = _C.device_properties(index)
    return {
        **_DEFAULTS,
        **card.profile,
        "name": card.name,
        "total_memory": card.total_memory,
        "multi_processor_count": card.multi_processor_count,
        "pci_bus_id": card.physical_index + 1,
        "uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"vccl card {card.physical_index}"),
    }


def properties(index: int) -> DeviceProperties:
    """Returns the properties of a card. Raises RuntimeError if there is no such card."""
    major, minor = CAPABILITY
    figures = {**figures_of(index), "major": major, "minor": minor}
    return DeviceProperties(**figures, physical_index=_C.device_properties(index).physical_index)
