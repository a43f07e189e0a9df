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
