"""FSDP2 communicates while the cards compute: collectives of one layer end while another layer is held.

Every layer holds the stream of the computation, forward and backward, until the next layer begins. So a
collective that is found to have ended in between has overlapped with the computation, and none of the calls
in between has waited for it.
"""

import threading
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from newer_names import all_gather_single, reduce_scatter_single
from torch import nn
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.asynchronous

LAYERS, WIDTH = 4, 8
BOUND = 300  # seconds


class Play:
    """Holds one layer at a time, and notes the ends of collectives."""

    def __init__(self) -> None:
        self.plays = False
        self.gathers: list[torch.Event] = []
        self.scatters: list[torch.Event] = []
        self.gate = threading.Event()
        self.checks: list[str] = []

    def noting(self, name: str, ends: list[torch.Event]):
        """Returns a patch of the collective `name` that appends an event behind each call to `ends`."""
        original = getattr(dist, name)

        def call(*args: object, **kwargs: object) -> object:
            result = original(*args, **kwargs)
            ends.append(torch.vdev.current_stream().record_event())
            return result

        return mock.patch.object(dist, name, call)

    def hold(self) -> None:
        """Holds what the current stream gets from now on, and lets go of what was held before."""
        gate = threading.Event()

        def wait() -> None:
            if not gate.wait(BOUND):
                raise TimeoutError("nobody opened the gate: a call has waited for the stream")

        torch.vdev._launch_host_func(wait)
        self.gate.set()
        self.gate = gate

    def begin(self, layer: int, backward: bool) -> None:
        """Call this at the beginning of each layer, when the layer before it is held."""
        if not self.plays:
            return
        if not backward:
            assert len(self.gathers) == layer + 1
            if layer > 0:
                self.gathers[layer].synchronize()
                self.checks.append(f"gathered {layer} forward")
        elif layer < LAYERS - 1:
            # Backward, the layers are gathered and scattered from the last to the first.
            turn = LAYERS - 1 - layer
            self.gathers[LAYERS + turn].synchronize()
            self.checks.append(f"gathered {layer} backward")
            assert len(self.scatters) == turn and not self.scatters[-1].query()
            if turn > 1:
                self.scatters[-2].synchronize()
                self.checks.append(f"scattered {layer + 2}")
        self.hold()


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, play, layer):
        play.begin(layer, backward=False)
        ctx.save_for_backward(x, weight)
        ctx.play, ctx.layer = play, layer
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        ctx.play.begin(ctx.layer, backward=True)
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad, None, None


class Layer(nn.Module):
    def __init__(self, play: Play, number: int) -> None:
        super().__init__()
        self.play, self.number = play, number
        generator = torch.Generator().manual_seed(number)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator))

    def forward(self, x):
        return Compute.apply(x, self.weight, self.play, self.number).relu()


@pytest.mark.ranks(2)
def test_collectives_overlap_with_the_computation(ranks):
    play = Play()
    net = nn.Sequential(*[Layer(play, number) for number in range(LAYERS)]).to("vdev")
    x = torch.randn(ranks.size, 3, WIDTH, generator=torch.Generator().manual_seed(9)).to("vdev")
    for part in x:
        (net(part).sum() / ranks.size).backward()
    expected = [layer.weight.grad.tolist() for layer in net]
    for layer in net:
        layer.weight.grad = None
        fully_shard(layer)
    fully_shard(net)
    net(x[ranks.rank]).sum().backward()  # FSDP waits for the stream when it starts
    for layer in net:
        layer.weight.grad.zero_()
    torch.vdev.synchronize()

    gathers, scatters = (
        play.noting(all_gather_single.__name__, play.gathers),
        play.noting(reduce_scatter_single.__name__, play.scatters),
    )
    with gathers, scatters:
        play.plays = True
        net(x[ranks.rank]).sum().backward()
        # The host has launched the whole step, the first layer's backward is held, and the others are over.
        play.scatters[-2].synchronize()
        assert len(play.scatters) == LAYERS and not play.scatters[-1].query()
        play.gate.set()
    inner = range(1, LAYERS)
    assert play.checks[: LAYERS - 1] == [f"gathered {layer} forward" for layer in inner]
    assert sorted(play.checks[LAYERS - 1 :]) == sorted(
        [f"gathered {layer - 1} backward" for layer in inner] + [f"scattered {layer}" for layer in inner[1:]]
    )
    for layer, gradient in zip(net, expected, strict=True):
        assert torch.allclose(layer.weight.grad.full_tensor().cpu(), torch.tensor(gradient))
