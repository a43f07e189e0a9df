"""Helpers for tests on ranks."""

import contextlib
import ctypes
import hashlib
import io
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from . import world

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

# Seconds in which the other ranks have to come to the same call. The test's timeout usually comes first.
_PATIENCE = 300.0
# Bytes. Of larger tensors, the error does not tell where they differ.
_COMPARED = 64 << 20


def on_rank(*ranks: int) -> bool:
    """Returns whether this rank is among the given ranks: ``if on_rank(0): ...``."""
    return world.current().rank in ranks


def isolated_store() -> "dist.Store":
    """Returns a store with no keys, for groups that a test makes by itself.

    All ranks get the same store, and have to call this equally often.
    """
    return world.current().isolated_store()


@contextlib.contextmanager
def expect_error_on(
    rank: int | Sequence[int], match: str = "", raises: type[BaseException] = Exception
) -> Iterator[None]:
    """Demands that the block raises on these ranks, and that it does not on the others.

    Args:
        rank: one rank or several.
        match: a regular expression that the text of the exception has to contain.
        raises: the type of the exception.

    Raises:
        AssertionError: the block has not raised on one of these ranks, or with another text.
    """
    here = world.current().rank
    if here not in ([rank] if isinstance(rank, int) else rank):
        yield
        return
    try:
        yield
    except raises as error:
        if not re.search(match, str(error)):
            raise AssertionError(
                f"rank {here} raised {type(error).__name__}, but its text does not match {match!r}: {error}"
            ) from error
    else:
        raise AssertionError(f"rank {here} did not raise {raises.__name__}")


def kill_rank(rank: int) -> None:
    """Ends a rank of the test with SIGKILL. The test may pass without it.

    On the other ranks that call this, it returns when the rank has ended.

    Raises:
        TimeoutError: the rank did not call this too.
    """
    own = world.current()
    if own.rank == rank:
        _end_self()
    until = time.monotonic() + _PATIENCE
    while _runs(own.pids[rank]):
        if time.monotonic() > until:
            raise TimeoutError(
                f"rank {rank} still runs {_PATIENCE:.0f} s after kill_rank({rank}): did it call it too?"
            )
        time.sleep(0.001)


def _end_self() -> NoReturn:
    from . import rank as process

    process.announce_end()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError  # the signal cannot be blocked


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between open and read
        return False


def assert_same_on_all_ranks(tensor: "torch.Tensor") -> None:
    """Demands that a tensor has the same shape, dtype and bits on all ranks. All ranks have to call this.

    The comparison goes through the test's store, and so does not need the group that is tested.

    Raises:
        AssertionError: on every rank, with what each group of equal ranks has, and the first place of a
            difference.
    """
    import torch

    own = world.current()
    value = tensor.detach().cpu().contiguous()
    content = value.reshape(-1).view(torch.uint8) if value.numel() else value.reshape(-1)
    # Not through numpy, which may be missing.
    digest = hashlib.sha256(ctypes.string_at(content.data_ptr(), value.nbytes)).hexdigest()
    store = own.isolated_store()
    store.set(f"about_{own.rank}", f"{tuple(value.shape)} {value.dtype} {digest}")
    about = [store.get(f"about_{rank}").decode() for rank in range(own.size)]
    if len(set(about)) == 1:
        return
    groups = {text: [rank for rank in range(own.size) if about[rank] == text] for text in about}
    leaders = {text: ranks[0] for text, ranks in groups.items()}
    if own.rank in leaders.values() and content.numel() <= _COMPARED:
        file = io.BytesIO()
        torch.save(value, file)
        # The store takes bytes, although torch's stub says otherwise.
        store.set(f"value_{own.rank}", file.getvalue())  # type: ignore[arg-type]
    lines = ["the tensor is not the same on all ranks:"]
    for text, ranks in groups.items():
        shape, dtype, _ = text.rsplit(" ", 2)
        lines.append(f"  {ranks_as_text(ranks)}: shape {shape}, {dtype}, sha256 {text[-64:-56]}...")
    first, other = list(leaders.values())[:2]
    if about[first].rsplit(" ", 1)[0] == about[other].rsplit(" ", 1)[0] and content.numel() <= _COMPARED:
        lines.append(_difference(store, first, other))
    raise AssertionError("\n".join(lines))


def _difference(store: "dist.Store", first: int, other: int) -> str:
    import torch

    one, two = (torch.load(io.BytesIO(store.get(f"value_{rank}"))).reshape(-1) for rank in (first, other))
    bits = (one.view(torch.uint8) != two.view(torch.uint8)).reshape(one.numel(), -1).any(1)
    index = int(bits.nonzero()[0])
    return (
        f"  {int(bits.sum())} of {one.numel()} elements differ; the first is element {index} (flat): "
        f"{one[index].item()!r} on rank {first}, {two[index].item()!r} on rank {other}"
    )


def ranks_as_text(ranks: Sequence[int]) -> str:
    """Returns "rank 3", or "ranks 0 to 2, 5"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)
