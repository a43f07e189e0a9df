"""What is changed in a graph before code is generated for it."""

from __future__ import annotations

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch._inductor.utils import parallel_num_threads

from vccl._inductor import captured_kernels, card_operations, card_scheduling, card_wrapper
from vccl._inductor.captured_kernels import is_cpu_scalar, is_on_card
from vccl._torch_patches.device import fake_convolution, inductor
from vccl._version import VERSION


class MoveScalarsToCards(CustomGraphModulePass):
    """Copies CPU tensors of dimension 0 to the card whose tensors they are combined with.

    Inductor takes the result of such an operator to be where its first argument is, unless another one is on
    a GPU that it knows, and would make the result on the CPU. The generated code knows these copies by their
    ``non_blocking`` (`captured_kernels.move_to_card`).
    """

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        moved: dict[tuple[torch.fx.Node, torch.device], torch.fx.Node] = {}
        for node in list(gm.graph.nodes):
            result = node.meta.get("val")
            if not is_on_card(result) or node.target is torch.ops.prims.device_put.default:
                continue
            for scalar in node.all_input_nodes:
                if not is_cpu_scalar(scalar.meta.get("val")):
                    continue
                place = (scalar, result.device)
                if place not in moved:
                    with gm.graph.inserting_before(node):
                        moved[place] = _copy_to(gm.graph, scalar, result.device)
                node.replace_input_with(scalar, moved[place])

    def uuid(self) -> tuple[str, bytes, int]:
        """Identifies how code is generated. Inductor's cache on disk keeps apart what differs in this.

        A kernel has buffers for as many threads as the process that generated it, and runs on as many as the
        process that calls it. Inductor (2.13) tells these numbers apart only for graphs with CPU tensors.
        """
        modules = (
            captured_kernels,
            card_operations,
            card_scheduling,
            card_wrapper,
            fake_convolution,
            inductor,
        )
        files = get_hash_for_files((__file__, *(str(module.__file__) for module in modules)))
        return VERSION, files, parallel_num_threads()


def _copy_to(graph: torch.fx.Graph, scalar: torch.fx.Node, device: torch.device) -> torch.fx.Node:
    copy = graph.call_function(torch.ops.prims.device_put.default, (scalar, device, True))
    value = scalar.meta["val"]
    with value.fake_mode:
        copy.meta["val"] = torch.empty_like(value, device=device)
    return copy
