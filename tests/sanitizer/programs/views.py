"""Views: which elements two streams have in common. In most programs, the repaired form reads other
elements."""

import torch
from pairs import current, racing, side_stream, zeros


@racing("read after write", r"wait_stream")
def columns_with_a_stride_that_meet(repaired: bool) -> None:
    """Even columns and odd columns interleave without a common element. Even columns and every third do
    not."""
    x = zeros(8, 12)
    with torch.vdev.stream(side_stream()):
        x[:, 0::2].add_(1)  # first
    columns = x[:, 1::2] if repaired else x[:, 0::3]
    columns.sum()  # second


@racing("write after write", r"wait_stream")
def slices_that_overlap_by_one_element(repaired: bool) -> None:
    x = zeros()
    with torch.vdev.stream(side_stream()):
        x[:100].fill_(1)  # first
    x[100 if repaired else 99 :].fill_(2)  # second


@racing("read after write", r"wait_stream")
def a_row_and_a_column_cross(repaired: bool) -> None:
    x = zeros(8, 8)
    with torch.vdev.stream(side_stream()):
        x[2].fill_(1)  # first
    column = x[3:, 3] if repaired else x[:, 3]
    column.sum()  # second


@racing("read after write", r"wait_stream")
def the_transposed_view_is_the_same_memory(repaired: bool) -> None:
    x = zeros(8, 16)
    transposed = x.t()
    side = side_stream()
    with torch.vdev.stream(side):
        transposed.mul_(2)  # first
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("write after read", r"wait_stream")
def the_diagonal_meets_the_upper_triangle(repaired: bool) -> None:
    x = zeros(8, 8)
    with torch.vdev.stream(side_stream()):
        x.diagonal().sum()  # first
    above = x.diagonal(1) if repaired else x[0]
    above.fill_(1)  # second


@racing("read after write", r"wait_stream")
def bytes_of_a_float_are_written(repaired: bool) -> None:
    """The fourth to the seventh byte are the second float."""
    x = zeros()
    with torch.vdev.stream(side_stream()):
        x.view(torch.uint8)[4:8].fill_(1)  # first
    (x[2:4] if repaired else x[:2]).sum()  # second


@racing("write after read", r"wait_stream")
def halves_and_integers_lie_over_each_other(repaired: bool) -> None:
    x = zeros(64, dtype=torch.float16)
    integers = x.view(torch.int32)
    with torch.vdev.stream(side_stream()):
        x[::4].sum()  # first
    (integers[1::2] if repaired else integers[0::2]).fill_(1)  # second


@racing("read after write", r"wait_stream")
def the_real_part_is_read_while_it_is_written(repaired: bool) -> None:
    x = zeros(32, dtype=torch.complex64)
    parts = torch.view_as_real(x)
    with torch.vdev.stream(side_stream()):
        parts[..., 0].fill_(1)  # first
    parts[..., 1 if repaired else 0].sum()  # second


@racing("write after read", r"wait_stream")
def windows_of_as_strided_overlap(repaired: bool) -> None:
    x = zeros()
    windows = x.as_strided((8, 16), (8, 1))
    with torch.vdev.stream(side_stream()):
        windows[0].sum()  # first
    windows[2 if repaired else 1].fill_(1)  # second


@racing("write after read", r"wait_stream")
def the_source_of_an_expanded_tensor_is_written(repaired: bool) -> None:
    x = zeros(16)
    wide = x[:1].expand(64)
    with torch.vdev.stream(side_stream()):
        wide.sum()  # first
    (x[1:] if repaired else x).fill_(1)  # second


@racing("read after write", r"wait_stream")
def the_windows_of_unfold_reach_into_the_next(repaired: bool) -> None:
    x = zeros(64)
    with torch.vdev.stream(side_stream()):
        x[32:].fill_(1)  # first
    windows = x[: 32 if repaired else 33].unfold(0, 2, 1)
    windows.sum()  # second


@racing("write after write", r"wait_stream")
def a_chunk_is_taken_twice(repaired: bool) -> None:
    chunks = zeros(64).chunk(4)
    with torch.vdev.stream(side_stream()):
        chunks[1].fill_(1)  # first
    chunks[2 if repaired else 1].fill_(2)  # second


@racing("read after write", r"wait_stream")
def parameters_are_views_of_a_flat_buffer(repaired: bool) -> None:
    """As in FSDP and DDP: a step over the flat buffer writes every parameter that is a view of it."""
    flat = zeros(64)
    weight = flat[:48].view(6, 8)
    side = side_stream()
    with torch.vdev.stream(side):
        flat.mul_(0.9)  # first
    if repaired:
        current().wait_stream(side)
    weight.sum()  # second


@racing("write after read", r"wait_stream")
def a_block_of_a_cube_meets_another(repaired: bool) -> None:
    """Three dimensions, of which two overlap. In the repaired form, one does not."""
    x = zeros(6, 6, 6)
    with torch.vdev.stream(side_stream()):
        x[:4, :4, :4].sum()  # first
    block = x[3:, 3:, 4:] if repaired else x[3:, 3:, 3:]
    block.fill_(1)  # second


@racing("read after write", r"wait_stream")
def a_tensor_is_made_over_the_storage_of_another(repaired: bool) -> None:
    x = zeros(64)
    other = torch.empty(0, device="vdev").set_(x.untyped_storage(), 16, (16,))
    with torch.vdev.stream(side_stream()):
        x[8:24].fill_(1)  # first
    (other[8:] if repaired else other).sum()  # second


@racing("write after write", r"wait_stream")
def strides_meet_late(repaired: bool) -> None:
    """Steps of 6 and of 10 meet at 30, if they begin at the same parity."""
    x = zeros(64)
    with torch.vdev.stream(side_stream()):
        x[0::6].fill_(1)  # first
    x[5::10].fill_(2) if repaired else x[20::10].fill_(2)  # second


@racing("write after read", r"wait_stream")
def a_shift_in_place_reads_its_neighbour(repaired: bool) -> None:
    """Two streams work on halves of an array, and one of them reads one element beyond its half."""
    x, y = zeros(64), zeros(32)
    with torch.vdev.stream(side_stream()):
        torch.add(x[:32], 1, out=y) if repaired else torch.add(x[1:33], 1, out=y)  # first
    x[32:].mul_(2)  # second


@racing("read after write", r"wait_stream")
def detached_tensors_share_their_memory(repaired: bool) -> None:
    weight = torch.nn.Parameter(zeros(16))
    average = weight.detach().clone() if repaired else weight.detach()
    with torch.vdev.stream(side_stream()):
        average.mul_(0.5)  # first
    weight.data.sum()  # second
