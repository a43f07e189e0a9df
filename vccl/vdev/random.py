"""Seeds the generators of random numbers of the cards, and saves and restores their states.

A card's generator is a seed and an offset, and nothing else: equal seeds give equal numbers on every card.
Its state is a uint8 CPU tensor of 16 bytes, which holds the seed and the offset as 64-bit integers. None of
these functions uses a card.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vccl import _C

from ._device import DeviceLike, index_of


def _generator(device: DeviceLike) -> torch.Generator:
    return _C.default_generator(index_of(device))


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """Returns the state of the card's default generator."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Sets the state of the card's default generator.

    Raises:
        RuntimeError: the state has another size, or an offset that is not a multiple of 4.
    """
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of the default generators of all cards."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the default generators of the cards, in the order of the cards."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current card's default generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generator of every card with the same seed."""
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current card's default generator from the system's entropy."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds every card's default generator with the same seed from the system's entropy."""
    if _C.device_count():
        manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    """Returns the seed of the current card's default generator."""
    return _generator(None).initial_seed()
