"""The command ``vrun``."""


def command() -> None:
    """Runs the command line of this process, and ends it."""
    from vccl.launch import vrun

    vrun.command()
