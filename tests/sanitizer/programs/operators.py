"""Operators whose accesses are less plain than those of arithmetic."""

import copy
import io

import torch
from pairs import LARGE, current, pinned, racing, side_stream, zeros


@torch.library.custom_op("racing::add_one", mutates_args=("x",))
def add_one(x: torch.Tensor) -> None:
    x.add_(1)  # first of a_custom_operator_writes_its_argument


@racing("read after write", r"wait_stream")
def running_statistics_are_written_by_a_forward_pass(repaired: bool) -> None:
    """The schema of the operator of batch normalisation does not say that it writes them."""
    norm, x = torch.nn.BatchNorm1d(8, device="vdev"), zeros(4, 8)
    side = side_stream()
    with torch.vdev.stream(side):
        norm(x)  # first
    if repaired:
        current().wait_stream(side)
    norm.running_mean.sum()  # second


@racing("read after write", r"wait_stream")
def an_operator_sizes_its_result(repaired: bool) -> None:
    """torch gives abs() a result without elements, which the kernel's out= form enlarges."""
    x, side = zeros(), side_stream()
    with torch.vdev.stream(side):
        y = x.abs()  # first
    if repaired:
        current().wait_stream(side)
    y.sum()  # second


@racing("read after write", r"wait_stream")
def numbers_are_made(repaired: bool) -> None:
    side = side_stream()
    with torch.vdev.stream(side):
        numbers = torch.arange(64, device="vdev")  # first
    if repaired:
        current().wait_stream(side)
    numbers.sum()  # second


@racing("read after write", r"wait_stream")
def a_result_is_written_to_an_empty_tensor(repaired: bool) -> None:
    x, out, side = zeros(), zeros(0), side_stream()
    with torch.vdev.stream(side):
        torch.mul(x, 2, out=out)  # first
    if repaired:
        current().wait_stream(side)
    out.sum()  # second


@racing("read after write", r"wait_stream")
def a_tensor_grows(repaired: bool) -> None:
    """The elements are copied to other memory."""
    x, side = zeros(4), side_stream()
    with torch.vdev.stream(side):
        x.resize_(5000)  # first
    if repaired:
        current().wait_stream(side)
    x[:4].sum()  # second


@racing("read after write", r"wait_stream")
def a_tensor_grows_after_it_was_written(repaired: bool) -> None:
    x, side = zeros(4), side_stream()
    x.add_(1)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.resize_(5000)  # second


@racing("read after write", r"wait_stream")
def a_function_under_vmap_reads(repaired: bool) -> None:
    """The function's argument is a wrapper without memory, which the search for the tensor's name meets."""
    x, side = zeros(8, 8), side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    torch.func.vmap(lambda row: row.sum())(x)  # second


@racing("read after write", r"wait_stream")
def values_of_a_sparse_tensor_are_written(repaired: bool) -> None:
    indices, values = zeros(1, 3, dtype=torch.int64), zeros(3)
    sparse = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=False)
    side = side_stream()
    with torch.vdev.stream(side):
        values.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    sparse.to_dense()  # second


@racing("read after write", r"wait_stream")
def values_of_a_nested_tensor_are_written(repaired: bool) -> None:
    parts = [torch.zeros(4), torch.zeros(3)]
    nested = torch.nested.nested_tensor(parts, device="vdev", layout=torch.jagged)
    values = nested.values()
    side = side_stream()
    with torch.vdev.stream(side):
        values.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    nested.mul(2)  # second


@racing("read after write", r"wait_stream")
def a_lazy_conjugate_is_resolved(repaired: bool) -> None:
    x = zeros(32, dtype=torch.complex64)
    conjugate = x.conj()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    conjugate.resolve_conj()  # second


@racing("read after write", r"wait_stream")
def elements_are_put_by_an_index(repaired: bool) -> None:
    x, index, values = zeros(), zeros(4, dtype=torch.int64), zeros(4)
    side = side_stream()
    with torch.vdev.stream(side):
        x[index] = values  # first
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_second_result_of_sort_is_read(repaired: bool) -> None:
    x, values, indices = zeros(), zeros(), zeros(dtype=torch.int64)
    side = side_stream()
    with torch.vdev.stream(side):
        torch.sort(x, out=(values, indices))  # first
    if repaired:
        current().wait_stream(side)
    indices.sum()  # second


