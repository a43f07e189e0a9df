"""The figures of a card's memory are sums of tensors: CUDA's rounding, and no scratch of kernels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FLOAT, LONG = 4, 8


def rounded(size):
    return -(-size // 512) * 512


def memory_of(result):
    return sum(rounded(leaf.untyped_storage().nbytes()) for leaf in tree_leaves(result))


class Peak:
    """Measures how much memory was allocated at once in a block, beyond what was before."""

    def __enter__(self):
        torch.vdev.synchronize()
        self.before = torch.vdev.memory_allocated()
        torch.vdev.reset_peak_memory_stats()
        return self

    def __exit__(self, *exc):
        torch.vdev.synchronize()
        self.bytes = torch.vdev.max_memory_allocated() - self.before


def card(*shape):
    return torch.rand(*shape, device="vdev")


def indices(limit, *shape):
    return torch.randint(limit, shape, device="vdev")


# By name: a function that makes the arguments, the operator, and the sizes of what it allocates beside its
# result, which CUDA's operator allocates, too.
OPERATORS = {
    "sort": (lambda: [card(1 << 20)], torch.sort, []),
    "argsort": (lambda: [card(1 << 18)], torch.argsort, [FLOAT << 18]),  # the sorted values
    "topk": (lambda: [card(1 << 18)], lambda x: x.topk(1000), []),
    "cumsum": (lambda: [card(300, 300)], lambda x: x.cumsum(1), []),
    "matmul": (lambda: [card(257, 301), card(301, 130)], torch.matmul, []),
    "bmm": (lambda: [card(5, 33, 65), card(5, 65, 40)], torch.bmm, []),
    "einsum": (lambda: [card(50, 60), card(60, 70)], lambda a, b: torch.einsum("ij,jk->ik", a, b), []),
    "linear": (lambda: [card(100, 60), card(70, 60), card(70)], F.linear, []),
    "conv2d": (lambda: [card(4, 8, 33, 33), card(16, 8, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1), []),
    "softmax": (lambda: [card(300, 301)], lambda x: x.softmax(1), []),
    # Means and reciprocal deviations: one of each for a row, and for a channel.
    "layer_norm": (lambda: [card(300, 301)], lambda x: F.layer_norm(x, (301,)), [FLOAT * 300] * 2),
    "batch_norm": (
        lambda: [card(8, 200, 9, 9), card(200), card(200)],
        lambda x, mean, variance: F.batch_norm(x, mean, variance, training=True),
        [FLOAT * 200] * 2,
    ),
    "index_select": (lambda: [card(500, 100), indices(500, 300)], lambda x, i: x.index_select(0, i), []),
    "gather": (lambda: [card(500, 100), indices(500, 300, 100)], lambda x, i: x.gather(0, i), []),
    "scatter": (
        lambda: [card(500, 100), indices(500, 300, 100), card(300, 100)],
        lambda x, i, y: x.scatter(0, i, y),
        [],
    ),
    "cat": (lambda: [card(500, 100), card(33, 100)], lambda x, y: torch.cat([x, y]), []),
    "embedding": (lambda: [indices(500, 64, 9), card(500, 100)], F.embedding, []),
    # The logarithm of the softmax, and the total weight.
    "cross_entropy": (lambda: [card(64, 1000), indices(1000, 64)], F.cross_entropy, [FLOAT * 64_000, FLOAT]),
    "sum": (lambda: [card(1 << 18)], torch.sum, []),
    "unique": (lambda: [indices(100, 5000)], lambda x: torch.unique(x), []),
    "nonzero": (lambda: [indices(2, 5000)], torch.nonzero, []),
    "median": (lambda: [card(301, 300)], lambda x: x.median(1), []),
    # The logarithm of the sums of the attention, for each query.
    "attention": (
        lambda: [card(2, 4, 128, 32)] * 3,
        F.scaled_dot_product_attention,
        [FLOAT * 2 * 4 * 128],
    ),
}


@pytest.mark.usefixtures("fresh_memory")  # a block is not split if little is left of it
@pytest.mark.parametrize("name", OPERATORS)
def test_the_peak_of_an_operator_is_its_results(name):
    make, operator, beside = OPERATORS[name]
    arguments = make()
    for _ in range(3):  # at first an operator may run at its call, and then as a task
        with Peak() as peak:
            result = operator(*arguments)
        expected = memory_of(result) + sum(map(rounded, beside))
        assert peak.bytes == expected
        del result


class LiveMemory(TorchDispatchMode):
    """Adds up the storages that are alive after each operator, but for those of the tensors ``before``."""

    def __init__(self, before):
        super().__init__()
        self.before = {tensor.untyped_storage()._cdata for tensor in before}
        self.live = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # Python has freed by now what the operators before have left behind.
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "vdev":
                storage = leaf.untyped_storage()
                if storage._cdata in self.before:
                    continue  # an operator that changes its argument returns it
                self.live[storage._cdata] = (StorageWeakRef(storage), rounded(storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 10)), (64, 300)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3600, 10),
        ),
        (16, 3, 32, 32),
    ),
    "transformer": (Attention, (8, 32, 64)),
}


@pytest.mark.usefixtures("fresh_memory")
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_training_step_is_its_tensors(name):
    make, shape = MODELS[name]
    model = make().to("vdev")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, labels = card(*shape), indices(10, shape[0])

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    for _ in range(2):
        step()
        optimizer.zero_grad()
        state = [
            value for value in tree_leaves(list(optimizer.state.values())) if isinstance(value, torch.Tensor)
        ]
        with (
            Peak() as peak,
            LiveMemory([x, labels, *model.parameters(), *model.buffers(), *state]) as tensors,
        ):
            step()
        assert peak.bytes == tensors.peak > memory_of(list(model.parameters()))


def test_sizes_are_cudas():
    sizes = {2**power + more for power in range(27) for more in (-1, 0, 1, 511, 513)}
    sizes |= {multiple * (1 << 20) + more for multiple in (9, 10, 11, 19, 20, 21) for more in (-1, 0, 1)}
    for size in sorted(sizes - {0}):
        # In a pool of its own a segment is made for the block, of which CUDA's rules say how long it is. The
        # common pool may have room in a segment that a tensor of an earlier test keeps.
        torch.vdev.empty_cache()
        with torch.vdev.use_mem_pool(torch.vdev.MemPool()):
            before = torch.vdev.memory_stats()
            x = torch.empty(size, dtype=torch.uint8, device="vdev")
            after = torch.vdev.memory_stats()
        pool = "small_pool" if rounded(size) <= 1 << 20 else "large_pool"
        expected = rounded(size)
        if pool == "small_pool":
            segment = 2 << 20
        elif expected < 10 << 20:
            segment = 20 << 20
        else:
            segment = -(-expected // (2 << 20)) * (2 << 20)
            # What is left of a large segment is cut off if it has more than 1 MiB.
            expected = segment if segment - expected <= 1 << 20 else expected
        change = {key: after[key] - before[key] for key in before if key.endswith(".current")}
        for kind in ("all", pool):
            assert change[f"allocated_bytes.{kind}.current"] == expected, (size, kind)
            assert change[f"reserved_bytes.{kind}.current"] == segment, (size, kind)
        assert change[f"requested_bytes.{pool}.current"] == size
        del x


def test_scratch_has_figures_of_its_own():
    torch.vdev.synchronize()
    x = torch.rand(1 << 20, device="vdev")
    torch.sort(x)
    torch.vdev.synchronize()
    torch.vdev.reset_peak_memory_stats()
    before = torch.vdev.memory_stats()
    torch.sort(x)
    torch.vdev.synchronize()
    after = torch.vdev.memory_stats()

    def grown(key):
        return after[key] - before[key]

    assert after["scratch_bytes.all.current"] == 0 and after["scratch_bytes.all.peak"] > 0
    assert grown("scratch_bytes.all.allocated") == grown("scratch_bytes.all.freed") > 0
    assert grown("scratch_bytes.large_pool.allocated") > 0
    assert after["reserved_bytes.all.current"] >= after["scratch_bytes.all.peak"]
    assert torch.vdev.memory_stats_as_nested_dict()["scratch_bytes"]["all"]["current"] == 0


def test_no_result_stays_scratch():
    """Whatever way a result takes from its kernel to the program, it counts as the program's."""
    x = torch.ones(10_000, device="vdev")
    found = torch.empty(0, dtype=torch.long, device="vdev")
    recurrent = nn.LSTM(32, 64).to("vdev")
    for _ in range(2):
        before = torch.vdev.memory_allocated()
        torch.nonzero(x, out=found.resize_(0))  # the kernel gives its output new memory
        results = [x.unique(return_counts=True), recurrent(card(5, 3, 32))[0], torch.fft.fft(x)]
        results.append(x.view(100, 100).to_sparse().coalesce().indices())
        torch.vdev.synchronize()
        assert torch.vdev.memory_stats()["scratch_bytes.all.current"] == 0
        assert torch.vdev.memory_allocated() - before >= memory_of(results[2])
        assert found.untyped_storage().nbytes() == LONG * 10_000
        del results
