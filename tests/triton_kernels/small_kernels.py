"""Kernels that the tests of this folder launch."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def copy_without_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets), mask=offsets < n)


@triton.jit
def store_without_mask(out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, offsets)


@triton.jit
def double_in_place(ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(ptr + offsets, tl.load(ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def times(x, y):
    return x * y


@triton.jit
def store_through_a_function(ptr, offsets, values, mask):
    moved = ptr + offsets
    tl.store(moved, values, mask=mask)


@triton.jit
def product_of_three(a_ptr, b_ptr, c_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    value = times(tl.load(a_ptr + offsets, mask=mask), tl.load(b_ptr + offsets, mask=mask))
    place = out_ptr
    store_through_a_function(place, offsets, times(value, tl.load(c_ptr + offsets, mask=mask)), mask)


@triton.jit
def row_statistics(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    tl.store(out_ptr + row * 4, tl.max(x, axis=0))
    tl.store(out_ptr + row * 4 + 1, tl.sum(tl.where(mask, x, 0.0), axis=0))
    tl.store(out_ptr + row * 4 + 2, tl.argmax(x, axis=0).to(tl.float32))
    tl.store(out_ptr + row * 4 + 3, tl.where(mask, x, 0.0).sum(axis=0))


@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(a_ptr, b_ptr, scanned_ptr, last_ptr, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    _, scanned = tl.associative_scan((a, b), 0, affine, reverse=REVERSE)
    tl.store(scanned_ptr + offsets, scanned)
    _, last = tl.reduce((a, b), 0, affine)
    tl.store(last_ptr, last)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (tl.program_id(0) * BM, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, tl.program_id(1) * BN), (BK, BN), (1, 0))
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(left, right, total, input_precision="ieee")
        a, b = tl.advance(a, (0, BK)), tl.advance(b, (BK, 0))
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    columns = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    tl.store(c_ptr + rows * N + columns, total.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


@triton.jit
def descriptor_copy(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    out = tl.make_tensor_descriptor(out_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    place = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    out.store(place, x.load(place).T.trans())


@triton.jit
def histogram(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(counts_ptr + tl.load(x_ptr + offsets, mask=mask, other=0), 1, mask=mask)


@triton.jit
def accumulate(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(total_ptr + offsets * 0, x, mask=offsets < n)


@triton.jit
def control_flow(x_ptr, out_ptr, n, limit, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    start = 0
    pid = tl.program_id(0)
    if pid >= n:
        return
    count = 0
    value = tl.load(x_ptr + pid)
    while value < limit and not (count >= 10):
        value = value * 2
        count += 1
    if ACTIVATION == "square":
        value = value * value
    elif ACTIVATION is not None:
        value = ACTIVATION(value)
    for step in tl.static_range(BLOCK):
        value += step
    tl.store(out_ptr + pid + start, value if count > 0 or value > 100 else -value)


@triton.jit
def square(x):
    return x * x


@triton.jit
def with_libdevice(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, libdevice.tanh(x) + libdevice.rsqrt(libdevice.fast_expf(x)) + tl.erf(x))


@triton.jit
def with_assembly(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    y = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + offsets, y)


@triton.jit
def cast(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets).to(out_ptr.dtype.element_ty))


@triton.jit
def random_numbers(out_ptr, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.rand(seed, offsets))


@triton.jit
def sum_through_pointers(pointers, out_ptr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(COUNT):
        total += tl.load(tl.load(pointers + i).to(tl.pointer_type(tl.float32)) + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def if_of_a_block(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    if x > 0:
        tl.store(out_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def take_lock(lock_ptr, count_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(count_ptr, tl.load(count_ptr) + 1)
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def assertion(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.device_assert(x > 0, "x must be positive")


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned(x_ptr, out_ptr, runs_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.atomic_add(runs_ptr, 1)
    if EVEN:
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + BLOCK)
    else:
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) - BLOCK, mask=mask)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_alone(x_ptr, out_ptr, runs_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.atomic_add(runs_ptr, 1)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + BLOCK)