@racing("read after write", r"wait_stream")
def weights_of_a_recurrent_network_are_written(repaired: bool) -> None:
    network, x = torch.nn.LSTM(4, 4, device="vdev"), zeros(2, 1, 4)
    side = side_stream()
    with torch.vdev.stream(side), torch.no_grad():
        network.weight_hh_l0.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    network(x)  # second


@racing("read after write", r"wait_stream")
def values_of_attention_are_written(repaired: bool) -> None:
    query, key, value = (zeros(1, 2, 8, 8) for _ in range(3))
    side = side_stream()
    with torch.vdev.stream(side):
        value.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    torch.nn.functional.scaled_dot_product_attention(query, key, value)  # second


@racing("read after write", r"wait_stream")
def a_custom_operator_writes_its_argument(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        add_one(x)
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"the host must wait for .*synchronize\(\)")
def a_list_is_copied_to_the_host(repaired: bool) -> None:
    tensors, hosts = [zeros(), zeros()], [pinned(), pinned()]
    torch._foreach_copy_(hosts, tensors, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    hosts[1].sum()  # second
    current().synchronize()


@racing("read after write", r"the host must wait for .*synchronize\(\)")
def a_copy_to_the_host_changes_the_dtype(repaired: bool) -> None:
    x, host = zeros(), torch.zeros(256, dtype=torch.float16).pin_memory()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.sum()  # second
    current().synchronize()


@racing("read after write", r"wait_stream")
def a_tensor_is_saved_before_it_is_written(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        side.synchronize()
    torch.save(x, io.BytesIO())  # second


@racing("read after write", r"wait_stream")
def a_module_is_copied_while_it_is_trained(repaired: bool) -> None:
    module = torch.nn.Linear(4, 4, bias=False, device="vdev")
    side = side_stream()
    with torch.vdev.stream(side), torch.no_grad():
        module.weight.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    copy.deepcopy(module)  # second


@racing("use after free", r"record_stream")
def half_of_freed_memory_is_given_out_again(repaired: bool) -> None:
    """The block is split. Only its second half is still read."""
    x = torch.zeros(2 * LARGE, device="vdev")
    side = side_stream()
    with torch.vdev.stream(side):
        x[LARGE:].sum()  # first
    if repaired:
        x.record_stream(side)
    del x
    halves = [torch.zeros(LARGE, device="vdev")]
    halves.append(torch.ones(LARGE, device="vdev"))  # second


@racing("write after read", r"the host must wait for .*synchronize\(\)")
def an_alias_of_pinned_memory_is_filled(repaired: bool) -> None:
    """The alias has gone by way of numpy, so it has a storage of its own over the same memory."""
    host = pinned()
    alias = torch.from_numpy(host.numpy())
    host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    alias.fill_(1)  # second
    current().synchronize()


@racing("write after read", r"the host must wait for .*synchronize\(\)")
def an_alias_of_a_part_of_pinned_memory_is_filled(repaired: bool) -> None:
    """The alias begins in the middle of the pinned memory."""
    host = pinned()
    alias = torch.from_numpy(host.numpy()[64:])
    host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    alias.fill_(1)  # second
    current().synchronize()


@racing("read after write", r"wait_stream")
def a_state_of_an_optimizer_is_read(repaired: bool) -> None:
    weight = torch.nn.Parameter(zeros(8))
    weight.grad = zeros(8)
    optimizer = torch.optim.Adam([weight], foreach=True)
    optimizer.step()
    side = side_stream()
    with torch.vdev.stream(side):
        optimizer.step()  # first
    if repaired:
        current().wait_stream(side)
    optimizer.state[weight]["exp_avg"].sum()  # second


@racing("read after write", r"wait_stream")
def compiled_code_reads_what_a_side_stream_writes(repaired: bool) -> None:
    twice = torch.compile(double, backend="aot_eager")
    x = zeros()
    twice(x)
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    twice(x)


# Compiled code has the line at which its function begins.
def double(x: torch.Tensor) -> torch.Tensor:  # second of compiled_code_reads_what_a_side_stream_writes
    return x * 2
