"""Reads records of communication (VCCL_RECORD, ``vccl.record``), and runs them again without the model.

``python -m vccl.replay DIR`` is the command (vccl/replay/cli.py, docs/inside/record.md). ``read_job`` reads a
record for other programs.
"""

from vccl.replay.files import Call, Group, Job, Operation, RankRecord, RecordError, Tensor, read_job

__all__ = ["Call", "Group", "Job", "Operation", "RankRecord", "RecordError", "Tensor", "read_job"]
