"""What holds for every operator: devices, aliases, out=, memory, random numbers, threads."""

import threading

import pytest
import torch

SAME_DEVICE = "Expected all tensors to be on the same device"


def test_devices_do_not_mix():
    card, other, cpu = torch.ones(3, 3, device="vdev:0"), torch.ones(3, 3, device="vdev:1"), torch.ones(3, 3)
    for left, right in ((card, cpu), (cpu, card), (card, other), (other, card)):
        for function in (torch.add, torch.matmul, torch.eq, lambda a, b: torch.cat([a, b])):
            with pytest.raises(RuntimeError, match=SAME_DEVICE):
                function(left, right)
        with pytest.raises(RuntimeError, match=SAME_DEVICE):
            torch.nn.functional.linear(left, right)
        with pytest.raises(RuntimeError, match=SAME_DEVICE):
            left.index_select(0, torch.tensor([0], device=right.device))
        with pytest.raises(RuntimeError):
            torch.add(left, left, out=right)


def test_cpu_scalars_mix():
    card, scalar = torch.ones(3, device="vdev"), torch.tensor(2.0)
    for value in (
        card + scalar,
        scalar + card,
        card.clone().add_(scalar),
        torch.where(card > 0, scalar + 1, card).to("vdev"),
    ):
        assert value.device == card.device
        assert torch.equal(value.cpu(), torch.full((3,), 3.0))
    # A wrapped number does not widen, a tensor of dimension 0 of a wider kind does.
    assert (card.int() + 1.5).dtype == torch.float32
    assert (card.half() + scalar).dtype == torch.float16
    with pytest.raises(RuntimeError):
        scalar.clone().add_(card)


def test_index_tensors_may_lie_on_the_cpu():
    values = torch.arange(12.0).reshape(3, 4)
    card = values.to("vdev")
    rows, mask = torch.tensor([2, 0]), values[:, 0] > 0
    for index in (rows, mask, (rows, torch.tensor([1, 3])), (slice(None), rows), (None, rows)):
        assert torch.equal(card[index].cpu(), values[index])
        written, expected = card.clone(), values.clone()
        written[index], expected[index] = 5.0, 5.0
        assert torch.equal(written.cpu(), expected)
    on_card = card[rows.to("vdev")]
    assert torch.equal(on_card.cpu(), values[rows])
    accumulated = card.index_put((rows,), torch.ones(2, 4, device="vdev"), accumulate=True)
    assert torch.equal(accumulated.cpu(), values.index_put((rows,), torch.ones(2, 4), accumulate=True))


def test_out():
    left, right = torch.randn(3, 4), torch.randn(4, 5)
    card_left, card_right = left.to("vdev"), right.to("vdev")
    out = torch.empty(3, 5, device="vdev")
    memory = out.data_ptr()
    assert torch.mm(card_left, card_right, out=out) is out
    assert out.data_ptr() == memory
    assert torch.equal(out.cpu(), left @ right)
    empty = torch.empty(0, device="vdev")
    assert torch.mm(card_left, card_right, out=empty) is empty
    assert empty.shape == (3, 5)
    assert torch.equal(empty.cpu(), left @ right)
    values, indices = torch.empty(0, device="vdev"), torch.empty(0, dtype=torch.int64, device="vdev")
    torch.sort(card_left, dim=1, out=(values, indices))
    assert torch.equal(values.cpu(), left.sort(dim=1).values)
    assert torch.equal(indices.cpu(), left.sort(dim=1).indices)
    found = torch.empty(0, dtype=torch.int64, device="vdev")
    torch.nonzero(card_left > 0, out=found)
    assert torch.equal(found.cpu(), (left > 0).nonzero())


def test_out_lists():
    values = torch.arange(5.0, device="vdev")
    parts = [torch.zeros(2, device="vdev"), torch.zeros(3, device="vdev")]
    torch.split_with_sizes_copy(values, [2, 3], out=parts)
    assert [x.tolist() for x in parts] == [[0, 1], [2, 3, 4]]


