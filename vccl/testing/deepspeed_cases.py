"""A stand-in for the base class of DeepSpeed's own tests, which runs on ranks of the pool.

A suite changes one import:

    from vccl.testing.deepspeed_cases import DistributedTest
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from .world import World


class DistributedTest:
    """Test methods of a subclass run on every rank of a world, in a default group.

    ``world_size`` is one number of ranks, or several, with each of which the tests run. A method may have
    another one by ``@pytest.mark.world_size(4)``. Fixtures are evaluated on the ranks, and ``tmpdir`` is the
    same folder on all.
    """

    world_size: ClassVar[int | Sequence[int]] = 2
    backend: ClassVar[str | None] = None  # of the default group, or None for that of --ranks-backend
    set_dist_env: ClassVar[bool] = True  # False: no default group, and init_distributed has no effect
    init_distributed: ClassVar[bool] = True  # whether DeepSpeed takes over the default group
    exec_timeout: ClassVar[float | None] = None  # seconds for a test, or None for that of --ranks-timeout

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.pytestmark = [*_own_marks(cls), cls._mark(cls.world_size)]  # type: ignore[attr-defined]
        for function in vars(cls).values():
            marks = getattr(function, "pytestmark", [])
            for mark in [mark for mark in marks if mark.name == "world_size"]:
                cls._mark(mark.args[0])(function)

    @classmethod
    def _mark(cls, sizes: int | Sequence[int]) -> pytest.MarkDecorator:
        return pytest.mark.ranks(
            *([sizes] if isinstance(sizes, int) else sizes),
            group=cls.set_dist_env,
            backend=cls.backend,
            timeout=cls.exec_timeout,
        )

    @pytest.fixture(autouse=True)
    def _group_of_deepspeed(self, ranks: World) -> Iterator[None]:
        """Lets DeepSpeed take over the default group."""
        if not (self.set_dist_env and self.init_distributed):
            yield
            return
        import deepspeed
        import torch.distributed as dist

        deepspeed.init_distributed(dist_backend=dist.get_backend())
        yield
        deepspeed.comm.comm.cdb = None


def _own_marks(cls: type) -> list[Any]:
    marks = vars(cls).get("pytestmark", [])
    return list(marks) if isinstance(marks, list | tuple) else [marks]
