"""Captures the tasks of streams into graphs, which one call replays. docs/graphs.md describes them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from vccl import _C

from .streams import Stream, StreamContext, current_stream, synchronize

Pool = tuple[int, int]


class VDEVGraph(_C.Graph):
    """Is to a card what ``torch.cuda.CUDAGraph`` is to a GPU, with the same methods.

    Replays run one after the other. A graph that is dropped while a replay is queued ends with that replay.
    """


def graph_pool_handle() -> Pool:
    """Returns a name for a memory pool that several graphs can share."""
    return _C.graph_pool_handle()


def is_current_stream_capturing() -> bool:
    """Returns whether the current stream of the current card is captured. Uses no card."""
    return _C.is_current_stream_capturing()


class graph(contextlib.AbstractContextManager):  # the name of torch.cuda
    """Captures the tasks that the ``with`` block puts on a stream. Its arguments are ``torch.cuda.graph``'s.

    Args:
        vdev_graph: takes the captured tasks.
        pool: where the memory comes from, by default a new pool of this graph.
        stream: is current inside the block, by default a stream that all captures of the process share.
        capture_error_mode: "global", "thread_local" or "relaxed".

    Raises:
        RuntimeError: from the block, for a call that cannot be captured, and at its end if there was such a
            call, or if a stream was not joined back. The current stream is restored.
    """

    def __init__(
        self,
        vdev_graph: VDEVGraph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.vdev_graph = vdev_graph
        self.pool = pool
        self.capture_stream = _capture_stream() if stream is None else stream
        self.capture_error_mode = capture_error_mode
        self._context = StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        synchronize()
        torch.accelerator.empty_cache()
        torch.accelerator.empty_host_cache()
        self._context.__enter__()
        try:
            self.vdev_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self.vdev_graph.capture_end()
        finally:
            self._context.__exit__()


@functools.cache
def _stream_of_card(index: int) -> torch.Stream:
    return Stream(torch.device("vdev", index))


def _capture_stream() -> torch.Stream:
    return _stream_of_card(_C.current_device())


class _GraphedCallable:
    """Holds the graphs of one callable, and the tensors that they read and write."""

    def __init__(self, function: Callable[..., Any], args: Sequence[torch.Tensor]) -> None:
        self.function = function
        self.args = tuple(args)
        leaves, _ = tree_flatten(self.args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise TypeError("make_graphed_callables: sample_args must contain tensors only")
        parameters: tuple[torch.Tensor, ...] = ()
        if isinstance(function, torch.nn.Module):
            if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
                raise RuntimeError("make_graphed_callables: register the module's hooks after this call")
            if any(buffer.requires_grad for buffer in function.buffers()):
                raise RuntimeError("make_graphed_callables: only parameters of a module may require grad")
            parameters = tuple(function.parameters())
        self.user_inputs = tuple(leaves)
        self.inputs = self.user_inputs + parameters
        self.forward_graph, self.backward_graph = VDEVGraph(), VDEVGraph()
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.grads_of_outputs: tuple[torch.Tensor | None, ...] = ()
        self.grads_of_inputs: tuple[torch.Tensor | None, ...] = ()
        self._structure: TreeSpec | None = None

    def _gradients(
        self, outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], allow_unused: bool
    ) -> list[torch.Tensor | None]:
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        found = torch.autograd.grad(outputs, wanted, grads, allow_unused=allow_unused)
        results = iter(found)
        return [next(results) if tensor.requires_grad else None for tensor in self.inputs]

    def warm_up(self, iterations: int, allow_unused: bool) -> None:
        for _ in range(iterations):
            outputs, _ = tree_flatten(self.function(*self.args))
            differentiable = [output for output in outputs if output.requires_grad]
            if differentiable:
                grads = [torch.zeros_like(output) for output in differentiable]
                self._gradients(differentiable, grads, allow_unused)

    def capture_forward(self, pool: Pool) -> None:
        with graph(self.forward_graph, pool=pool):
            result = self.function(*self.args)
        outputs, self._structure = tree_flatten(result)
        self.outputs = tuple(outputs)

    def capture_backward(self, pool: Pool, allow_unused: bool) -> None:
        self.grads_of_outputs = tuple(
            torch.empty_like(output) if output.requires_grad else None for output in self.outputs
        )
        differentiable = [output for output in self.outputs if output.requires_grad]
        self.grads_of_inputs = (None,) * len(self.inputs)
        if differentiable:
            grads = [grad for grad in self.grads_of_outputs if grad is not None]
            with graph(self.backward_graph, pool=pool):
                self.grads_of_inputs = tuple(self._gradients(differentiable, grads, allow_unused))
        # The nodes of autograd were made on the stream of the capture, and those that accumulate gradients
        # would stay with the parameters. What they have saved is memory of the pool, which stays reserved.
        self.outputs = tuple(output.detach() for output in self.outputs)

    def __call__(self, *args: Any) -> Any:
        leaves, _ = tree_flatten(args)
        if len(leaves) != len(self.user_inputs):
            raise TypeError(f"this graph takes {len(self.user_inputs)} tensors, and was given {len(leaves)}")
        parameters = self.inputs[len(self.user_inputs) :]
        outputs = _ReplayOfCallable.apply(self, *leaves, *parameters)
        assert self._structure is not None
        return tree_unflatten(list(outputs), self._structure)


class _ReplayOfCallable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphed: _GraphedCallable, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.graphed = graphed
        for place, given in zip(graphed.user_inputs, inputs, strict=False):
            if place.data_ptr() != given.data_ptr():
                place.copy_(given)
        graphed.forward_graph.replay()
        outputs = tuple(output.detach() for output in graphed.outputs)
        ctx.mark_non_differentiable(
            *(new for new, grad in zip(outputs, graphed.grads_of_outputs, strict=True) if grad is None)
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        graphed: _GraphedCallable = ctx.graphed
        for place, given in zip(graphed.grads_of_outputs, grads, strict=True):
            if place is not None and place.data_ptr() != given.data_ptr():
                place.copy_(given)
        graphed.backward_graph.replay()
        return None, *(None if grad is None else grad.detach() for grad in graphed.grads_of_inputs)


def _drop_in(graphed: _GraphedCallable) -> Callable[..., Any]:
    function = graphed.function
    if not isinstance(function, torch.nn.Module):
        return graphed
    eager, training = function.forward, function.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        # The graph has what the module did in the mode that it was captured in.
        return graphed(*args) if function.training == training else eager(*args, **kwargs)

    function.forward = forward
    return function


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> Any:
    """Returns drop-in replacements whose forward and backward passes are graphs, as ``torch.cuda``'s does.

    Args:
        callables: a function or a module, or a tuple of them in the order in which they are called. A module
            is changed in place. In the mode (training or not) that it has now, it replays; in the other one
            it runs eagerly.
        sample_args: a tuple of tensors, or a tuple of such tuples. They must require gradients where the real
            arguments do. Arguments are copied into their memory.
        num_warmup_iters: how often each callable runs before it is captured.
        allow_unused_input: whether inputs may have no gradient.
        pool: the memory pool of all graphs.

    Raises:
        RuntimeError: autocast is on with its cache, a module has hooks, or something cannot be captured.
        TypeError: sample_args has something else than tensors.
    """
    if torch.is_autocast_enabled("vdev") and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables: use autocast with cache_enabled=False")
    single = not isinstance(callables, tuple)
    pairs = [(callables, sample_args)] if single else list(zip(callables, sample_args, strict=True))
    graphed = [_GraphedCallable(function, args) for function, args in pairs]
    pool = graph_pool_handle() if pool is None else pool
    synchronize()
    side = Stream(current_stream().device)
    with StreamContext(side):
        for each in graphed:
            each.warm_up(num_warmup_iters, allow_unused_input)
    synchronize()
    # The graphs share a pool, so they are captured in the order in which they are replayed.
    for each in graphed:
        each.capture_forward(pool)
    for each in reversed(graphed):
        each.capture_backward(pool, allow_unused_input)
    results = tuple(_drop_in(each) for each in graphed)
    return results[0] if single else results
