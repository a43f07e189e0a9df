"""Finds the options of vrun that matter before torch is imported.

vrun's parser is torchrun's with more options, and torchrun takes a second to import. To find where the
script begins, one has to know only which options take no value: all others take one. dataclasses are
too slow to import for the client.
"""

WITHOUT_VALUE = {
    *("--keep", "--stop", "--no-preload", "--as-cuda", "--sanitize", "--prefix", "--no-prefix", "--verbose"),
    "--netns",
    *("--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank", "-h", "--help"),
    "--version",
}


class OwnOptions:
    def __init__(self) -> None:
        self.keep = False
        self.stop = False
        self.as_cuda = False
        self.sanitize = False
        self.module = False
        self.preload: list[str] = []
        self.script: str | None = None


def find(arguments: list[str]) -> OwnOptions:
    """Reads the options in front of the script. What is wrong with them is left to vrun's own parser."""
    found = OwnOptions()
    at = 0
    while at < len(arguments):
        option, equals, value = arguments[at].partition("=")
        if not option.startswith("-") or option == "-":
            found.script = arguments[at]
            break
        # torchrun accepts --no_python for --no-python, and so on.
        option = option.replace("_", "-")
        takes_value = option not in WITHOUT_VALUE
        if takes_value and not equals and (option.startswith("--") or len(option) == 2):
            at += 1
            value = arguments[at] if at < len(arguments) else ""
        found.keep |= option == "--keep"
        found.stop |= option == "--stop"
        found.as_cuda |= option == "--as-cuda"
        found.sanitize |= option == "--sanitize"
        found.module |= option in ("-m", "--module")
        if option == "--preload":
            found.preload.append(value)
        at += 1
    return found
