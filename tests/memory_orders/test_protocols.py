"""The protocols of the transport and the runtime hold under C++'s memory model, and weaker orders are found.

On x86 most weaker orders would do, and no test there could tell.
"""

import re
from pathlib import Path

import pytest
from explorer import Found, explore
from protocols import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent.parent

by_name = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
WEAKENED = [
    pytest.param(protocol, access, order, id=f"{protocol.name}-{access}-{order.name.lower()}")
    for protocol in PROTOCOLS
    for access, known in protocol.accesses.items()
    for order in known.too_weak
]
BROKEN = [
    pytest.param(protocol, how, id=f"{protocol.name}-{how.replace(' ', '_')}")
    for protocol in PROTOCOLS
    for how in protocol.broken
]


@by_name
def test_the_protocol_holds(protocol):
    outcome = explore(protocol.threads(protocol.orders))
    assert outcome.ends > 0


@pytest.mark.parametrize(("protocol", "access", "order"), WEAKENED)
def test_a_weaker_order_is_found(protocol, access, order):
    with pytest.raises(Found):
        explore(protocol.threads(protocol.orders | {access: order}))


@pytest.mark.parametrize(("protocol", "how"), BROKEN)
def test_a_broken_protocol_is_found(protocol, how):
    with pytest.raises(Found):
        explore(protocol.broken[how](protocol.orders))


@by_name
def test_the_code_is_what_was_modelled(protocol):
    for path, lines in protocol.code.items():
        code = re.sub(r"\s+", " ", (ROOT / path).read_text())
        for line in lines:
            assert line in code, f"{path} has no {line!r}: does the model {protocol.name} still describe it?"
