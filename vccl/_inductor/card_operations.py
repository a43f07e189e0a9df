"""The lines of Python that Inductor's generated code contains for a device."""

from torch._inductor.codegen.common import DeviceOpOverrides

from vccl._device_type import device_type


class CardOperations(DeviceOpOverrides):
    """Lines for a card, in the places where those of a GPU stand."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from vccl._inductor.card_interface import _raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.{device_type()}.set_device({device_idx})"

    def synchronize(self) -> str:
        return f"torch.{device_type()}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.{device_type()}.device({device_idx})"

    def current_stream(self) -> str:
        return f"torch.{device_type()}.current_stream()"

    def stream_handle(self, stream_name: str) -> str:
        return f"{stream_name}.stream_id"
