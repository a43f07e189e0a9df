"""The error for what only a GPU can run."""

from vccl._device_type import device_type


class NoGpuError(RuntimeError):
    """The program asked a virtual card for what only a GPU can run."""

    def __init__(self, what: str, advice: str) -> None:
        """Names what was asked for, as the subject of a sentence, and says what to do.

        Args:
            what: such as "The Triton kernel 'add'".
            advice: a whole sentence.
        """
        super().__init__(
            f"{what} needs a GPU, and the {device_type()} cards are virtual: they have none. {advice}"
        )
