"""The error for a feature that only a GPU has."""

from collections.abc import Callable
from typing import NoReturn

from vccl._device_type import device_type

# What to do instead of sharing out the cores of a GPU.
CORES = "Use torch.set_num_threads(), or VDEV_PROFILE for the properties that a card shows."
# What to do instead of tuning operators.
TUNING = "The cards run the CPU's kernels, which cannot be tuned."


class NoGpuError(RuntimeError):
    """The program asked a virtual card for something that only a GPU can run."""

    def __init__(self, what: str, advice: str) -> None:
        """Names what was asked for, as the subject of a sentence, and says what to do.

        Args:
            what: such as "The Triton kernel 'add'".
            advice: a whole sentence.
        """
        super().__init__(
            f"{what} needs a GPU, and the {device_type()} cards are virtual: they have none. {advice}"
        )


def refusal(name: str, advice: str, owner: str) -> Callable[..., NoReturn]:
    """Returns a function that raises NoGpuError, in the place of the name in the module ``owner``."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NoGpuError(f"{owner}.{name}", advice)

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


class _RefusedType(type):
    # inspect asks __getattr__() for names that the class has, too, so these begin with "_".
    _what: str
    _advice: str

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise NoGpuError(cls._what, cls._advice)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):  # what Python and its tools look for in any class
            raise AttributeError(name)
        raise NoGpuError(f"{cls._what}.{name}", cls._advice)


def refused_class(name: str, advice: str, owner: str) -> type:
    """Returns a class that raises NoGpuError when it is called, and for every name in it."""
    return _RefusedType(name, (), {"_what": f"{owner}.{name}", "_advice": advice, "__module__": owner})
