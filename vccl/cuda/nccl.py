"""``ProcessGroupNCCL``, made of vccl's process group, and the backend ``nccl``."""

import copy
import ctypes
import datetime
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from vccl import _C
from vccl._C import ProcessGroupVccl
from vccl.cuda import gloo, nccl_variables

logger = logging.getLogger(__name__)

# The version that torch.cuda.nccl.version() tells.
VERSION = (2, 27, 5)
_TIMEOUT = datetime.timedelta(minutes=10)


# The compiled module reads these (transport/variables.hpp).
_READ_BY_TRANSPORT = {
    "NCCL_DEBUG",
    "NCCL_HOSTID",
    "NCCL_RAS_ADDR",
    "NCCL_SOCKET_IFNAME",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_NAN_CHECK",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_CPP_STACK",
}
_READ = _READ_BY_TRANSPORT | nccl_variables.READ


# What NCCL calls a number that nobody has set: NCCL_CONFIG_UNDEF_INT.
_UNSET = -(2**31)


class NCCLConfig:
    """The fields of ``ProcessGroupNCCL.Options.config``. They are kept, and change nothing here."""

    def __init__(self) -> None:
        self.blocking = _UNSET
        self.cga_cluster_size = _UNSET
        self.min_ctas = _UNSET
        self.max_ctas = _UNSET
        self.cta_policy = _UNSET
        self.net_name: str | None = None
        self.split_share = _UNSET
        self.traffic_class = _UNSET
        self.collnet_enable = _UNSET
        self.nvls_ctas = _UNSET
        self.comm_name: str | None = None
        self.unsafe_get_ptr = 0


class Options(ProcessGroupVccl.Options):
    """``ProcessGroupNCCL.Options``: vccl's options, with NCCL's fields besides."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(is_high_priority_stream)
        self._timeout = _TIMEOUT
        self._extras = NCCLConfig()
        # torch sets them for a group that it splits from another one. vccl finds the ranks by itself.
        self.split_from: Any = None
        self.split_color = 0

    def __copy__(self) -> "Options":
        made = Options(self.is_high_priority_stream)
        for name in _COPIED:
            setattr(made, name, getattr(self, name))
        made._extras = copy.copy(_config_of(self))
        return made

    def __deepcopy__(self, memo: Mapping[Any, Any]) -> "Options":
        return self.__copy__()


# The fields of options beside `is_high_priority_stream` and `config`.
_COPIED = (
    "_timeout",
    "blocking_wait",
    "group_name",
    "group_desc",
    "global_ranks_in_group",
    "split_from",
    "split_color",
)


def _config_of(options: ProcessGroupVccl.Options) -> NCCLConfig:
    """Returns ``options.config``, also of options that C++ has copied."""
    if options._extras is None:
        options._extras = NCCLConfig()
    return options._extras


def _set_config(options: ProcessGroupVccl.Options, config: NCCLConfig) -> None:
    options._extras = config


class _Type(type):
    """Makes ProcessGroupNCCL stand for vccl's class: C++ returns objects of that class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ProcessGroupVccl)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, ProcessGroupVccl)

    def __getattr__(cls, name: str) -> Any:
        return getattr(ProcessGroupVccl, name)

    def __call__(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        options: ProcessGroupVccl.Options | None = None,
        timeout: datetime.timedelta = _TIMEOUT,
    ) -> ProcessGroupVccl:
        from vccl.distributed import make_group

        if options is None:
            options = Options()
            options._timeout = timeout
        options._stands_for_nccl = True
        if options.blocking_wait and _C._is_strict(True):
            raise ValueError(
                f"ProcessGroupNCCL.Options has no blocking_wait: rank {rank} has set it. This is an error on "
                "GPUs. The cards could do it, and do with VCCL_STRICT=0; to run on GPUs, set "
                "TORCH_NCCL_BLOCKING_WAIT=1."
            )
        nccl_variables.apply(options)
        group = make_group(store, rank, size, options)
        _uid_of(group)
        if nccl_variables.asks_for_times():
            group._enable_timing()
        if isinstance(options, Options) and options.split_from is not None:
            options.split_from._count_split(options.group_name)
        return group


