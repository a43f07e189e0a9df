"""Writes docs/operators.md: ``python -m vccl.operators_page``."""

import itertools
import textwrap
from collections import defaultdict
from pathlib import Path

import torch

from vccl import _C

TEXT = """\
# When operators run

This page is written by `python -m vccl.operators_page`, and a test compares it with the compiled module.

An operator on a card is a task of the current stream, and its call returns at once. It needs results before
its kernel has run, so it must be known what they look like. That is learned from a first call: an operator
with arguments of types, sizes and strides that have not been seen waits for the stream, runs at its call,
and what its results look like is remembered. Every later call with such arguments is a task. Values of
arguments that are no tensors belong to what is remembered, unless they are numbers that only take part in
the arithmetic. An `out=` argument that the first call has resized is resized at the call.

If a task finds results of other shapes than were expected, it raises an error that names the operator, which
runs at its call from then on. That would be a defect of this page's lists, which a test compares with torch's
own shape functions and with runs on other elements.

If waiting for the stream would mean waiting for other threads (a collective, a host function, another
stream), or if the stream is captured into a graph, or if a schedule is on (`VDEV_SCHEDULE`), the first call
does not wait. Its kernel runs at once on zeros of the same sizes, which tells what the results look like (a
rehearsal), and the call becomes a task.
A rehearsal uses up to 64 MiB of ordinary memory; with larger arguments the first call waits, or is refused
in a capture.

- **Who runs a task.** The thread that waits for the stream runs its tasks. The worker of the stream runs them
  if a core is free (more cores than ranks times `torch.get_num_threads()`) and tasks have been queued for
  0.3 ms. The worker also runs them if nobody has waited for some milliseconds. A thread that runs a
  collective also runs the operators that the collective waits for. At most 1,024 tasks are queued; then the
  host runs some.
- **Priorities.** Before a task of a stream of priority 0 begins, the streams of the same card that have
  priority -1 begin all that they can. The thread that is about to run the task runs their operators itself,
  unless another thread does. Streams do not wait for each other if there is a core for both: a task counts
  as `torch.get_num_threads()` cores, and the ranks of the machine share its cores. As on a GPU, a task that
  has begun is not interrupted, and priorities order neither different cards nor processes. A graph's replay
  gives way before each of its tasks, and an operator that runs at its call gives way before it begins.
  Nothing waits for ever because of priorities: a stream whose task may wait for others (a collective, a host
  function, an event, a kernel of `vdev::launch_kernel()`) is passed as soon as that task has begun, and a
  task gives way for at most a second.
- **Bits.** The same kernels run as with `VDEV_LAUNCH=blocking`, in the same order, so results are the same.
- **Memory.** Results are allocated at the call. What a kernel allocates besides comes from a pool of the
  stream. A task keeps no tensor of the program: memory that is freed is reused in the order of the stream,
  and another stream that uses it needs `record_stream()`, as on a GPU.
- **State of the thread.** Autocast, grad mode and inference mode of the call count, and so do
  `torch.get_num_threads()` and `torch.set_flush_denormal()`. Nothing of the thread that runs the task does.
- **Switches of the process.** The default dtype, the deterministic mode and oneDNN's settings change when the
  queued tasks have run ([torch.md](inside/torch.md)).
- **Errors.** What can be seen in the arguments is raised at the call. What a kernel finds in the elements,
  such as an index that is out of range, is the stream's error. The next synchronisation raises it with the
  operator's name, and whoever reads the call's results gets it again. Tasks that read these results do not
  run, and all other tasks do ([errors.md](errors.md#reading-after-a-failure)). `VDEV_LAUNCH_TRACE=1` adds
  the line of the call. The card can be used afterwards, unless `VDEV_STRICT=1` is set.
- **Failed collectives.** An operator that is queued when a collective fails does not run if it reads what
  the collective should have written. Its results then raise the failure when they are read
  ([errors.md](errors.md)). Operators that are called later raise it at the call.

## Operators that run at their call

A call waits until the stream has drained, and runs at once,

- with `VDEV_LAUNCH=blocking` or `VDEV_LAUNCH_BLOCKING=1`,
- inside a host function,
- with sparse, quantized or nested tensors, or with CPU tensors that have dimensions,
- with Booleans as indices,
- if a result is a view of an argument,
- while memory holds the failure of a collective,
- if it is a first call whose rehearsal fails, because the kernel refuses zeros or the arguments are wrong.

The following operators always run at their call, of those that the CPU has kernels for, but for
`repeat_interleave` with `output_size` and `_padded_dense_to_jagged_forward` with `total_L`. In a capture, the
error names the operator. `_C._launch_counts()` counts the calls of a program.
"""


def operators_by_reason() -> dict[str, list[str]]:
    """Names the operators that run at their call, by the reason.

    Returns:
        From each reason to the sorted names, without namespace and overload.
    """
    reasons: dict[str, set[str]] = defaultdict(set)
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        if not name.startswith("aten::") or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(
            full, "CPU"
        ):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
            continue  # it is made of other operators
        if reason := _C._why_at_call(name, overload):
            reasons[reason].add(name.removeprefix("aten::"))
    return {reason: sorted(reasons[reason]) for reason in sorted(reasons)}


def page() -> str:
    """Returns the text of docs/operators.md."""
    parts = [TEXT]
    for reason, names in operators_by_reason().items():
        listed = textwrap.fill(", ".join(f"`{name}`" for name in names), 118, break_on_hyphens=False)
        parts.append(f"An operator that {reason}:\n\n{listed}\n")
    return "\n".join(itertools.chain(parts))


if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("docs", "operators.md").write_text(page())
