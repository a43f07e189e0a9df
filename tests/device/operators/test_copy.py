"""Copies between the CPU and cards, and between cards: values, layouts, order, lifetimes."""

import gc
import itertools
import time
import weakref

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def layouts(device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors of shape (4, 6) that lie in memory differently."""
    numbers = torch.arange(48).reshape(4, 12) % 7 - 2

    def at(values: torch.Tensor) -> torch.Tensor:
        return values.to(dtype).to(device)

    return {
        "contiguous": at(numbers[:, :6].contiguous()),
        "transposed": at(numbers[:, :6].t().contiguous()).t(),
        "strided": at(numbers)[:, ::2],
        "offset": at(numbers)[:, 6:],
        "expanded": at(numbers[:1, :6]).expand(4, 6),
    }


@pytest.mark.parametrize(
    ("source", "target"), [("cpu", "vdev"), ("vdev", "cpu"), ("vdev", "vdev"), ("vdev:0", "vdev:1")]
)
@pytest.mark.parametrize(
    ("from_dtype", "to_dtype"),
    [
        *((d, d) for d in DTYPES),
        (torch.float32, torch.int64),
        (torch.int64, torch.bfloat16),
        (torch.float64, torch.complex64),
    ],
)
def test_layouts(source, target, from_dtype, to_dtype):
    sources, targets = layouts(source, from_dtype), layouts(target, to_dtype)
    del targets["expanded"]
    for left, right in itertools.product(sources, targets):
        from_, to = sources[left], targets[right].clone(memory_format=torch.preserve_format)
        if right in ("strided", "offset"):
            to = targets[right]
        result = to.copy_(from_)
        assert result is to
        assert torch.equal(to.cpu(), from_.cpu().to(to_dtype)), (left, right)


def test_broadcast_empty_and_scalar():
    target = torch.zeros(3, 4, device="vdev")
    target.copy_(torch.arange(4.0))
    assert torch.equal(target.cpu(), torch.arange(4.0).expand(3, 4))
    target.copy_(torch.arange(3.0, device="vdev:1").unsqueeze(1))
    assert torch.equal(target.cpu(), torch.arange(3.0).unsqueeze(1).expand(3, 4))
    assert torch.empty(0, 3).to("vdev").cpu().shape == (0, 3)
    assert torch.tensor(3.5, device="vdev").item() == 3.5
    assert torch.tensor(2 + 1j, device="vdev").item() == 2 + 1j
    with pytest.raises(RuntimeError, match="must match the size"):
        target.copy_(torch.zeros(5))


def test_conjugate_and_negative_bits():
    values = torch.randn(3, 3, dtype=torch.complex64)
    card = values.to("vdev")
    assert card.conj().is_conj()
    assert torch.equal(card.conj().cpu(), values.conj())
    assert torch.equal(card.conj().imag.cpu(), values.conj().imag)
    assert torch.equal(values.conj().to("vdev").cpu(), values.conj())
    assert torch.equal(card.conj().to("vdev:1").cpu(), values.conj())
    assert torch.equal((card.conj() @ card.mH).cpu(), values.conj() @ values.mH)
    target = torch.zeros_like(card)
    target.conj().copy_(card)
    assert torch.equal(target.cpu(), values.conj().resolve_conj())
    assert torch.equal(card.conj().resolve_conj().cpu(), values.conj())


def test_zero_tensor():
    zero = torch._efficientzerotensor((2, 3), device="vdev")
    assert zero._is_zerotensor()
    assert torch.equal(zero.cpu(), torch.zeros(2, 3))
    assert torch.equal((zero + torch.ones(2, 3, device="vdev")).cpu(), torch.ones(2, 3))


def test_same_tensor_and_overlap():
    values = torch.arange(10.0, device="vdev")
    assert values.copy_(values) is values
    assert torch.equal(values.cpu(), torch.arange(10.0))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(1, device="vdev").expand(3).copy_(torch.ones(3, device="vdev"))


def test_to_returns_itself_or_a_copy():
    values = torch.ones(3, device="vdev")
    assert values.to("vdev:0") is values
    assert values.to("vdev:0", copy=True).data_ptr() != values.data_ptr()
    assert values.cpu().to("vdev").data_ptr() != values.data_ptr()


def test_pinned_copies_wait_in_the_stream(gate):
    stream = torch.vdev.Stream()
    source, back = torch.arange(1000.0).pin_memory(), torch.zeros(1000).pin_memory()
    card = torch.zeros(1000, device="vdev")
    torch.vdev.synchronize()
    with torch.vdev.stream(stream):
        gate.close(stream)
        card.copy_(source, non_blocking=True)
        back.copy_(card, non_blocking=True)
        assert not stream.query()
        assert back.sum() == 0
        # Pinned memory is read when the stream gets there.
        source[0] = 7
        gate.open()
        stream.synchronize()
    assert card[0].item() == 7
    assert torch.equal(back, source)


def test_pageable_copies_take_the_values_of_the_call(gate):
    source = torch.ones(1000)
    gate.open()
    card = source.to("vdev", non_blocking=True)
    source.zero_()
    assert card.sum().item() == 1000


def test_a_blocking_copy_has_been_made_when_it_returns():
    """Another stream may go on with the result without a wait, since the host has waited."""
    stream = torch.vdev.Stream()
    for size in (10, 100_000):
        card, source = torch.zeros(size, device="vdev"), torch.ones(size)
        torch.vdev.synchronize()
        with torch.vdev.stream(stream):
            torch.vdev._launch_host_func(lambda: time.sleep(0.1))
            card.copy_(source)
        assert stream.query()
        assert card.sum().item() == size


def test_tensors_live_until_the_copy_has_run(gate):
    stream = torch.vdev.Stream()
    back = torch.zeros(100).pin_memory()
    with torch.vdev.stream(stream):
        gate.close(stream)
        source = torch.full((100,), 3.0).pin_memory()
        card = torch.empty(100, device="vdev")
        card.copy_(source, non_blocking=True)
        back.copy_(card, non_blocking=True)
        gone = weakref.ref(source)
        del source, card
        gc.collect()
        assert gone() is None
        # Would take the freed blocks if nothing held them.
        others = [torch.full((100,), -1.0).pin_memory() for _ in range(4)]
        gate.open()
        stream.synchronize()
    assert torch.equal(back, torch.full((100,), 3.0))
    assert len(others) == 4


def test_pinned_copy_with_conversion():
    source = torch.arange(100).reshape(10, 10).t().pin_memory()
    card = torch.zeros(10, 10, device="vdev")
    card.copy_(source, non_blocking=True)
    torch.vdev.synchronize()
    assert torch.equal(card.cpu(), source.float())


@pytest.mark.parametrize("size", [8, 200])  # small copies are tasks, and larger ones run at their call
def test_pinned_memory_is_read_at_the_call_where_its_form_changes(size):
    """torch on CUDA makes a temporary of pageable memory, so the program may refill its own at once."""
    for change in (lambda x: x.t(), lambda x: x[:1].expand(size, size)):
        source = torch.ones(size, size).pin_memory()
        target = torch.zeros_like(change(source), device="vdev", memory_format=torch.contiguous_format)
        torch.vdev._launch_host_func(lambda: time.sleep(0.05))
        target.copy_(change(source), non_blocking=True)
        source.zero_()
        assert target.sum().item() == size * size


def test_pinned_memory_of_the_same_form_is_read_by_the_stream(gate):
    """What is contiguous on the host, or dense in the same order on both sides, is copied by the stream."""
    stream = torch.vdev.Stream()
    channels_last = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last).pin_memory()
    plain = torch.ones(4, 4).pin_memory()
    with torch.vdev.stream(stream):
        like = torch.zeros_like(channels_last, device="vdev")
        transposed = torch.zeros(4, 4, device="vdev").t()
        torch.vdev.synchronize()
        gate.close(stream)
        like.copy_(channels_last, non_blocking=True)
        transposed.copy_(plain, non_blocking=True)
        channels_last.fill_(2)
        plain.fill_(2)
        gate.open()
    stream.synchronize()
    assert like.sum().item() == 2 * like.numel()
    assert transposed.sum().item() == 2 * transposed.numel()


@pytest.mark.parametrize("size", [8, 100_000])
def test_pinned_memory_of_another_dtype_is_used_by_the_stream(gate, size):
    """torch on CUDA changes the dtype on the card if the copy does not block."""
    stream = torch.vdev.Stream()
    source, back = torch.ones(size).pin_memory(), torch.zeros(size, dtype=torch.int32).pin_memory()
    with torch.vdev.stream(stream):
        card = torch.zeros(size, dtype=torch.float64, device="vdev")
        torch.vdev.synchronize()
        gate.close(stream)
        card.copy_(source, non_blocking=True)
        back.copy_(card, non_blocking=True)
        source.fill_(2)
        assert back.sum().item() == 0
        gate.open()
    stream.synchronize()
    assert card.eq(2).all() and back.eq(2).all()


def test_an_operator_comes_after_the_stream(gate):
    """What runs on the calling thread waits for the copies that its stream holds."""
    stream = torch.vdev.Stream()
    source = torch.ones(10).pin_memory()
    with torch.vdev.stream(stream):
        card = torch.zeros(10, device="vdev")
        torch.vdev._launch_host_func(lambda: None)
        card.copy_(source, non_blocking=True)
        assert (card + 1).sum().item() == 20


def test_copy_between_cards_follows_both_streams(gate):
    first, second = torch.vdev.Stream("vdev:0"), torch.vdev.Stream("vdev:1")
    source = torch.full((10,), 2.0).pin_memory()
    with torch.vdev.stream(first), torch.vdev.stream(second):
        left = torch.zeros(10, device="vdev:0")
        right = torch.zeros(10, device="vdev:1")
        left.copy_(source, non_blocking=True)
        right.copy_(left, non_blocking=True)
        assert right.sum().item() == 20


def test_an_error_on_the_stream_is_raised_by_every_wait():
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        values = torch.ones(3, device="vdev")

        def fail() -> None:
            raise ValueError("on purpose")

        torch.vdev._launch_host_func(fail)
        for _ in range(2):
            with pytest.raises(Exception, match="on purpose"):
                (values + 1).tolist()
        torch.vdev.clear_errors()
        assert (values + 1).sum().item() == 6


def test_storage_copy_and_pin():
    values = torch.arange(5.0, device="vdev")
    storage = values.untyped_storage()
    assert bytes(storage.cpu()) == bytes(torch.arange(5.0).untyped_storage())
    assert torch.arange(5.0).pin_memory().is_pinned()
    assert not values.is_pinned()
