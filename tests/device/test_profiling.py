"""torch's profilers on a card: what they record without a tracer of the device."""

import torch


def test_ranges_have_times_of_the_card():
    x = torch.ones(200, 200, device="vdev")
    with torch.autograd.profiler.profile(use_device="vdev", use_kineto=False) as profile:
        y = x @ x
        y.sum().item()
    events = {event.key: event for event in profile.key_averages()}
    product = events["aten::mm"]
    assert product.cpu_time_total > 0 and product.device_time_total > 0
    # No range of the host or of the card ends before it begins.
    assert all(event.cpu_time_total >= 0 and event.device_time_total >= 0 for event in events.values())


def test_a_profile_of_the_host_alone_shows_the_operators():
    x = torch.ones(8, device="vdev")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (x + x).cpu()
    assert "aten::add" in {event.key for event in profile.key_averages()}


PROFILE = """
import warnings, torch
from torch.profiler import ProfilerActivity, profile
def told(use, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with profile(**options) as result:
            use()
    assert result.key_averages()
    return [str(w.message) for w in caught if "no activity of vdev" in str(w.message)]
on_cpu = lambda: torch.ones(8) + 1
on_card = lambda: torch.ones(8, device="vdev") + 1
"""


def test_a_profile_of_the_cards_says_that_it_has_none(run_python):
    run_python(
        PROFILE + "assert told(on_cpu) == []  # no card was used, though the default asks for them\n"
        "assert told(on_card, activities=[ProfilerActivity.CPU]) == []\n"
        "assert len(told(on_card, activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])) == 1\n"
        "assert told(on_card) == []  # once a process\n"
    )
    run_python(PROFILE + "assert len(told(on_card)) == 1\n")


def test_a_profile_of_the_card_without_a_tracer_says_nothing(run_python):
    run_python(
        PROFILE + "warnings.simplefilter('error')\n"
        "with torch.autograd.profiler.profile(use_device='vdev', use_kineto=False): on_card()\n"
    )