class ProcessGroupNCCL(metaclass=_Type):
    """Makes vccl's process group from NCCL's arguments. ``isinstance`` recognises every such group."""

    Options = Options
    NCCLConfig = NCCLConfig
    NCCL_CTA_POLICY_DEFAULT = 0
    NCCL_CTA_POLICY_EFFICIENCY = 1
    NCCL_CTA_POLICY_ZERO = 2


# The numbers of the groups of this process, by ProcessGroupVccl._id. A forked process goes on counting.
_uids: dict[str, int] = {}


def _uid_of(group: ProcessGroupVccl) -> int:
    """Returns the number of a group in this process, where the first group has 0."""
    return _uids.setdefault(group._id, len(_uids))


def _count_split_without_this_rank(group: ProcessGroupVccl, device: torch.device) -> None:
    """Counts a split of `group` into groups that this rank is in none of. torch calls this for NCCL."""
    group._count_split(f"without rank {group.rank()}, number {group.comm_split_count()}")


def _refuse_time_estimate(group: ProcessGroupVccl) -> NoReturn:
    raise NotImplementedError(
        "backend vccl does not estimate the time of collectives: NCCL alone knows the speed of its links"
    )


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """Returns a number that tells contents apart. torch logs it with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        content = tensor.detach().cpu().reshape(-1).view(torch.uint8)
        hashed.update(ctypes.string_at(content.data_ptr(), content.numel()))  # numpy may be missing
    return int.from_bytes(hashed.digest(), "little")


def _tell_ignored_variables() -> None:
    """Logs, once, which of NCCL's variables are set and change nothing."""
    nccls = {name for name in os.environ if name.startswith(("NCCL_", "TORCH_NCCL_"))}
    ignored = sorted(nccls - _READ)
    if ignored:
        logger.info(
            "vccl stands for NCCL and ignores %s. docs/environment.md lists what it reads.",
            ", ".join(ignored),
        )


def install() -> None:
    """Makes the backend ``nccl`` available to ``torch.distributed``."""
    from torch.distributed import distributed_c10d as c10d

    compiled: Any = torch._C
    compiled._nccl_version = lambda: VERSION[0] << 32 | VERSION[1] << 16 | VERSION[2]
    compiled._nccl_version_suffix = lambda: b""
    if not dist.is_available():
        return
    group: Any = ProcessGroupVccl
    group.Options.config = property(_config_of, _set_config)
    # torch asks NCCL's groups for these. vccl aborts group by group.
    group.uid = property(_uid_of)
    group._group_start = lambda self: None
    group._group_end = lambda self: None
    group.perform_nocolor_split = _count_split_without_this_rank
    # Peers map all memory of every card, so a pool's memory needs nothing more.
    group.register_mem_pool = lambda self, pool, symm=False: None
    group.deregister_mem_pool = lambda self, pool: None
    group.get_build_nccl_version = group.get_runtime_nccl_version = staticmethod(lambda: VERSION)
    group._start_time_estimate = group._end_time_estimate = _refuse_time_estimate
    modules: list[Any] = [dist, c10d, compiled._distributed_c10d]
    for module in modules:
        module.ProcessGroupNCCL = ProcessGroupNCCL
    from vccl.cuda import nccl_trace

    compiled._distributed_c10d._hash_tensors = _hash_tensors
    compiled._distributed_c10d._dump_nccl_trace = nccl_trace.dump_nccl_trace
    compiled._distributed_c10d._dump_nccl_trace_json = nccl_trace.dump_nccl_trace_json
    compiled._distributed_c10d._reset_fr_recording_nccl = nccl_trace.reset_recording
    c10d._NCCL_AVAILABLE = True
    gloo.install()
    c10d.default_pg_nccl_timeout = _TIMEOUT
    dist.constants.default_pg_nccl_timeout = _TIMEOUT
    _tell_ignored_variables()
