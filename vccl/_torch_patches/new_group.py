"""The function of torch that makes every process group. Several patches wrap it."""

ATTRIBUTE = "torch.distributed.distributed_c10d:_new_process_group_helper"
PARAMETERS = (
    "(group_size, group_rank, global_ranks_in_group, backend, store, group_name, backend_options=..., "
    "timeout=..., pg_tag=..., device_id=..., group_desc=...)"
)
