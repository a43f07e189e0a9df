"""Lets DTensor shard the attention that the cards and the CPU run.

Torch's ``scaled_dot_product_attention`` ends in another operator on each device. DTensor knows how to shard
those of CUDA, but not ``_scaled_dot_product_flash_attention_for_cpu``, which the cards run too: DTensor
takes it apart, which fails for causal attention and for the backward, and gathers the heads first. This
patch registers the missing strategies, for vdev and the CPU alike. Attention treats every batch and every
head on its own, so tensors that are sharded in one of these dimensions need no communication.

``import torch`` does not import torch.distributed.tensor, which takes half a second. The strategies are
registered when somebody else has imported it.
"""

from typing import TYPE_CHECKING, Any

import torch

from vccl import _torch_version
from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema, OpStrategy
    from torch.distributed.tensor.placement_types import Placement

PATCH = Patch(
    __name__,
    without="causal `scaled_dot_product_attention` of DTensors on vdev and the CPU, and the backward of any, "
    'raise "does not have a sharding strategy registered"',
    until="DTensor knows how to shard `_scaled_dot_product_flash_attention_for_cpu`",
    after_import_of="torch.distributed.tensor",
)
PATCH.relies_on(
    "torch.distributed.tensor._sharding_prop:ShardingPropagator.register_op_strategy",
    "(self, op_overload, strategy_func, schema_info=...)",
)
# The name of the parameter that takes is_valid() below.
_FILTER = "is_valid_strategy_cb" if _torch_version.is_one_of("<2.14") else "full_mesh_strategy_filter"
PATCH.relies_on(
    "torch.distributed.tensor._ops.utils:expand_to_full_mesh_op_strategy",
    "(mesh, op_schema, single_mesh_dim_strategies, *, output_tensor_meta=..., input_index=..., "
    "inplace_op=..., allow_unbacked_sharding=..., allow_uneven_sharding=..., "
    f"{_FILTER}=..., different_mesh_args=...)",
)

_BATCH, _HEADS = 0, 1  # dimensions of query, key and value, and of a mask of four dimensions


@PATCH.action
def _register_strategies() -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    aten = torch.ops.aten
    propagator = DTensor._op_dispatcher.sharding_propagator
    # Without this key a result that was worked out for a call without a mask would serve a call with one.
    depends_on_mask = RuntimeSchemaInfo(static_kwargkey=["attn_mask"])
    for op, strategy in (
        (aten._scaled_dot_product_flash_attention_for_cpu.default, _forward),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, _backward),
    ):
        propagator.register_op_strategy(op, strategy, depends_on_mask)


def _forward(schema: "OpSchema") -> "OpStrategy":
    return _strategy(schema, inputs=3, outputs=2, query=0)  # query, key, value -> output, logsumexp


def _backward(schema: "OpSchema") -> "OpStrategy":
    # grad_output, query, key, value, output, logsumexp -> grad_query, grad_key, grad_value
    return _strategy(schema, inputs=6, outputs=3, query=1)


def _strategy(schema: "OpSchema", inputs: int, outputs: int, query: int) -> "OpStrategy":
    """All tensors but the mask are whole, or sharded by batch, or sharded by head, in each mesh dimension.

    Raises:
        NotImplementedError: the mask's placements fit none of these.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    masks = [mask.strategies[0].output_spec for mask in schema.kwargs_strategy]
    choices: list[list[Placement | None]] = []
    for placement in (Replicate(), Shard(_HEADS), Shard(_BATCH)):
        placements: list[Placement | None] = [placement] * (outputs + inputs)
        placements += [_placement_of_mask(mask, placement) for mask in masks]
        choices.append(placements)

    def is_valid(specs: "list[DTensorSpec]", results: object) -> bool:
        # DTensor does not redistribute keyword arguments: the mask has to lie as the others need it.
        wanted = specs[inputs:]
        mask_fits = all(a.placements == b.placements for a, b in zip(masks, wanted, strict=True))
        return mask_fits and _heads_stay_together(specs[query], specs[query + 1])

    mesh = schema.get_mesh_from_args()
    filtered: dict[str, Any] = {_FILTER: is_valid}
    try:
        strategy = expand_to_full_mesh_op_strategy(mesh, schema, choices, input_index=outputs, **filtered)
    except RuntimeError as error:  # which torch raises since 2.14 where no strategy is left
        if "no valid sharding strategy" not in str(error):
            raise
        raise _refusal(masks[0]) from None
    if not strategy.strategies:
        raise _refusal(masks[0])
    return strategy


def _refusal(mask: "DTensorSpec") -> NotImplementedError:
    return NotImplementedError(
        f"scaled_dot_product_attention of DTensors cannot use an attn_mask of shape {tuple(mask.shape)} with "
        f"placements {mask.placements}. Redistribute the mask: it must have the placement of query, key and "
        "value where that is Shard(0) or Shard(1) and the mask has more than one batch or head, and "
        "Replicate() otherwise."
    )


def _placement_of_mask(mask: "DTensorSpec", placement: "Placement") -> "Placement":
    """The placement of a mask for queries with ``placement``; a mask of one batch or head serves all."""
    from torch.distributed.tensor import Replicate, Shard

    if isinstance(placement, Shard) and mask.ndim == 4 and mask.shape[placement.dim] > 1:
        return placement
    return Replicate()


def _heads_stay_together(query: "DTensorSpec", key: "DTensorSpec") -> bool:
    """Whether each rank has the keys that its queries need. Several query heads may share one key head."""
    parts = 1
    for size, placement in zip(query.mesh.shape, query.placements, strict=True):
        parts *= size if placement.is_shard(_HEADS) else 1
    heads, key_heads = query.shape[_HEADS], key.shape[_HEADS]
    return heads == key_heads or (heads % parts == 0 and key_heads % parts == 0)
