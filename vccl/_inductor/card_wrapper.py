"""The Python code around the kernels of a compiled graph, where it differs from the CPU's."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.virtualized import V

from vccl._device_type import device_type


class CardWrapper(PythonWrapperCodegen):
    """Writes the function that makes the buffers of a graph and calls its kernels.

    The kernels are the CPU's. They run on the thread that calls the compiled function, so they have to come
    after what is queued on the current stream. While that is captured, they are tasks of the graph instead.
    """

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the writer of a graph, or of a part of one, such as a branch of torch.cond."""
        if not is_subgraph:
            return CardWrapper()
        assert subgraph_name is not None and parent_wrapper is not None
        return _SubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)

    def write_header(self) -> None:
        super().write_header()
        # mode="reduce-overhead" asks for CUDA graphs. Inductor keeps this with the compiled code.
        V.graph.disable_cudagraphs_reason = "virtual cards have no CUDA graphs"
        self.header.splice("from vccl._C import begin_kernel, end_kernel")
        self.header.splice("from vccl._inductor.captured_kernels import capture_kernel, move_to_card")

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: torch.device | None = None,
        triton: bool = True,
        arg_types: Any = None,
        **options: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if triton or device.type != device_type():
            super()._generate_kernel_call_helper(
                kernel_name, call_args, device=device, triton=triton, arg_types=arg_types, **options
            )
            return
        pointers = [pair for pair in zip(call_args, arg_types, strict=True) if pair[1].endswith("*")]
        uses = "".join("r" if kind.startswith("const ") else "w" for _, kind in pointers)
        tensors = ", ".join(name for name, _ in pointers)
        arguments = ", ".join([kernel_name, *call_args])
        self.writeline(f"if begin_kernel({device.index}, {kernel_name!r}, {uses!r}, {tensors}):")
        self.writeline(f"    {self.wrap_kernel_call(kernel_name, call_args)}")
        self.writeline(f"    end_kernel({device.index}, '{kernel_name}')")
        self.writeline("else:")
        self.writeline(f"    capture_kernel({kernel_name!r}, {uses!r}, {arguments})")

    def codegen_device_copy(self, src: Any, dst: Any, non_blocking: bool | str) -> None:
        if str(non_blocking) == "True":
            self.writeline(f"move_to_card({dst}, {src})")
        else:
            super().codegen_device_copy(src, dst, non_blocking)

    def codegen_cuda_stream_enter(self, *arguments: Any, **options: Any) -> NoReturn:
        """Has a graph that switches streams run operator by operator."""
        raise NotImplementedError("the graph switches streams")

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        """Returns the line that makes a buffer. It names the card, which need not be the current one."""
        if device.type != device_type():
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        shape, stride = self.codegen_python_shape_tuple(shape), self.codegen_python_shape_tuple(stride)
        allocated = shape if allocation_shape is None else self.codegen_python_shape_tuple(allocation_shape)
        line = f"{name} = empty_strided({allocated}, {stride}, device='{device}', dtype={dtype})"
        return line if allocated == shape else f"{line}.as_strided({shape}, {stride})"


class _SubgraphWrapper(SubgraphPythonWrapperCodegen, CardWrapper):
    """Writes a part of a graph as a function in the code of the whole."""
