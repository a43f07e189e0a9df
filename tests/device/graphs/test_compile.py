"""torch.compile on the cards: compiled code gives what eager code gives, in the order of the streams."""

import warnings

import pytest
import torch
import torch._dynamo
from compiling import compiling
from torch import nn
from torch._inductor import config
from torch.nn import functional as F
from torch_build import without_cuda

from vccl._cards.no_gpu import NoGpuError

# A graph that runs eagerly would give the right results, too.
pytestmark = pytest.mark.filterwarnings("error:torch.compile. Inductor cannot compile")


@pytest.fixture(scope="module", autouse=True)
def cache():
    with compiling():
        yield


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)
    torch.vdev.manual_seed_all(0)


class Block(nn.Module):
    """A small transformer for sequences of numbers below 50."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.project(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.down(F.gelu(self.up(x)))


def images() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 16, 5))


def train(model, call, *inputs):
    """The loss of one step of training, and all parameters and buffers after it, with the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = call(*inputs).float().square().mean()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return [loss.detach(), *gradients, *(value.clone() for value in model.state_dict().values())]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("backend", "make", "inputs"),
    [
        ("eager", Block, lambda: torch.randint(50, (2, 12))),
        ("aot_eager", Block, lambda: torch.randint(50, (2, 12))),
        ("inductor", Block, lambda: torch.randint(50, (2, 12))),
        ("inductor", images, lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)),
    ],
    ids=["eager", "aot_eager", "inductor", "inductor-images"],
)
def test_training_on_a_card_that_is_not_the_current_one(backend, make, inputs):
    model, inputs = make().to("vdev:1"), inputs().to("vdev:1")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    expected = train(model, model, inputs)
    model.load_state_dict(start)
    model.zero_grad()
    found = train(model, torch.compile(model, backend=backend, fullgraph=True), inputs)
    assert {value.device for value in found} == {torch.device("vdev:1")}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def equal(function, *inputs, **options):
    """Asserts that a function and its compiled form return the same, and leave the same in their inputs."""
    theirs = [value.clone() for value in inputs]
    compiled = torch.compile(function, fullgraph=True, **options)
    expected, found = function(*inputs), compiled(*theirs)
    torch.testing.assert_close([found, theirs], [expected, [*inputs]], check_stride=True)


