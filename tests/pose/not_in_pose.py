"""A pytest plugin that skips the tests that say nothing about cards that pose as CUDA, with a reason each."""

import pytest

_PATCH = "torch knows CUDA where a device and a backend from outside need a patch"
_STRATEGY = "DTensor has rules of its own for CUDA's attention; test_nccl has what they lead to"
_GRADIENT = "torch's formula of the gradient has single precision for CUDA, and double for other devices"
_NAMES = "operations have NCCL's names in profiles; test_nccl and the conformance run look for those"
_DEVICE = "device/patches/test_torch_holes_of_device.py::test_hole_of_"
_WITHOUT = "distributed/patches/test_torch_holes_of_distributed.py::"
_DISTRIBUTED = f"{_WITHOUT}test_hole_of_"
_PATCHES = "distributed/patches/test_torch_patches.py::"
_ATTENTION = "distributed/parallelism/test_attention_parallelism.py::test_attention_"
# By file in `tests`, or by file and function, with or without parameters.
REASONS: dict[str, str] = {
    "device/sharing/test_fork.py::test_a_child_of_a_process_that_used_none": "set_device uses CUDA",
    "device/cards/test_import.py::test_import_without_autoload": "torch.cuda is always there",
    "device/cards/test_import.py::test_nothing_is_used_before_a_card_is": "torch.cuda starts earlier",
    "device/cards/test_device.py::test_visible_cards": "CUDA's properties do not have physical_index",
    "device/cards/test_device.py::test_properties": "CUDA's properties have other names",
    "device/cards/test_device.py::test_a_card_that_does_not_exist": "torch.cuda has its own words",
    "device/cards/test_device.py::test_what_is_no_device": "torch.cuda has its own words",
    "device/streams/test_external_streams.py::test_what_is_no_stream": "torch.cuda has its own words",
    "device/cards/test_device.py::test_dlpack": "torch refuses cards that are not current",
    "device/graphs/test_compile.py::test_extensions_with_cuda_sources_are_refused": "they are compiled; "
    "habits_cuda_extensions.py",
    "device/memory/test_memory.py::test_stats": "torch.cuda writes the summary",
    "device/memory/test_memory_figures.py::test_the_peak_of_an_operator_is_its_results[attention]": "CUDA's "
    "operator has further results",
    "device/memory/test_memory_history.py::test_running_out_of_memory_is_observed": "torch.cuda.memory has "
    "no such function; habits_tensors.py has torch._C's",
    "device/memory/test_memory_pools.py::test_every_name_of_cudas_memory_module_is_here": "they are CUDA's",
    "device/memory/test_memory_pools.py::test_what_is_refused": "torch.cuda has its own names and errors",
    "device/operators/test_opinfo.py::test_same_bits_as_cpu[renorm-float32]": _GRADIENT,
    "device/operators/test_opinfo.py::test_same_bits_as_cpu[renorm-complex64]": _GRADIENT,
    "device/graphs/test_graphs.py::test_the_stream_is_restored_after_an_error": "torch.cuda.graph does not",
    "device/streams/test_streams.py::test_current_stream": "a torch.cuda.Stream equals no torch.Stream",
    "device/streams/test_streams.py::test_stream_context_on_another_card": "torch.cuda's does not nest",
    "device/streams/test_streams.py::test_events_take_the_arguments_of_cuda": "CUDA's takes no device",
    "device/tensors/test_serialization.py::test_metadata_of_tensors": "torch has none for CUDA",
    "device/graphs/test_compile.py::test_questions_about_cards_inside_of_a_graph": "Dynamo puts "
    "torch.cuda.device_count() into the graph, and raises",
    "pose/test_device_page.py": "it compares torch.vdev; test_names.py has what is in pose",
    f"{_DEVICE}dlpack_device": _PATCH,
    f"{_DEVICE}process_sharing": _PATCH,
    f"{_DEVICE}flex_attention": _PATCH,
    f"{_DISTRIBUTED}capabilities": _PATCH,
    f"{_DISTRIBUTED}timeouts": _PATCH,
    f"{_DISTRIBUTED}shrink_group": _PATCH,
    f"{_DISTRIBUTED}ddp": _PATCH,
    f"{_WITHOUT}test_set_pg_timeout_without_its_patch": _PATCH,
    f"{_WITHOUT}test_shrink_groups_of_cards_alone_without_the_patch": _PATCH,
    f"{_PATCHES}test_sequence_numbers[None]": _PATCH,
    f"{_PATCHES}test_sequence_numbers_that_torch_sets[None]": _PATCH,
    f"{_PATCHES}test_capabilities": "gloo serves cards; test_nccl has it",
    f"{_PATCHES}test_set_pg_timeout[vccl]": _PATCH,
    f"{_PATCHES}test_set_pg_timeout[None]": _PATCH,
    f"{_PATCHES}test_ddp_of_gloo": "with CUDA, torch leaves the check of bfloat16 to gloo",
    f"{_PATCHES}test_groups_of_another_make": "such groups have CUDA among their devices",
    f"{_ATTENTION}of_uneven_heads[cuda]": _STRATEGY,
    f"{_ATTENTION}with_a_mask_that_does_not_fit[cuda]": _STRATEGY,
    "distributed/collectives/test_collective_forms.py::test_profiler_gets_sizes": _NAMES,
    "distributed/profiling/test_profiler.py": _NAMES,
    "distributed/collectives/test_matrix.py::test_the_page_says_what_was_found": "the page says vdev",
    "distributed/parallelism/test_ddp.py::test_power_sgd": "PowerSGD waits for CUDA whatever the tensors are "
    "on; tests/pose/test_nccl.py has it for cards",
}


def names_of(item: pytest.Item) -> list[str]:
    """Returns the names under which REASONS may have a test: its own, its function's and its file's."""
    name = item.nodeid.removeprefix("tests/")
    return [name, name.split("[")[0], name.split("::")[0]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of REASONS, and ends the run if REASONS names a test that its file does not have."""
    collected = {part for item in items for part in names_of(item)}
    missing = [name for name in REASONS if name.split("::")[0] in collected and name not in collected]
    if missing:
        raise pytest.UsageError(f"{__file__} names tests that do not exist: {', '.join(missing)}")
    for item in items:
        reason = next(filter(None, map(REASONS.get, names_of(item))), None)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
