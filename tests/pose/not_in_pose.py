"""A pytest plugin that skips the tests that say nothing about cards that pose as CUDA, with a reason each."""

import pytest

_PATCH = "torch knows CUDA where a device and a backend from outside need a patch"
# By file, or by file and function.
REASONS: dict[str, str] = {
    "tests/device/test_fork.py::test_a_child_of_a_process_that_used_none": "set_device uses CUDA",
    "tests/device/test_import.py::test_import_without_autoload": "torch.cuda is always there",
    "tests/device/test_import.py::test_nothing_is_used_before_a_card_is": "torch.cuda starts earlier",
    "tests/device/test_device.py::test_visible_cards": "CUDA's properties do not have physical_index",
    "tests/device/test_device.py::test_properties": "CUDA's properties have other names",
    "tests/device/test_device.py::test_a_card_that_does_not_exist": "torch.cuda has its own words",
    "tests/device/test_device.py::test_dlpack": "torch refuses cards that are not current",
    "tests/device/test_memory.py::test_stats": "torch.cuda writes the summary",
    "tests/device/test_streams.py::test_current_stream": "a torch.cuda.Stream does not equal a torch.Stream",
    "tests/device/test_streams.py::test_stream_context_on_another_card": "torch.cuda's does not nest",
    "tests/device/test_streams.py::test_events_take_the_arguments_of_cuda": "CUDA's takes no device",
    "tests/device/test_serialization.py::test_metadata_of_tensors": "torch has none for CUDA",
    "tests/device/test_compile.py::test_questions_about_cards_inside_of_a_graph": "Dynamo puts "
    "torch.cuda.device_count() into the graph, and raises",
    "tests/device/test_profiling.py::test_a_profile_of_the_cards_says_that_it_has_none": _PATCH,
    "tests/device/test_torch_holes_of_device.py": _PATCH,
    "tests/distributed/test_torch_holes_of_distributed.py": _PATCH,
    "tests/distributed/test_torch_patches.py": _PATCH,
    "tests/distributed/test_ddp.py::test_power_sgd": "PowerSGD waits for CUDA whatever the tensors are on; "
    "tests/pose/test_nccl.py has it for cards",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of REASONS, and ends the run if REASONS names a test that its file does not have."""
    functions = {item.nodeid.split("[")[0] for item in items}
    collected = functions | {name.split("::")[0] for name in functions}
    missing = [name for name in REASONS if name.split("::")[0] in collected and name not in collected]
    if missing:
        raise pytest.UsageError(f"{__file__} names tests that do not exist: {', '.join(missing)}")
    for item in items:
        function = item.nodeid.split("[")[0]
        reason = REASONS.get(function) or REASONS.get(function.split("::")[0])
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
