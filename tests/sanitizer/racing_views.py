"""Views: which elements two accesses have in common."""

import torch
from racing import READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, Programs

PROGRAMS = Programs()
racing = PROGRAMS.racing


def two_streams():
    one, other = torch.vdev.Stream(), torch.vdev.Stream()
    for stream in (one, other):
        stream.wait_stream(torch.vdev.current_stream())
    return one, other


def matrix():
    return torch.zeros(8, 8, device="vdev")


@racing(WRITE_AFTER_WRITE)
def slices_overlap_by_one(repaired):
    x = torch.zeros(10, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:5].fill_(1)  # first
    with torch.vdev.stream(other):
        x[5 if repaired else 4 :].fill_(2)  # second


@racing(WRITE_AFTER_WRITE)
def columns_interleave(repaired):
    x = matrix()
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:, ::2].fill_(1)  # first
    with torch.vdev.stream(other):
        x[:, 1 if repaired else 2 :: 2].fill_(2)  # second


@racing(WRITE_AFTER_READ)
def row_crosses_a_column(repaired):
    x = matrix()
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:, 0].sum()  # first
    with torch.vdev.stream(other):
        x[3, 1 if repaired else 0 :].fill_(2)  # second


@racing(WRITE_AFTER_READ)
def transposed_view(repaired):
    x = matrix()
    one, other = two_streams()
    with torch.vdev.stream(one):
        x.t()[0].sum()  # first
    with torch.vdev.stream(other):
        x[:, 1 if repaired else 0].fill_(2)  # second


@racing(READ_AFTER_WRITE)
def other_dtype_of_the_same_bytes(repaired):
    x = torch.zeros(8, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:4].fill_(1)  # first
    with torch.vdev.stream(other):
        x.view(torch.int16)[8 if repaired else 7 :].sum()  # second


@racing(READ_AFTER_WRITE)
def as_strided_reaches_over(repaired):
    x = torch.zeros(12, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[::3].fill_(1)  # first
    with torch.vdev.stream(other):
        x.as_strided((3, 2), (3, 1), 1 if repaired else 2).sum()  # second


@racing(WRITE_AFTER_READ)
def expanded_tensor_is_one_element(repaired):
    x = torch.zeros(2, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:1].expand(5).sum()  # first
    with torch.vdev.stream(other):
        x[1 if repaired else 0].fill_(1)  # second


@racing(WRITE_AFTER_WRITE)
def chunks_of_a_flat_buffer(repaired):
    flat = torch.zeros(12, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        flat.chunk(3)[0].add_(1)  # first
    with torch.vdev.stream(other):
        flat.chunk(3)[1 if repaired else 0].add_(1)  # second


@racing(WRITE_AFTER_READ)
def blocks_of_a_matrix(repaired):
    x = matrix()
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:4, :4].sum()  # first
    with torch.vdev.stream(other):
        x[4 if repaired else 3 :, :5].zero_()  # second


@racing(READ_AFTER_WRITE)
def real_part_of_a_complex_tensor(repaired):
    x = torch.zeros(4, dtype=torch.complex64, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        torch.view_as_real(x)[:, 0].fill_(1)  # first
    with torch.vdev.stream(other):
        torch.view_as_real(x)[:, 1 if repaired else 0].sum()  # second


@racing(WRITE_AFTER_READ)
def windows_of_unfold(repaired):
    x = torch.zeros(9, device="vdev")
    one, other = two_streams()
    with torch.vdev.stream(one):
        x[:5].unfold(0, 3, 1).sum()  # first
    with torch.vdev.stream(other):
        x[5 if repaired else 4].fill_(1)  # second


@racing(READ_AFTER_WRITE)
def diagonal_and_a_triangle(repaired):
    x = matrix()
    one, other = two_streams()
    with torch.vdev.stream(one):
        x.diagonal().fill_(1)  # first
    with torch.vdev.stream(other):
        x.diagonal(1 if repaired else 0).sum()  # second