def test_foreach():
    lists = [torch.rand(n) for n in range(1, 30)]
    cards = [x.to("vdev") for x in lists]
    for name in ("sqrt", "neg", "norm"):
        for left, right in zip(
            getattr(torch, f"_foreach_{name}")(lists), getattr(torch, f"_foreach_{name}")(cards), strict=True
        ):
            assert right.device.type == "vdev"
            assert torch.equal(left, right.cpu())
    memory = [x.data_ptr() for x in cards]
    torch._foreach_add_(cards, cards, alpha=2)
    torch._foreach_mul_(cards, torch.tensor(0.5))
    torch._foreach_lerp_(cards, [torch.zeros_like(x) for x in cards], 0.25)
    assert [x.data_ptr() for x in cards] == memory
    for left, right in zip(lists, cards, strict=True):
        assert torch.equal(right.cpu(), ((left + 2 * left) * 0.5).lerp(torch.zeros_like(left), 0.25))
    # Between devices, tensor by tensor.
    torch._foreach_copy_(cards, lists)
    assert all(torch.equal(left, right.cpu()) for left, right in zip(lists, cards, strict=True))


def test_first_operator_of_a_process(run_python):
    """Nothing before it has prepared anything: an output that grows, a result of its own, random numbers."""
    for first in (
        "torch.arange(5.0, device='vdev').sum().item() == 10",
        "torch.randperm(9, device='vdev').sum().item() == 36",
        "torch.eye(3, device='vdev:1').nonzero().shape == (3, 2)",
    ):
        run_python(f"import torch, vccl\nassert {first}")


def test_in_place_and_views():
    values = torch.zeros(4, 4, device="vdev")
    alias = values
    values[1:3, ::2] += 1
    values.t()[0].fill_(5)
    assert alias is values
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] += 1
    expected.t()[0].fill_(5)
    assert torch.equal(values.cpu(), expected)
    for view in (
        values.view(16),
        values.permute(1, 0),
        values[1:],
        values.unfold(0, 2, 1),
        values.diagonal(),
        values.detach(),
        values.squeeze(),
        values.expand(2, 4, 4),
        values.split(2)[1],
        values.unbind()[0],
        values.real,
    ):
        assert view.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        assert view.device == values.device
    before = values._version
    values.mul_(2)
    assert values._version == before + 1


def test_overlap_is_still_seen():
    values = torch.arange(6.0, device="vdev")
    with pytest.raises(RuntimeError, match="memory"):
        torch.add(values[:5], 1, out=values[1:])


def test_results_lie_in_the_cards_memory():
    torch.vdev.synchronize()
    inputs = torch.rand(1000, device="vdev:2")
    before = torch.vdev.memory_allocated(2)
    results = [
        inputs + 1,
        inputs.nonzero(),
        torch.nn.functional.layer_norm(inputs, (1000,)),
        inputs.sort(),
        inputs.unique(),
    ]
    assert torch.vdev.memory_allocated(2) >= before + 4000 + 8000 + 4000 + 12000
    assert torch.vdev.memory_allocated(1) == 0 or torch.vdev.memory_allocated(1) < before + 4000
    del results
    assert torch.vdev.memory_allocated(2) == before


def test_plain_cpu_memory_is_untouched():
    torch.vdev.synchronize()
    torch.ones(10, device="vdev").sort()
    before = torch.vdev.memory_allocated()
    values = torch.rand(100_000)
    values.sort()
    values.resize_(200_000)
    assert torch.vdev.memory_allocated() == before
    assert values.data_ptr() % 64 == 0


def test_resize_and_storage():
    values = torch.arange(4.0, device="vdev")
    values.resize_(8)
    assert torch.equal(values[:4].cpu(), torch.arange(4.0))
    values.untyped_storage().resize_(0)
    assert values.untyped_storage().nbytes() == 0
    values.untyped_storage().resize_(32)
    values.zero_()
    assert values.sum().item() == 0


