"""Tells a backend the description of its group while the group is made, and not only afterwards.

vccl makes a communicator at once, and its errors call the group by its description from the beginning. Torch
gives a backend from outside only the group's number. NCCL's options hold the description.
"""

import contextvars
from collections.abc import Callable
from typing import Any

from vccl._torch_patches.distributed import new_group
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='errors call the default group "0" while it is made, and "default_pg" later',
    until="`_DistributedBackendOptions` holds the description",
)

# The description of the group that is being made, or "" where it has none.
description: contextvars.ContextVar[str] = contextvars.ContextVar("group_description", default="")


@PATCH.replaces(new_group.ATTRIBUTE, new_group.PARAMETERS)
def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = description.set(kwargs.get("group_desc") or "")
    try:
        return original(*args, **kwargs)
    finally:
        description.reset(token)
