"""Exports a record as command lines of nccl-tests: one for each collective, size and group's size."""

import collections

from vccl.replay.files import Call, Job
from vccl.replay.matching import columns, shared_groups
from vccl.replay.summary import bytes_of

# Our names, and the programs of nccl-tests that measure them.
_PROGRAMS = (
    ("all_reduce", "all_reduce_perf"), ("all_gather", "all_gather_perf"),
    ("reduce_scatter", "reduce_scatter_perf"), ("reduce", "reduce_perf"), ("broadcast", "broadcast_perf"),
    ("all_to_all", "alltoall_perf"), ("gather", "gather_perf"), ("scatter", "scatter_perf"),
)  # fmt: skip
_DTYPES = {
    "Char": "int8", "Byte": "uint8", "Int": "int32", "UInt32": "uint32", "Long": "int64", "UInt64": "uint64",
    "Half": "half", "Float": "float", "Double": "double", "BFloat16": "bfloat16", "Float8_e4m3fn": "f8e4m3",
    "Float8_e5m2": "f8e5m2",
}  # fmt: skip
_REDUCTIONS = {
    "SUM": "sum",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "AVG": "avg",
    "PREMUL_SUM": "mulsum",
}


def lines(job: Job) -> list[str]:
    """Returns the lines of a shell script, the sizes that were moved most often first.

    What nccl-tests cannot measure (other dtypes, uneven chunks, barriers) is in comments.
    """
    counts: collections.Counter[tuple[str, int, str, str, int, int]] = collections.Counter()
    others: collections.Counter[str] = collections.Counter()
    for group in shared_groups(job):
        size = len(group.key.ranks)
        for operations in columns(job, group):
            # Of a gather, the root has the longest buffer.
            call = max((operation.call for operation in operations.values()), key=bytes_of)
            if command := _command(call, size):
                counts[command] += 1
            else:
                others[f"{call} of {size} ranks"] += 1
    messages = sum(
        op.call.sends for record in job.ranks.values() for op in record.operations if not op.call.batch
    )
    found = [
        "#!/bin/sh",
        f"# Collectives of {job.directory}, for nccl-tests. Each line says how often it was called.",
    ]
    for (program, size, dtype, reduction, root, ranks), count in counts.most_common():
        options = f"-b {size} -e {size} -d {dtype}"
        options += f" -o {reduction}" if reduction else ""
        options += f" -r {root}" if root >= 0 else ""
        found.append(f"mpirun -np {ranks} {program} {options} -g 1  # {count} times")
    found += [f"# {count} times: {text}, which nccl-tests does not measure" for text, count in others.items()]
    if messages:
        found.append(f"# {messages} messages, which sendrecv_perf measures in a ring only")
    return found


def _command(call: Call, ranks: int) -> tuple[str, int, str, str, int, int] | None:
    program = next((program for name, program in _PROGRAMS if call.name.startswith(name)), None)
    tensors = call.inputs or call.outputs
    dtypes = {tensor.dtype for tensor in tensors}
    uneven = bool(call.input_splits or call.output_splits) or call.cut
    if program is None or uneven or len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        return None
    reduction = _REDUCTIONS.get(call.reduction, "")
    if call.reduction and not reduction:
        return None
    return program, bytes_of(call), _DTYPES[dtypes.pop()], reduction, call.root, ranks