def test_data_dependent_results():
    values = torch.tensor([[0, 3], [3, 1]], device="vdev")
    assert values.nonzero().tolist() == [[0, 1], [1, 0], [1, 1]]
    assert values[values > 0].tolist() == [3, 3, 1]
    assert values.unique(return_counts=True)[1].tolist() == [1, 1, 2]
    assert torch.equal(values, values.clone())
    assert not torch.equal(values, values + 1)
    assert bool((values == 3).any())
    assert values.max().item() == 3
    assert torch.bincount(values.flatten()).tolist() == [1, 1, 0, 2]


def test_errors():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="vdev") @ torch.ones(2, 3, device="vdev")
    with pytest.raises(IndexError, match="out of range"):
        torch.nn.functional.embedding(torch.tensor([9], device="vdev"), torch.ones(3, 2, device="vdev"))
    with pytest.raises(NotImplementedError, match="layout"):
        torch.ones(3, 3, device="vdev").to_mkldnn()
    with pytest.raises(NotImplementedError, match="vdev"):
        torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.uint8, device="vdev")
    assert (torch.ones(2, device="vdev") + 1).sum().item() == 4


DRAWS = {
    "uniform": lambda: torch.rand(100, device="vdev"),
    "normal": lambda: torch.randn(100, device="vdev"),
    "in place": lambda: torch.empty(100, device="vdev").normal_(2, 3),
    "integers": lambda: torch.randint(1000, (100,), device="vdev"),
    "permutation": lambda: torch.randperm(100, device="vdev"),
    "bernoulli": lambda: torch.full((100,), 0.5, device="vdev").bernoulli(),
    "multinomial": lambda: torch.ones(100, device="vdev").multinomial(50),
    "exponential": lambda: torch.empty(100, device="vdev").exponential_(),
    "poisson": lambda: torch.poisson(torch.full((100,), 4.0, device="vdev")),
    "like": lambda: torch.rand_like(torch.empty(100, device="vdev")),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(100, device="vdev")),
    "feature dropout": lambda: torch.nn.functional.dropout1d(torch.ones(100, 100, 1, device="vdev")),
    "rrelu": lambda: torch.nn.functional.rrelu(-torch.ones(100, device="vdev"), training=True),
    "gamma": lambda: torch._standard_gamma(torch.ones(100, device="vdev")),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_random(draw):
    """The card's own generator: repeats under its seed, moves on with each call, leaves the CPU's alone."""
    draw = DRAWS[draw]
    torch.manual_seed(1)
    cpu_state = torch.get_rng_state()
    torch.vdev.manual_seed(4)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.vdev.manual_seed(4)
    torch.rand(3)
    assert torch.equal(draw(), first)
    state = torch.vdev.get_rng_state()
    assert torch.equal(draw(), second)
    torch.vdev.set_rng_state(state)
    assert torch.equal(draw(), second)
    torch.set_rng_state(cpu_state)
    draw()
    assert torch.equal(torch.get_rng_state(), cpu_state)


def test_random_with_a_generator():
    generator = torch.Generator("vdev").manual_seed(9)
    first = torch.randn(50, device="vdev", generator=generator)
    assert not torch.equal(first, torch.randn(50, device="vdev", generator=generator))
    assert torch.equal(first, torch.randn(50, device="vdev", generator=generator.manual_seed(9)))
    with pytest.raises(RuntimeError, match="device"):
        torch.randn(5, device="vdev", generator=torch.Generator())


def test_distributions():
    torch.vdev.manual_seed(0)
    assert abs(torch.rand(100_000, device="vdev").mean().item() - 0.5) < 0.01
    normal = torch.randn(100_000, device="vdev")
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02
    assert sorted(torch.randperm(1000, device="vdev").tolist()) == list(range(1000))


