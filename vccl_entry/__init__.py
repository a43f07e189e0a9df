"""The commands, the pytest plugin, and the client and server of ``vrun --keep``.

``import vccl`` imports torch, which takes a second. Every run of pytest loads the plugin, and ``vrun --keep``
asks a process that has imported torch already. So these modules lie outside of the package ``vccl``, and
import from it only what is needed, when it is needed.

PYTEST_DONT_REWRITE: see the docstring of vccl.
"""
