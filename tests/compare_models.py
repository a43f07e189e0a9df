"""Ten small models for the tests of vccl.compare, with inputs, and operators that are wrong on cards."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from vccl._device_type import device_type


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(4, 6, num_layers=2, batch_first=True)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    """Causal attention by hand, with infinities in its mask, beside that of torch."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        by_hand = torch.softmax(q @ k.transpose(1, 2) / 8**0.5 + mask, -1) @ v
        return self.last(by_hand + F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="mean")
        self.last = nn.Linear(8, 2)

    def forward(self, tokens, offsets):
        return self.last(torch.tanh(self.bag(tokens, offsets)))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 6), nn.SiLU(), nn.Dropout(0.3), nn.Linear(6, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, 12), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.GroupNorm(3, 3)])
        self.second = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(x + self.norms[1](self.second(y)))


class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(4)
        )

    def forward(self, x):
        weights, chosen = torch.topk(torch.softmax(self.gate(x), -1), 2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


def mlp():
    layers = [
        nn.Linear(6, 16),
        nn.GELU(),
        nn.Linear(16, 16),
        nn.Dropout(0.2),
        nn.LayerNorm(16),
        nn.Linear(16, 3),
    ]
    return nn.Sequential(*layers), (torch.randn(5, 6),)


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 5, 8),)


MODELS = {
    "mlp": mlp,
    "conv net": lambda: (ConvNet(), (torch.randn(4, 2, 6, 6),)),
    "transformer": transformer,
    "lstm": lambda: (Recurrent(nn.LSTM), (torch.randn(3, 5, 4),)),
    "gru": lambda: (Recurrent(nn.GRU), (torch.randn(3, 5, 4),)),
    "attention": lambda: (Attention(), (torch.randn(2, 6, 8),)),
    "embedding bag": lambda: (Bag(), (torch.randint(0, 20, (9,)), torch.tensor([0, 4, 6]))),
    "autoencoder": lambda: (Autoencoder(), (torch.rand(4, 12),)),
    "residual block": lambda: (ResidualBlock(), (torch.randn(2, 3, 5, 5),)),
    "mixture of experts": lambda: (MixtureOfExperts(), (torch.randn(10, 6),)),
}


def make(name):
    """Returns a model and its inputs, the same at every call."""
    torch.manual_seed(3)
    return MODELS[name]()


def enlarge(output):
    tree_leaves(output)[0].mul_(1.01)


@contextlib.contextmanager
def wrong_on_cards(name, spoil=enlarge):
    """An operator whose first result is a hundredth too large on cards, or wrong in another way."""
    operator = getattr(torch.ops.aten, name.removeprefix("aten::")).default

    def kernel(*args, **kwargs):
        moved = [arg.cpu() if isinstance(arg, torch.Tensor) else arg for arg in args]
        (card,) = {arg.device for arg in args if isinstance(arg, torch.Tensor)}
        output = operator(*moved, **kwargs)
        spoil(output)
        if name.endswith("_"):
            return args[0].copy_(output)
        if isinstance(output, torch.Tensor):
            return output.to(card)
        return tuple(part.to(card) for part in output)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(operator, kernel, torch._C._dispatch_key_for_device(device_type()))
        yield
    finally:
        library._destroy()