def test_threads():
    """Operators from several threads, on one card and on several, at the same time."""
    failures = []

    def work(number: int) -> None:
        try:
            torch.vdev.set_device(number % 3)
            values = torch.full((257,), float(number), device="vdev")
            for _ in range(100):
                values = (values * 2).sort().values / 2
                other = torch.empty(number + 1, device="vdev").fill_(number)
                assert other.sum().item() == number * (number + 1)
            assert values.device.index == number % 3
            assert (values == number).all().item()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures


def test_operator_runs_on_its_tensors_card():
    torch.vdev.set_device(1)
    values = torch.rand(10, device="vdev:3")
    assert values.sort().values.device == torch.device("vdev:3")
    assert values.nonzero().device == torch.device("vdev:3")
    assert torch.vdev.current_device() == 1


def test_operators_of_others():
    """An operator from torch.library that only has a CPU kernel runs on a card too."""
    with torch.library._scoped_library("vdev_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.define("grow(Tensor(a!) x) -> Tensor(a!)")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("grow", lambda x: x.add_(1), "CPU")
        values = torch.ones(3, device="vdev")
        assert torch.equal(torch.ops.vdev_test.twice(values).cpu(), torch.full((3,), 2.0))
        assert torch.ops.vdev_test.twice(values).device.type == "vdev"
        assert torch.ops.vdev_test.grow(values) is values
        assert values.sum().item() == 6


def test_integers_are_divided_by_zero_without_an_error():
    """As on GPUs, so that a program can divide first and then choose."""
    dividend, divisor = torch.tensor([[6], [7]]), torch.tensor([4, 0, -3])
    chosen = (divisor != 0).expand(2, 3)
    safe = divisor.masked_fill(divisor == 0, 1)
    a, b = dividend.to("vdev"), divisor.to("vdev")
    for function in (
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: 7 % b.expand(a.shape[0], -1),
        lambda a, b: a.expand(-1, 3).clone().floor_divide_(b),
        lambda a, b: a.expand(-1, 3).clone().remainder_(b),
        lambda a, b: torch.floor_divide(a, b, out=torch.empty(2, 3, dtype=torch.int64, device=a.device)),
    ):
        found = function(a, b).cpu()
        assert torch.equal(found[chosen], function(dividend, safe)[chosen])
        assert found[~chosen].tolist() == [-1, -1]
    for found in (a // 0, a % 0, a.div(0, rounding_mode="trunc"), a // torch.tensor(0)):
        assert found.dtype == torch.int64
        assert found.tolist() == [[-1], [-1]]
    assert (a.int() // 0).dtype == torch.int32
    assert (a.to(torch.uint8) % b.to(torch.uint8))[:, 1].tolist() == [255, 255]
    assert a.div(b)[:, 1].tolist() == [torch.inf, torch.inf]
    assert (a // b.double())[:, 1].tolist() == [torch.inf, torch.inf]


def test_inference_mode_and_no_grad():
    values = torch.randn(4, 4)
    with torch.inference_mode():
        card = values.to("vdev")
        out = torch.nn.functional.gelu(card @ card)
        assert out.is_inference()
        assert torch.equal(out.cpu(), torch.nn.functional.gelu(values @ values))
    with torch.no_grad():
        assert not (values.to("vdev").requires_grad_() * 2).requires_grad


def test_func_transforms():
    values = torch.randn(5, 3)
    weight = torch.randn(3)

    def loss(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (row @ weight).sin().sum()

    expected = torch.vmap(torch.func.grad(loss), (None, 0))(weight, values)
    actual = torch.vmap(torch.func.grad(loss), (None, 0))(weight.to("vdev"), values.to("vdev"))
    torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(
        torch.func.jacfwd(loss)(weight.to("vdev"), values.to("vdev")).cpu(),
        torch.func.jacfwd(loss)(weight, values),
    )
