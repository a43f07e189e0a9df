"""The options of vrun about the links between emulated hosts."""

import argparse
import dataclasses
import re

BANDWIDTHS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}  # in bits a second
LATENCIES = {"us": 1, "ms": 10**3, "s": 10**6}  # in microseconds
# tc counts the bytes that may pass at once in 32 bits of ticks, and a fast link needs more of them.
_MOST_BITS = 10**12


@dataclasses.dataclass(frozen=True)
class Link:
    """The link of a host to the others. None means that nothing limits it."""

    bandwidth: int | None = None  # bits a second, for each direction
    latency: int | None = None  # microseconds from one host to another
    loss: float | None = None  # percent of the packets that a host sends

    @property
    def emulated(self) -> bool:
        """Whether the kernel's network emulator is needed."""
        return self.latency is not None or self.loss is not None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --netns and the options of links."""
    parser.add_argument(
        "--netns", action="store_true", help="give each of the H hosts a network namespace (needs root)"
    )
    parser.add_argument(
        "--link-bandwidth", type=bandwidth, metavar="B", help="of a host's link, each way: 1gbit, 500mbit"
    )
    parser.add_argument(
        "--link-latency", type=latency, metavar="T", help="from one host to another: 1ms, 50us"
    )
    parser.add_argument("--link-loss", type=loss, metavar="P", help="packets that get lost: 0.1%%")


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends with an error of the parser if the options do not go together. Sets ``args.link``."""
    given = [
        name for name in ("link_bandwidth", "link_latency", "link_loss") if getattr(args, name) is not None
    ]
    if given and not args.netns:
        parser.error(f"--{given[0].replace('_', '-')} needs --netns: without it, hosts share one network")
    if args.netns and args.hosts < 2:
        parser.error("--netns needs --hosts with 2 or more hosts, which it gives a network each")
    args.link = Link(args.link_bandwidth, args.link_latency, args.link_loss)


def bandwidth(text: str) -> int:
    """Reads a bandwidth, and returns bits a second. For argparse."""
    bits = _number_with_unit(text, BANDWIDTHS)
    if bits is None or not 1000 <= bits <= _MOST_BITS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bandwidth: give a number with the unit kbit, mbit or gbit, from 1kbit to "
            "1000gbit (bits a second: 1gbit is 125 million bytes a second)"
        )
    return round(bits)


def latency(text: str) -> int:
    """Reads a time, and returns microseconds. For argparse."""
    time = _number_with_unit(text, LATENCIES)
    if time is None or not 1 <= time <= 60 * 10**6:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no latency: give a number from 1us to 60s, with the unit us, ms or s"
        )
    return round(time)


def loss(text: str) -> float:
    """Reads a share in percent. For argparse."""
    share = _number_with_unit(text, {"%": 1})
    if share is None or not 0 < share < 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no loss: give a share of the packets above 0% and below 100%, such as 0.1%"
        )
    return share


def _number_with_unit(text: str, units: dict[str, int]) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z%]+)", text.strip().lower(), re.ASCII)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None