def test_integers_are_divided_by_zero_without_an_error():
    dividend, divisor = torch.arange(40, device="vdev"), torch.arange(40, device="vdev") % 3

    def quotients(a, b):
        trunc = torch.div(a, b, rounding_mode="trunc")
        return [torch.where(b != 0, x, 0) for x in (a // b, a % b, torch.fmod(a, b), trunc)]

    equal(quotients, dividend, divisor)


@pytest.mark.daily
def test_softmax_over_long_rows():
    """Inductor has a reduction for these that it can write for GPUs only."""

    def losses(x, labels):
        return F.cross_entropy(x, labels), x.softmax(-1), (x * 2).logsumexp(-1)

    equal(losses, torch.randn(16, 1000, device="vdev"), torch.arange(16, device="vdev"))


def test_views_writing_to_inputs_and_indices():
    def function(x, y):
        x.add_(1)
        y[1:].mul_(2)
        return x.t(), y[1:], (x + y).view(-1)[2:], x.sort(1).values, x.var(1)

    equal(function, torch.randn(5, 7, device="vdev"), torch.randn(5, 7, device="vdev"))


@pytest.mark.torch(">=2.13", "Inductor counts as the elements lie in memory, on the CPU as well")
def test_the_place_of_a_maximum_counts_as_its_tensor_is_read():
    equal(lambda x: (x + 1).t().argmax(), torch.randn(5, 7, device="vdev"))


def test_two_cards_the_cpu_and_scalars():
    def function(x, y, scalar):
        near = scalar * x + torch.arange(3, device="vdev:0") + torch.tensor(1.5)
        far = near.to("vdev:1").sin() + y
        return near, far, (far * 2).cpu() + 1, torch.where(x > 0, scalar, x)

    inputs = torch.randn(4, 3, device="vdev:0"), torch.randn(4, 3, device="vdev:1"), torch.tensor(2.5)
    equal(function, *inputs)


def test_dynamic_shapes():
    def function(x):
        return (x.softmax(-1) @ x.t()).relu().sum(0)

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for size in (3, 8, 13):
        x = torch.randn(size, size + 1, device="vdev")
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_ask_for_a_gpu(mode):
    layer = nn.Linear(8, 8, device="vdev")
    equal(lambda x: layer(x).relu() + len(mode), torch.randn(4, 8, device="vdev"), mode=mode)


def test_an_optimizer_and_autocast():
    def run(compile):
        torch.manual_seed(0)
        layer = nn.Linear(8, 3).to("vdev")
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        step = compile(optimizer.step)
        forward = compile(layer)
        for _ in range(2):
            with torch.autocast("vdev", torch.bfloat16):
                y = forward(torch.ones(4, 8, device="vdev"))
            assert y.dtype == torch.bfloat16
            y.float().square().sum().backward()
            step()
        return [p.detach() for p in layer.parameters()]

    torch.testing.assert_close(run(torch.compile), run(lambda f: f), rtol=1e-2, atol=1e-2)


def test_random_numbers_follow_the_seed_of_their_card():
    compiled = torch.compile(lambda x: (F.dropout(x, 0.3), torch.rand(50, device="vdev:1")))
    x = torch.ones(2000, device="vdev:0")

    def draw(first, second):
        for card, seed in enumerate((first, second)):
            with torch.vdev.device(card):
                torch.vdev.manual_seed(seed)
        return compiled(x)

    dropped, uniform = draw(1, 2)
    again, other = draw(1, 3)
    assert torch.equal(dropped, again) and not torch.equal(uniform, other)
    assert torch.equal(uniform, draw(4, 2)[1]) and not torch.equal(dropped, draw(4, 2)[0])
    assert not torch.equal(compiled(x)[0], compiled(x)[0])
    assert 0.6 < (dropped > 0).float().mean().item() < 0.8
    with config.patch(fallback_random=True):  # the numbers of eager code
        compiled = torch.compile(lambda x: F.dropout(x, 0.3) + 1)
        torch.vdev.manual_seed(5)
        found = compiled(x)
        torch.vdev.manual_seed(5)
        torch.testing.assert_close(found, F.dropout(x, 0.3) + 1)


def test_the_order_of_the_current_stream():
    def function(x):
        return x.sin() + 1

    compiled = torch.compile(function, fullgraph=True)
    x = torch.zeros(1000, device="vdev")
    compiled(x)
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        torch.vdev._sleep(100_000_000)
        x.copy_(torch.ones(1000).pin_memory(), non_blocking=True)
        found = compiled(x)  # the stream has not come to the copy when this is called
    torch.testing.assert_close(found, function(torch.ones(1000, device="vdev")))

    def fail():
        raise ValueError("what the task says")

    torch.vdev._launch_host_func(fail)
    with pytest.raises(RuntimeError, match="what the task says"):
        compiled(x)
    torch.vdev.clear_errors()
    torch.testing.assert_close(compiled(x), found)


def test_questions_about_cards_inside_of_a_graph():
    def function(x):
        if torch.vdev.is_available() and torch.vdev.device_count() > 1:
            return x + torch.vdev.current_device()
        return x

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for card in (0, 1, 0):
        with torch.vdev.device(card):
            assert compiled(torch.zeros(1, device="vdev:0")).item() == card

    def properties(x):
        units = torch.vdev.get_device_properties(x.device).multi_processor_count
        memory = torch.vdev.get_device_properties().total_memory
        return x * units + len(torch.vdev.get_device_name(0)) + memory

    x = torch.ones(1, dtype=torch.float64, device="vdev")
    assert torch.compile(properties, fullgraph=True, backend="eager")(x).equal(properties(x))


def test_a_generator_is_saved_and_restored_inside_of_compiled_code():
    def function(x):
        state = torch.vdev.get_rng_state()
        first = x + torch.rand(3, device="vdev")
        torch.vdev.set_rng_state(state)
        return first, x + torch.rand(3, device="vdev")

    first, second = torch.compile(function, backend="eager")(torch.zeros(3, device="vdev"))
    assert torch.equal(first, second)


def test_aot_inductor_raises():
    from torch._inductor import aoti_compile_and_package

    program = torch.export.export(nn.ReLU(), (torch.ones(3, device="vdev"),))
    with pytest.raises(Exception, match="vdev not supported"):
        aoti_compile_and_package(program)


def test_events_and_streams_inside_of_a_graph(recwarn):
    def record(x):
        event = torch.Event("vdev")
        y = x + 1
        event.record()
        event.wait()
        return y * 2

    equal(record, torch.ones(3, device="vdev"))
    stream = torch.Stream("vdev")

    def switch(x):
        y = x + 1
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            z = y.sin()
        torch.accelerator.current_stream().wait_stream(stream)
        return z + y

    warnings.filterwarnings("always", "torch.compile: Inductor cannot compile")
    equal(switch, torch.ones(3, device="vdev"))
    assert "the graph switches streams" in str(recwarn.pop().message)


def test_what_inductor_cannot_compile_runs_eagerly_and_says_so_once():
    def function(x):
        return x.sin() * 2, x.cos().sum()

    compiled = torch.compile(function, options={"cpp_wrapper": True})
    x = torch.randn(4, device="vdev", requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
            sums = [sum(value.sum() for value in call(x)) for call in (compiled, function)]
            torch.testing.assert_close(*[torch.autograd.grad(value, x) for value in sums])
    texts = [str(warning.message) for warning in caught if "Inductor" in str(warning.message)]
    assert len(texts) == 1 and "operator by operator (AssertionError: Device vdev not supported)" in texts[0]


def test_flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    def nearby(score, batch, head, i, j):
        return score + (i - j) * 0.1

    q, k, v = (torch.randn(1, 2, 32, 16, device="vdev", requires_grad=True) for _ in range(3))
    distances = torch.arange(32, device="vdev")
    scores = q @ k.transpose(-1, -2) / 4 + (distances[:, None] - distances) * 0.1
    expected = scores.softmax(-1) @ v
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torch.compile(flex_attention)(q, k, v, score_mod=nearby)
        gradients = torch.autograd.grad(found.square().sum(), (q, k, v))
    texts = [str(warning.message) for warning in caught if "Inductor" in str(warning.message)]
    assert texts and all("FlexAttention in C++ has no backward" in text for text in texts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-4)


def test_a_missing_compiler_is_named():
    compiled = torch.compile(lambda x: x.tan() + 11)
    with (
        config.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(Exception, match=r"found no C\+\+ compiler.*no-such-compiler.*Install g\+\+"),
    ):
        compiled(torch.ones(3, device="vdev"))


@without_cuda
def test_extensions_with_cuda_sources_are_refused(tmp_path):
    from torch.utils import cpp_extension

    with pytest.raises(NoGpuError, match="The extension 'mine', which has CUDA sources, needs a GPU"):
        cpp_extension.load_inline("mine", "", cuda_sources="int f();", build_directory=str(tmp_path))
    with pytest.raises(NoGpuError, match="'ours'"):
        cpp_extension.load("ours", ["kernel.cu"], build_directory=str(tmp_path))
    with pytest.raises(NoGpuError, match="'theirs'"):
        cpp_extension.CUDAExtension("theirs", ["kernel.cpp"])


def test_importing_torch_imports_no_compiler(run_python):
    run_python(
        "import sys, torch\n"
        "assert hasattr(torch, 'vdev')\n"
        "x = torch.ones(3, device='vdev') + 1\n"
        "for name in ('torch._dynamo', 'torch._inductor', 'vccl._inductor.card_wrapper', 'sympy'):\n"
        "    assert name not in sys.modules, name\n"
    )
