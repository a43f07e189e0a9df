"""Has compiled code call the program's own Triton kernels as eager code does.

Inductor puts the source of such a kernel into the code that it generates, and compiles it for a GPU. A card
runs the kernel itself (``vccl/_triton``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from vccl._device_type import device_type


def register() -> None:
    """Has Inductor lower calls of Triton kernels with tensors of cards to calls in Python."""
    from torch._inductor.lowering import lowerings

    operator = triton_kernel_wrap.triton_kernel_wrapper_mutation
    lowerings[operator] = _for_cards(lowerings[operator])
    # Generated code names the kernel by its place in a table of this process, so no other process can use it.
    for called in (operator, triton_kernel_wrap.triton_kernel_wrapper_functional):
        called._cacheable = False


def _for_cards(elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    def lower(*, constant_args_idx: int, tma_descriptor_metadata: Any, kwargs: Any, **options: Any) -> Any:
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, ir.TensorBox)}
        if all(tensor.get_device_or_error().type != device_type() for tensor in tensors.values()):
            return elsewhere(
                constant_args_idx=constant_args_idx,
                tma_descriptor_metadata=tma_descriptor_metadata,
                kwargs=kwargs,
                **options,
            )
        constants = triton_kernel_wrap.kernel_side_table.get_constant_args(constant_args_idx)
        call = _CallOfKernel(
            tma_descriptor_metadata=tma_descriptor_metadata, kernel_args={**kwargs, **constants}, **options
        )
        call.constant_args_idx = constant_args_idx
        call.names = tuple(kwargs)
        return tensors

    return lower


class _CallOfKernel(ir.UserDefinedTritonKernel):
    constant_args_idx: int
    names: tuple[str, ...]

    def can_fuse_epilogue(self) -> bool:
        """Returns False, because nothing is added to the kernel's source."""
        return False

    def codegen(self, wrapper: PythonWrapperCodegen) -> None:
        """Writes the line that calls the kernel."""
        kwargs = ", ".join(f"{name!r}: {_reference(wrapper, self.kwargs[name])}" for name in self.names)
        grids = ", ".join(wrapper.codegen_python_shape_tuple(tuple(grid)) for grid in self.grid)
        wrapper.add_import_once("from vccl._inductor.user_kernels import call_kernel")
        wrapper.writeline(
            f"call_kernel({self.kernel_idx}, {self.constant_args_idx}, [{grids}], {{{kwargs}}})"
        )


def _reference(wrapper: PythonWrapperCodegen, value: Any) -> str:
    if isinstance(value, ir.IRNode):
        return value.codegen_reference()
    return str(wrapper.val_to_arg_str(value))


def call_kernel(kernel: int, constants: int, grids: list[Any], kwargs: dict[str, Any]) -> None:
    """Launches a kernel for compiled code.

    Args:
        kernel: its place in torch's table of kernels.
        constants: the place of its other arguments in torch's table of them.
        grids: a grid for each configuration of a kernel that chooses among several, or one grid.
        kwargs: the arguments that the graph computes.
    """
    triton_kernel_wrap.triton_kernel_wrapper_mutation_dense(
        kernel_idx=kernel,
        constant_args_idx=constants,
        grid=grids,
        tma_descriptor_metadata={},
        kwargs=kwargs,
    )
