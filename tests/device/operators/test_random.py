"""Random numbers: the same for the same seed, everywhere, and states that can be saved and returned to."""

import struct

import pytest
import torch


def draw(device="vdev", n=1000, **options):
    return torch.rand(n, device=device, **options).cpu()


def test_same_seed_same_numbers_on_every_card():
    seen = []
    for index in range(3):
        torch.manual_seed(7)
        seen.append(draw(f"vdev:{index}"))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
    torch.manual_seed(8)
    assert not torch.equal(draw(), seen[0])


def test_numbers_go_on():
    torch.vdev.manual_seed(7)
    one, two = draw(), draw()
    assert not torch.equal(one, two)
    assert 0.4 < one.mean() < 0.6 and one.min() >= 0 and one.max() < 1
    assert len(torch.cat([one, two]).unique()) > 1900


def test_neighbouring_seeds_and_offsets_are_unrelated():
    samples = []
    for seed in range(4):
        torch.vdev.manual_seed(seed)
        samples += [draw(n=2000) for _ in range(4)]
    correlation = torch.corrcoef(torch.stack(samples)) - torch.eye(16)
    assert correlation.abs().max() < 0.12


def test_state_is_seed_and_offset():
    torch.vdev.manual_seed(5)
    state = torch.vdev.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    assert struct.unpack("<QQ", bytes(state.tolist())) == (5, 0)
    torch.rand(10, device="vdev")
    seed, offset = struct.unpack("<QQ", bytes(torch.vdev.get_rng_state().tolist()))
    assert seed == 5 and offset >= 10 and offset % 4 == 0
    assert torch.vdev.initial_seed() == 5


def test_states_can_be_returned_to():
    torch.rand(3, device="vdev")
    state = torch.vdev.get_rng_state()
    one = draw()
    torch.vdev.set_rng_state(state)
    assert torch.equal(draw(), one)
    states = torch.vdev.get_rng_state_all()
    assert len(states) == 8
    two = draw("vdev:3")
    torch.vdev.set_rng_state_all(states)
    assert torch.equal(draw("vdev:3"), two)
    with pytest.raises(RuntimeError, match="16"):
        torch.vdev.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="multiple of 4"):
        torch.vdev.set_rng_state(torch.tensor(list(struct.pack("<QQ", 1, 3)), dtype=torch.uint8))


def test_fork_rng():
    torch.manual_seed(1)
    expected = draw("vdev:1")
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0, 1], device_type="vdev"):
        torch.manual_seed(2)
        draw("vdev:1")
    assert torch.equal(draw("vdev:1"), expected)


def test_own_generators():
    generator = torch.Generator("vdev:1")
    assert generator.device == torch.device("vdev:1")
    generator.manual_seed(3)
    default = torch.vdev.get_rng_state(1)
    one = draw("vdev:1", generator=generator)
    assert torch.equal(torch.vdev.get_rng_state(1), default)
    generator.manual_seed(3)
    assert torch.equal(draw("vdev:1", generator=generator), one)
    copy = generator.clone_state()
    assert torch.equal(draw("vdev:1", generator=copy), draw("vdev:1", generator=generator))
    with pytest.raises(RuntimeError, match="device type"):
        torch.rand(3, device="vdev", generator=torch.Generator())
    assert generator.seed() == generator.initial_seed()
    with torch.vdev.device(2):
        assert torch.Generator("vdev").device == torch.device("vdev:2")


def test_generators_share_a_state():
    generator, other = torch.Generator("vdev"), torch.Generator("vdev")
    generator.manual_seed(3)
    first, second = draw(generator=generator), draw(generator=generator)
    generator.manual_seed(3)
    shared = generator.graphsafe_get_state()
    other.graphsafe_set_state(shared)
    assert torch.equal(draw(generator=other), first)
    assert torch.equal(draw(generator=generator), second)
    assert shared.get_offset() == other.get_offset() == generator.get_offset() > 0
    # What has been handed out stays as it is when the generator goes over to another state.
    generator.graphsafe_set_state(torch.Generator("vdev").manual_seed(4))
    assert (generator.initial_seed(), shared.initial_seed(), other.initial_seed()) == (4, 3, 3)
    with pytest.raises(RuntimeError, match="to take the state of"):
        generator.graphsafe_set_state(torch.Generator())


def test_a_default_generator_switches_between_states():
    default = torch.vdev.default_generators[0]
    own = default.graphsafe_get_state()
    torch.vdev.manual_seed(5)
    expected = draw()
    try:
        default.graphsafe_set_state(torch.Generator("vdev").manual_seed(6))
        draw()
    finally:
        default.graphsafe_set_state(own)
    torch.vdev.manual_seed(5)
    assert torch.equal(draw(), expected)


def test_offsets():
    generator = torch.Generator("vdev")
    generator.manual_seed(3)
    generator.set_offset(8)
    assert generator.get_offset() == 8
    one = draw(generator=generator)
    generator.set_offset(8)
    assert torch.equal(draw(generator=generator), one)


def test_seed_differs_from_run_to_run():
    torch.vdev.seed()
    one = torch.vdev.initial_seed()
    torch.vdev.seed()
    assert torch.vdev.initial_seed() != one
    torch.vdev.seed_all()
    assert len({bytes(state.tolist()) for state in torch.vdev.get_rng_state_all()}) == 1


@pytest.mark.parametrize(
    "sample",
    [
        lambda: torch.randn(100, device="vdev"),
        lambda: torch.randint(0, 50, (100,), device="vdev"),
        lambda: torch.randperm(100, device="vdev"),
        lambda: torch.empty(100, device="vdev").normal_(),
        lambda: torch.empty(100, device="vdev").uniform_(2, 3),
        lambda: torch.full((100,), 0.5, device="vdev").bernoulli(),
        lambda: torch.multinomial(torch.ones(100, device="vdev"), 50),
        lambda: torch.nn.functional.dropout(torch.ones(100, device="vdev")),
        lambda: torch.rand_like(torch.empty(100, device="vdev")),
        lambda: torch.empty(100, device="vdev").exponential_(),
        lambda: torch.normal(torch.zeros(100, device="vdev"), 1.0),
    ],
)
def test_every_operator_draws_from_the_card(sample):
    torch.manual_seed(11)
    cpu = torch.get_rng_state()
    one = sample().cpu()
    two = sample().cpu()
    assert torch.equal(torch.get_rng_state(), cpu), "it drew from the CPU's generator"
    torch.manual_seed(11)
    assert torch.equal(sample().cpu(), one) and not torch.equal(one, two)


def test_checkpointing_draws_the_same_numbers_again():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(200, device="vdev", requires_grad=True)
    torch.manual_seed(4)
    out = checkpoint(lambda t: torch.nn.functional.dropout(t * 2), x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), out.detach().cpu())
