"""Finds the libraries that vccl loads when it first needs them: libzmq and libcrypto."""

import functools
import importlib.util
import pathlib
import sys


@functools.cache
def use_found_libraries() -> None:
    """Tells vccl where the libraries are. Call this before anything that talks to another host."""
    from vccl import _C

    library = _find_libzmq()
    if library is not None:
        _C._set_zmq_library_path(str(library))
    crypto = find_libcrypto()
    if crypto is not None:
        _C._set_crypto_library_path(str(crypto))


def find_libcrypto(prefix: str = sys.base_prefix) -> pathlib.Path | None:
    """Returns the libcrypto that lies beside Python, where conda has it, or None if there is none."""
    found = sorted(pathlib.Path(prefix, "lib").glob("libcrypto.so.*"))
    return found[-1] if found else None


def _find_libzmq() -> pathlib.Path | None:
    """Returns the libzmq that the pyzmq wheel ships, or None if it ships none. Does not import zmq."""
    spec = importlib.util.find_spec("zmq")
    if spec is None or spec.origin is None:
        return None
    package = pathlib.Path(spec.origin).parent
    # Wheels repaired by auditwheel keep libraries in <distribution>.libs beside the package, others in it.
    for folder in (package.parent / "pyzmq.libs", package / ".libs", package):
        found = sorted(folder.glob("libzmq*.so*"))
        if found:
            return found[0]
    return None
