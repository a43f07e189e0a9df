"""Draws plans of one fault from seeds, for places to which a script is known to come."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence

from .plans import Struck
from .rules import LINK_KINDS, PHASES, Rule, Rules

# What each kind is drawn with. A rank that is stopped or stalls goes on soon: what waits for it has to wait.
KINDS = {
    "kill": (),
    "segv": (),
    "abort": (),
    "exit": (3.0,),
    "raise": (),
    "stall": (0.05, 0.5),
    "stop": (0.05, 0.5),
    "slow": (2.0, 20.0),
    "corrupt": (1.0, 8.0),
    "nan": (),
    "oom": (),
    "sdc": (),
    "reset-link": (),
    "cut-link": (0.05, 0.2),
    "drop-link": (),
    "delay-link": (2.0, 20.0),
    "loss-link": (0.01, 0.05),
}
# Wrong numbers are what these are for.
DAMAGING = ("corrupt", "nan", "sdc")
# A program goes on after these, and need not know of them.
SURVIVED = ("reset-link", "delay-link", "loss-link")
_FOR_PHASES = ("kill", "segv", "abort", "exit", "raise", "stall", "stop", "oom", *LINK_KINDS)


def probe() -> Rules:
    """Returns a plan that notes where ranks come by, and changes nothing that a script computes."""
    shortest = 1e-9
    return Rules(
        (
            Rule("stall", shortest),
            *(Rule("stall", shortest, phase=phase) for phase in PHASES),
        )
    )


def plan_of(seed: int, places: Sequence[Struck], kinds: Sequence[str]) -> Rules:
    """Returns the plan of a seed: one fault at one of the places, which `probe()` has noted.

    The same seed, places and kinds give the same plan.
    """
    random_ = random.Random(seed)
    place = random_.choice(places)
    is_phase = place.place in PHASES
    possible = [kind for kind in kinds if not is_phase or kind in _FOR_PHASES]
    if place.place == "barrier":
        possible = [kind for kind in possible if kind not in ("corrupt", "nan")]
    kind = random_.choice(possible) if possible else "stall"
    amount = random_.choice(KINDS[kind]) if KINDS[kind] else 0.0
    if kind == "sdc":
        return Rules(
            (Rule(kind, rank=((place.rank, place.rank),), n=random_.randint(1, 20), at="after"),), seed
        )
    if kind in LINK_KINDS and place.place == "init":
        at = "after"  # before, there are no links
    else:
        at = "before" if kind in ("raise", "slow") else random_.choice(_moments(kind, place.place))
    earlier = collections.Counter(
        other.place for other in places if other.rank == place.rank and other.time <= place.time
    )
    rule = Rule(
        kind,
        amount,
        "RuntimeError" if kind == "raise" else "",
        rank=((place.rank, place.rank),),
        op="" if is_phase else place.place,
        phase=place.place if is_phase else "",
        n=max(1, earlier[place.place]),
        at=at,
    )
    return Rules((rule,), seed)


def _moments(kind: str, place: str) -> Sequence[str]:
    """Returns when a fault can strike at an operation or a phase."""
    if kind in ("corrupt", "nan"):
        return {"send": ["before"], "recv": ["after"]}.get(place, ["before", "after"])
    return ["before", "after"] if place in PHASES else ["before", "during", "after"]
