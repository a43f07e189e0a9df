"""Attention on DTensors: a transformer that is tensor parallel, alone and with FSDP2, equals one process."""

import sys

import pytest
import torch
from common import everywhere
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

BATCH, LENGTH, WORDS, WIDTH, HEADS, STEPS = 2, 8, 16, 32, 8, 3


class Attention(nn.Module):
    def __init__(self, key_heads: int, causal: bool, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.causal, self.mask = causal, mask
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH // HEADS * key_heads, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH // HEADS * key_heads, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            projected(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for projected in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(
            query, key, value, self.mask, is_causal=self.causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.out(attended.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = attention
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(torch.tanh(self.up(x)))


KINDS = ["full", "causal", "masked", "grouped"]


def make_net(kind: str) -> nn.Sequential:
    """A language model: embedding, two blocks, and the projection onto the words."""
    torch.manual_seed(5)
    key_heads = HEADS // 2 if kind == "grouped" else HEADS
    mask = torch.randn(LENGTH, LENGTH, dtype=torch.float64) if kind == "masked" else None
    blocks = [Block(Attention(key_heads, kind in ("causal", "grouped"), mask)) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)).double()


def make_parallel(net: nn.Sequential, mesh: DeviceMesh, sequence: bool) -> None:
    """As PyTorch's tensor parallel examples do; ``sequence``: between the layers each rank has a part of the
    sequence."""
    between = Shard(1) if sequence else Replicate()
    heads = {
        name: ColwiseParallel(use_local_output=False)
        for name in ("attention.query", "attention.key", "attention.value")
    }
    plan = {
        **heads,
        "attention": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        "attention.out": RowwiseParallel(output_layouts=between),
        "up": ColwiseParallel(input_layouts=between),
        "down": RowwiseParallel(output_layouts=between),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    for block in net[1:3]:
        parallelize_module(block, mesh, plan)
        if block.attention.mask is not None:
            mask = block.attention.mask.to(mesh.device_type)
            block.attention.mask = distribute_tensor(mask, mesh, [Replicate()])
    ends = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "3": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    parallelize_module(net, mesh, ends)


def batch(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + shard)
    text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def train(net: nn.Module, device: str, shards: list[int]) -> nn.Module:
    # Some parameters are DTensors and some are not, and torch's fused loops do not take both kinds.
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)
    for step in range(STEPS):
        optimizer.zero_grad()
        words, following = (
            torch.cat(part).to(device) for part in zip(*(batch(step, s) for s in shards), strict=True)
        )
        cross_entropy(net(words).flatten(0, 1), following.flatten()).backward()
        optimizer.step()
    return net


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def assert_equal_training(net: nn.Module, reference: nn.Module) -> None:
    parameters = dict(net.named_parameters())
    expected = dict(reference.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        for actual, wanted in ((parameter, expected[name]), (parameter.grad, expected[name].grad)):
            torch.testing.assert_close(
                whole(actual), whole(wanted), rtol=1e-8, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.ranks(2, 4)
@everywhere
@pytest.mark.parametrize("sequence", [False, True], ids=["plain", "sequence"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_parallel_transformer(ranks, kind, sequence, device):
    net = make_net(kind).to(device)
    make_parallel(net, init_device_mesh(device, (ranks.size,)), sequence)
    assert isinstance(net[1].attention.query.weight, DTensor)
    # All ranks of a tensor parallel group work on the same batch.
    assert_equal_training(train(net, device, [0]), train(make_net(kind), "cpu", [0]))


@pytest.mark.ranks(4)
@everywhere
@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_and_tensor_parallel_transformer(ranks, kind, device):
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("data", "model"))
    net = make_net(kind).to(device)
    make_parallel(net, mesh["model"], sequence=True)
    for layer in (*net[1:3], net):
        fully_shard(layer, mesh=mesh["data"])
    assert_equal_training(train(net, device, [ranks.rank // 2]), train(make_net(kind), "cpu", [0, 1]))


def attend_both_ways(mesh, placements, shapes, mask=None, mask_placements=None, **options):
    """Attends to DTensors and to plain tensors, compares outputs and gradients, and returns the placements
    of the output."""
    generator = torch.Generator().manual_seed(7)
    plain = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    sharded = [distribute_tensor(x.to(mesh.device_type), mesh, placements).requires_grad_() for x in plain]
    plain = [x.requires_grad_() for x in plain]
    expected = scaled_dot_product_attention(*plain, mask, **options)
    if mask is not None:
        mask = distribute_tensor(mask.to(mesh.device_type), mesh, mask_placements or placements)
    output = scaled_dot_product_attention(*sharded, mask, **options)
    expected.square().sum().backward()
    output.square().sum().backward()
    pairs = [(output, expected), *((x.grad, y.grad) for x, y in zip(sharded, plain, strict=True))]
    for actual, wanted in pairs:
        torch.testing.assert_close(whole(actual), wanted.detach(), rtol=1e-10, atol=1e-12)
    return output.placements


def shapes(batches: int, heads: int, key_heads: int) -> list[tuple[int, ...]]:
    return [(batches, heads, 6, 4), (batches, key_heads, 6, 4), (batches, key_heads, 6, 4)]


@pytest.mark.ranks(2, 4)
@everywhere
def test_attention_without_mask(ranks, device):
    """Batches and heads stay where they are; what is sharded otherwise is gathered first."""
    size = ranks.size
    mesh = init_device_mesh(device, (size,))
    for causal in (False, True):
        for placement in (Replicate(), Shard(0), Shard(1)):
            for key_heads in (size, 2 * size):
                found = attend_both_ways(
                    mesh, [placement], shapes(size, 2 * size, key_heads), is_causal=causal, enable_gqa=True
                )
                assert found == (placement,)
        attend_both_ways(mesh, [Shard(2)], shapes(2, 2, 2), is_causal=causal)


@pytest.mark.ranks(2)
@everywhere
def test_attention_of_uneven_heads(ranks, device):
    """Sharded in parts of 2 heads and 1 head, the second rank's queries would meet other keys."""
    mesh = init_device_mesh(device, (ranks.size,))
    found = attend_both_ways(mesh, [Shard(1)], shapes(2, 6, 3), enable_gqa=True)
    assert found == (Replicate(),)


@pytest.mark.ranks(2)
@everywhere
def test_attention_with_masks(ranks, device):
    size = ranks.size
    mesh = init_device_mesh(device, (size,))
    generator = torch.Generator().manual_seed(8)
    for boolean in (False, True):
        for shape in ((6, 6), (1, 1, 6, 6), (size, 1, 6, 6), (1, size, 6, 6), (size, size, 6, 6)):
            mask = torch.randn(shape, generator=generator, dtype=torch.float64)
            if boolean:
                mask = mask > -1
                mask |= torch.eye(6, dtype=torch.bool)  # every query has a key
            for placement in (Shard(0), Shard(1)):
                has_dimension = len(shape) == 4 and shape[placement.dim] > 1
                where = [placement if has_dimension else Replicate()]
                found = attend_both_ways(mesh, [placement], shapes(size, size, size), mask, where)
                assert found == (placement,)
                # A mask that is whole where it could be sharded costs communication, and is right.
                attend_both_ways(mesh, [placement], shapes(size, size, size), mask, [Replicate()])


@pytest.mark.ranks(2)
@everywhere
def test_attention_with_a_mask_that_does_not_fit(ranks, device):
    mesh = init_device_mesh(device, (ranks.size,))
    with pytest.raises(NotImplementedError, match=r"shape \(6, 12\).*Shard\(dim=0\).*Redistribute"):
        query, key = torch.ones(2, 2, 6, 4), torch.ones(2, 2, 12, 4)
        q, k, mask = (
            distribute_tensor(x.to(device), mesh, [Shard(0)]) for x in (query, key, torch.ones(6, 12))
        )
        scaled_dot_product_attention(q, k, k, mask)


@pytest.mark.ranks(4)
@everywhere
def test_attention_on_a_mesh_of_two_dimensions(device):
    torch.manual_seed(0)  # the mask is the same on all ranks
    mesh = init_device_mesh(device, (2, 2))
    for placements in ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(1)] * 2):
        for mask in (None, torch.randn(1, 4, 6, 6, dtype=torch.float64)):
            where = [p if p == Shard(1) else Replicate() for p in placements]
            found = attend_both_ways(mesh, placements, shapes(2, 4, 4), mask, where)
            assert found == tuple(placements)


IMPORTS = {
    "vccl_first": "import vccl, torch.distributed.tensor",
    "tensor_first": "import torch.distributed.tensor, vccl",
    # Looking for the module, as frameworks do, is no import of it.
    "looked_for_first": (
        "import vccl, importlib.util\n"
        "importlib.util.find_spec('torch.distributed.tensor')\n"
        "import torch.distributed.tensor"
    ),
}


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_order_of_imports(run, imports):
    code = (
        f"{imports}\nimport sys, torch\n"
        "known = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs\n"
        "assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default in known\n"
        "assert 'torch.distributed.tensor' not in [getattr(finder, 'name', '') for finder in sys.meta_path]\n"
    )
    assert run([sys.executable, "-c", code], env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) == ""
