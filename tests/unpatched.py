"""Takes patches of torch away for a while, so that tests can look at the holes that they fill."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from vccl import _torch_patches
from vccl._torch_patches import registry, signatures


@contextlib.contextmanager
def unpatched(name: str) -> Iterator[None]:
    """Puts torch's own functions back where the patch `name` has replaced them.

    Other patches of the same functions are taken away with it.
    """
    with contextlib.ExitStack() as stack:
        for replacement in _torch_patches.patch(name).replacements:
            for name in (replacement.attribute, *replacement.aliases):
                held = registry.originals[replacement.attribute]
                stack.enter_context(mock.patch.object(*signatures.owner_of(name), held))
        yield
