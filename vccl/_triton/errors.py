"""The errors of a kernel that runs on a card."""


class TritonKernelError(RuntimeError):
    """A Triton kernel has failed while it ran. The text names the kernel, the program and the line."""


class OutOfRangeError(IndexError):
    """A Triton kernel has used an address outside of the memory that it was given."""
