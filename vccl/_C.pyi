"""The compiled module: the runtime of the cards, and the process group.

The files in csrc_device/torch/python and csrc_pg/python bind its functions. Every error of the runtime is a
RuntimeError. A card is named by its index among those that the process sees.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ErrorType, Store, Work
from typing_extensions import Buffer, Self

torch_version: str
"""The version of torch that the module was compiled against, such as "2.13.0"."""
compiler: str
"""The name and version of the compiler that made the module, such as "GCC 13.2.0"."""

# ---- the device type of the cards

def _device_name() -> str:
    """Returns the type of the cards' torch.device: "vdev", or "cuda" with VDEV_POSE=cuda."""

def _elapsed_time(start: torch.Event, end: torch.Event, /) -> float:
    """Returns the milliseconds between two events, which may be of classes derived from torch.Event."""

def _resize_storage(storage: torch.UntypedStorage, bytes: int, /) -> None:
    """Gives a card's storage that many bytes, and keeps what fits of its contents."""

def _make_legacy_type(type: type, dtype: torch.dtype, sparse: bool, /) -> None:
    """Lets a tensor type of torch.cuda, such as torch.cuda.FloatTensor, make tensors on cards."""

# ---- cards

class DeviceProperties:
    """Describes one card."""

    @property
    def name(self) -> str:
        """The name of the card's model."""
    @property
    def total_memory(self) -> int:
        """The capacity of the card in bytes."""
    @property
    def multi_processor_count(self) -> int:
        """How many cores the card computes with."""
    @property
    def physical_index(self) -> int:
        """The index of the card before VDEV_VISIBLE_DEVICES selects some."""
    @property
    def profile(self) -> dict[str, int]:
        """The figures of VDEV_PROFILE, with the names of torch.cuda's properties; {} where it is not set."""

def device_count() -> int:
    """Returns how many cards this process sees. Uses none of them."""

def hide_cards() -> None:
    """Makes this process see no card from now on."""

def current_device() -> int:
    """Returns the card that is current in the calling thread."""

def set_device(index: int, /) -> None:
    """Makes a card the current one of the calling thread.

    Raises:
        RuntimeError: there is no such card.
    """

def exchange_device(index: int, /) -> int:
    """Makes a card the current one, and returns the one before it. Does nothing and returns -1 for -1.

    Raises:
        RuntimeError: there is no such card.
    """

def is_initialized() -> bool:
    """Returns whether any card was used in this process."""

def environment_was_read() -> bool:
    """Returns whether the VDEV_* variables have been read, which is done once in a process."""

def check_device(index: int, /) -> None:
    """Raises RuntimeError unless there is such a card."""

def is_device_used(index: int, /) -> bool:
    """Returns whether this process has used the card."""

def is_in_bad_fork() -> bool:
    """Returns whether this process is a forked child of one that had used a card."""

def lazy_init() -> None:
    """Raises RuntimeError in a forked child of a process that had used a card. Does nothing else."""

def shutdown() -> None:
    """Drops what is queued on the cards, and ends their threads within a bounded time."""

def drain_cards() -> None:
    """Blocks until what the program's streams hold has run, on every card that was used.

    Raises nothing that the tasks have raised. A stream that is captured is left out, and a call inside a task
    does nothing.
    """

def _stream_at(index: int, handle: int, /) -> int:
    """Returns the id of the card's stream with that native_handle. Raises RuntimeError if there is none."""

def _stream_priority(index: int, id: int, /) -> int:
    """Returns the priority of a stream, 0 or -1. Raises RuntimeError if the card does not have it."""

def synchronize(index: int, /) -> None:
    """Blocks until the tasks on all streams of a card have run.

    Raises:
        RuntimeError: a task failed, and the failure stands.
    """

def clear_errors() -> list[str]:
    """Waits for the program's streams, then forgets the failures that belong to no group.

    Returns their texts. Raises RuntimeError in a forked child of a process that had used a card.
    """

def _card_users(index: int, /) -> list[tuple[int, bool, str, int]]:
    """Returns (pid, whether that is of another pid namespace, command line, bytes) for each process that has
    memory of the physical card.

    Raises:
        RuntimeError: there is no such card.
    """

def device_properties(index: int, /) -> DeviceProperties:
    """Returns the properties of a card, and takes the card into use.

    Raises:
        RuntimeError: there is no such card, or this process is a forked child of one that had used a card.
    """

# ---- graphs

class Graph:
    """Captures the current stream of the current card, and replays what it has captured.

    Every method raises RuntimeError if it is called at the wrong time.
    """

    def __init__(self, keep_graph: bool = False) -> None: ...
    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        """Begins to capture the current stream, which must not be the default stream.

        Raises:
            RuntimeError: the graph has captured something, the stream is captured already, or an argument is
                wrong.
        """
    def capture_end(self) -> None:
        """Ends the capture.

        Raises:
            RuntimeError: a call in between was refused, or a stream was not joined back.
        """
    def instantiate(self) -> None:
        """Checks that ``keep_graph`` was given. A graph is ready when it is captured."""
    def replay(self) -> None:
        """Puts the graph on the current stream of its card, and does not wait."""
    def reset(self) -> None:
        """Drops what was captured, so that the graph can capture again. Queued replays still run."""
    def pool(self) -> tuple[int, int]:
        """Returns the name of the memory pool."""
    def enable_debug_mode(self) -> None:
        """Permits debug_dump()."""
    def debug_dump(self, path: str) -> None:
        """Writes the captured tasks and their order to a file, for Graphviz."""
    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets the next capture draw from a generator of a card that is not its default one."""
    def __len__(self) -> int:
        """Returns the number of captured tasks."""

def graph_pool_handle() -> tuple[int, int]:
    """Returns a name for a memory pool that several graphs can share."""

def is_current_stream_capturing() -> bool:
    """Returns whether the current stream of the current card is captured. Uses no card."""

def register_graphs() -> None:
    """Makes ``torch.accelerator.Graph`` work on cards. Call this once."""

# ---- memory

def set_memory_limit(index: int, bytes: int, /) -> None:
    """Lets the allocator of a card reserve no more than `bytes` bytes from now on."""

def _set_sync_debug_mode(mode: int, /) -> None:
    """Has calls that wait for a card allowed (0), warned of (1) or refused (2)."""

def _get_sync_debug_mode() -> int:
    """Returns the mode."""

def _record_memory_history(
    enabled: str | None,
    context: str | None,
    stacks: str,
    max_entries: int,
    clear_history: bool,
    skip_actions: list[str],
) -> None:
    """Records from now on what the allocators of all cards do. Raises RuntimeError for unknown words."""

def _is_memory_history_recorded() -> bool:
    """Returns whether anything is recorded."""

def _memory_snapshot(pool: int | None, traces: bool) -> dict[str, Any]:
    """Returns {"segments": [...], "device_traces": [...]} of all cards, as torch.cuda does."""

def _allocation_traceback(address: int) -> list[dict[str, Any]] | None:
    """Returns the frames of the allocation of the block at an address, and None if they are not known."""

def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Has `observer(card, asked, total, free)` called before OutOfMemoryError is raised, sizes in bytes."""

def _set_memory_metadata(metadata: str) -> None:
    """Sets a text that events of the history carry from now on."""

def _get_memory_metadata() -> str:
    """Returns that text."""

class MemPool:
    """Owns a memory pool of the current card, which goes with the object.

    Args:
        use_on_oom: whether allocations outside of the pool take its free blocks when there is no other room.
        no_split: whether its free blocks are handed out whole.
    """

    def __init__(self, use_on_oom: bool = False, no_split: bool = False) -> None: ...
    @property
    def device(self) -> int:
        """The index of the card."""
    @property
    def id(self) -> tuple[int, int]:
        """The name of the pool."""
    def use_count(self) -> int:
        """Returns how many use the pool."""

def _retain_pool(index: int, pool: int, /) -> None:
    """Makes the caller a user of a card's private pool."""

def _release_pool(index: int, pool: int, /) -> None:
    """Takes one user of a card's private pool away."""

def _begin_pool(index: int, pool: int, /) -> None:
    """Makes the calling thread's allocations on a card come from a private pool."""

def _end_pool(index: int, pool: int, /) -> None:
    """Ends the calling thread's last _begin_pool() of that pool.

    Raises:
        RuntimeError: there is none.
    """

def _raw_allocate(index: int, bytes: int, stream_id: int) -> int:
    """Returns the address of a block of a card's memory for a stream, and 0 for 0 bytes.

    Raises:
        torch.OutOfMemoryError: there is no room.
    """

def _raw_free(address: int) -> None:
    """Frees what _raw_allocate() returned, and does nothing for 0.

    Raises:
        RuntimeError: no live block of a card begins there.
    """

def _further_memory_stats(index: int) -> dict[str, Any]:
    """Returns scratch_bytes and reserved_bytes_by_private_pools, nested, and {} if the card was not used."""

def _pinned_memory_stats() -> dict[str, Any]:
    """Returns figures of pinned host memory: {name: {current, peak, allocated, freed}}, two times in
    microseconds, and two counts."""

def _reset_peak_pinned_memory_stats() -> None:
    """Sets the peaks of these figures to the current values."""

def _reset_accumulated_pinned_memory_stats() -> None:
    """Sets the totals and the counts of these figures to zero."""

def record_pinned_use(address: int, /) -> bool:
    """Keeps the pinned memory at `address` from other use until the current stream has come to this point.

    Returns whether the address lies in pinned memory.
    """

def _share_cpu_memory(min_bytes: int, /) -> None:
    """Makes CPU storages of at least `min_bytes` bytes lie in shared memory from now on.

    Raises:
        RuntimeError: the system refuses the memory.
    """

def _stop_sharing_cpu_memory() -> None:
    """Makes no further CPU storage lie in shared memory. Those that do stay there."""

def _is_sharing_cpu_memory() -> bool:
    """Returns whether large CPU storages get shared memory now."""

def _has_shared_cpu_memory() -> bool:
    """Returns whether this process has made shared memory, and was not forked since."""

def _is_shared_cpu_memory(address: int, /) -> bool:
    """Returns whether an address lies in shared memory that this process or its parent has made."""

def _cpu_memory_stats() -> dict[str, int]:
    """Returns live_bytes, live_blocks, cached_bytes and capacity of the CPU memory that is shared."""

def _empty_cpu_cache() -> None:
    """Returns the free part of the shared CPU memory to the system."""

# ---- memory that several processes use (vccl/_cards/process_sharing.py)

def _share_event(event_id: int, index: int, stream: int, /) -> None:
    """Lets other processes see an event that was last recorded on a stream, given by card and id.

    Raises:
        RuntimeError: the system refuses, or the stream is captured.
    """

def _event_handle(event_id: int, /) -> bytes:
    """Returns the bytes by which another process opens the event.

    Raises:
        RuntimeError: the event was not shared.
    """

def _open_event(event_id: int, handle: bytes, /) -> None:
    """Makes an event that of another process, which ``_event_handle`` has described.

    Raises:
        RuntimeError: the process has ended, or belongs to another machine, pid namespace or user.
    """

def _share_storage(storage: torch.UntypedStorage, /) -> tuple[bytes, int, int, int, int]:
    """Returns a message by which another process gets a storage over the same memory.

    Waits for what the program's streams on the card hold. The block is not used again before the message was
    received, and the receiver's storage is gone.

    Returns:
        The name of the owner's memory, the bytes, the offset in bytes, and the generation and slot of the
        block in the owner's ledger.

    Raises:
        RuntimeError: the memory was not handed out by the cards' allocator, a collective that should have
            written it has failed, or this is a forked child of a process that had used a card.
    """

def _receive_storage(message: tuple[bytes, int, int, int, int], /) -> torch.UntypedStorage:
    """Returns the storage that a message names. Each message is to be received once.

    Raises:
        RuntimeError: the owner has ended, belongs to another machine, user or pid namespace, or has a card
            that this process does not see; or the process is a forked child as above.
    """

def _decline_storage(message: tuple[bytes, int, int, int, int], /) -> None:
    """Receives a message without using the memory. Does nothing if the owner has ended."""

def _collect_shared_blocks() -> None:
    """Frees what the program has freed and no other process uses any more."""

# ---- streams and random numbers

def sleep(cycles: int, /) -> None:
    """Keeps the current stream busy for `cycles` nanoseconds, for tests. Returns at once."""

def launch_host_func(function: Callable[[], object], /) -> None:
    """Calls a function on the current stream. It is not called if a task before it has failed.

    An exception of the function becomes the stream's error, as a RuntimeError with the exception's text.
    """

def launch_kernel(
    name: str,
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
    function: Callable[[], object],
    /,
) -> None:
    """Calls a function as vdev::launch_kernel() of <vccl/device.hpp> calls a kernel.

    Raises:
        RuntimeError: the tensors are not strided tensors of one card. What the function raises becomes the
            stream's error, as a RuntimeError, or is raised here if the function runs at the call.
    """

def _add_to_type(type: type, name: str, value: object, /) -> None:
    """Makes `value` an attribute of a type that is written in C. The type keeps it until the process ends."""

def begin_kernel(card: int, name: str, uses: str, /, *tensors: torch.Tensor) -> bool:
    """Blocks until the current stream of a card has run everything. Compiled code calls it before a kernel.

    Returns False at once if that stream is captured. The kernel is not to run then (`capture_kernel()`).
    ``uses`` has a letter for each tensor: "r" if the kernel reads it only, and otherwise "w".

    Raises:
        RuntimeError: a task on the stream failed, or a failed collective should have written a tensor.
    """

def _is_captured(card: int, /) -> bool:
    """Returns whether the card's current stream is captured."""

def _borrow(tensor: torch.Tensor, /) -> torch.Tensor:
    """Returns a tensor of the same memory of a card that does not keep the memory."""

def end_kernel(card: int, name: str, /) -> None:
    """Shows the profiler what has run since begin_kernel(). Compiled code calls it after a kernel."""

def _launch_counts() -> dict[str, tuple[int, int]]:
    """Tells of each operator how many calls have become tasks, and how many have run at their calls."""

def _why_at_call(name: str, overload: str, /) -> str | None:
    """Returns why every call of an operator runs at its call, or None if calls can be tasks.

    Raises:
        RuntimeError: there is no such operator.
    """

def _forget_calls() -> None:
    """Forgets what results look like, so that each operator runs as if it were called for the first time."""

def default_generator(index: int, /) -> torch.Generator:
    """Returns the random number generator of a card."""

# ---- the process group

def _checks_content() -> bool:
    """Returns whether VCCL_CHECK asks for content. Raises for a value that is not allowed."""

def _content_of(tensor: torch.Tensor) -> int:
    """Returns a hash of a tensor's elements as an int64. All NaNs count as equal."""

class _Allocator:
    """An allocator of torch, such as the one for pools of symmetric memory."""

def _is_cards_allocator(allocator: object) -> bool:
    """Returns whether an object is the allocator of the cards."""

def _add_symmetric_pool(card: int, pool: int) -> None:
    """Makes the memory of a private pool symmetric."""

class ProcessGroupVccl(Backend):
    """Runs collectives over virtual cards and CPU tensors.

    ``torch.distributed.init_process_group("vccl")`` makes it.
    """

    class Options(Backend.Options):
        """Holds what init_process_group and new_group take as pg_options."""

        is_high_priority_stream: bool
        """Whether the stream of the communicator has high priority."""
        blocking_wait: bool
        """Whether wait(), and calls without a Work, block the host until the operation has ended."""
        group_desc: str
        """The description of the group. Errors call the group by it if it is not empty."""
        _abort_after_failure: bool
        """Whether a failed operation aborts the group."""
        _end_after_failure: bool
        """Whether a failed operation ends the process."""
        _stands_for_nccl: bool
        """Whether the group refuses what NCCL refuses, if VCCL_STRICT is unset."""
        _stands_for_gloo: bool
        """Whether the group serves the cards of a group of gloo."""
        _call: str
        """The call that makes the group: "new_group". Ranks that meet compare it."""
        _origin: str
        """The `_id` of a group that all ranks of the group are in, or an empty text."""

        def __init__(self, is_high_priority_stream: bool = False) -> None: ...
        _extras: Any
        """Fields that exist in Python alone, or None. Copies share the object."""

        def __copy__(self) -> Self: ...
        def __deepcopy__(self, memo: Mapping[Any, Any]) -> Self: ...

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: Options | None = None,
        relatives: Sequence[ProcessGroupVccl] = ...,
    ) -> None:
        """Meets the other ranks at `store`, and returns when all have come.

        Args:
            store: the store that all ranks of the group share.
            rank: this rank, from 0 to size - 1.
            size: how many ranks the group has.
            options: the timeout, the name, and what else a group is made with.
            relatives: other groups of this process. Ranks that they know to be dead are not waited for.

        Raises:
            DistBackendError: a rank did not come within the timeout, or could not join.
        """

    @property
    def options(self) -> Options:
        """The options that the group was made with."""
    @property
    def _group_name(self) -> str:
        """What errors call the group."""
    @property
    def _is_strict(self) -> bool:
        """Whether the group refuses what NCCL refuses (VCCL_STRICT)."""
    @property
    def _id(self) -> str:
        """A random text that the ranks of this group have in common."""
    def _agree_on_call(self, kind: str, call: str, lists: list[list[int]]) -> None:
        """Raises DistBackendError if this rank's n-th call of `kind` differs from that of other ranks."""
    def _ranks_text(self, ranks: list[int]) -> str:
        """Returns what texts call ranks of this group: "ranks 2, 3 (0, 1 of mesh_tp)"."""
    def _ended_ranks(self) -> dict[int, str]:
        """Returns the ranks that are known to have died or left, each with a text that says so."""
    def get_error(self) -> ErrorType:
        """Returns whether and how the group has failed."""
    def comm_split_count(self) -> int:
        """Returns how often the group was split."""
    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing. NCCL needs it of ranks that a new group is without, and vccl does not."""
    def _count_split(self, name: str) -> None:
        """Counts a split. Further calls with the same name count once."""
    def _is_initialized(self) -> bool:
        """Returns whether the group has a communicator of a card, or has sent messages between cards."""
    def _add_ephemeral_timeout(self, timeout: datetime.timedelta) -> None:
        """Makes the timeouts of operations longer by `timeout` until the next one has ended."""
    def _set_enable_nan_check(self, enable_nan_check: bool) -> None:
        """Says whether NaN and infinity in the inputs of later operations is an error.

        At first, VCCL_CHECK says it.
        """
    @staticmethod
    def _verify_work_timeout(work: Work, timeout: datetime.timedelta) -> bool:
        """Returns whether the operation of `work` was launched with this timeout.

        Raises:
            TypeError: it is a Work of another backend.
        """
    def _enable_timing(self) -> None:
        """Does what ``_enable_collectives_timing()`` of the process group does."""
    @property
    def _timing(self) -> bool:
        """Whether the program has asked for the times of operations."""
    def _cancel_coalescing(self) -> None:
        """Ends the coalescing that the calling thread has begun, and launches nothing."""
    def _keep(self, backend: Backend) -> None:
        """Keeps another backend until this group is destroyed, and then releases it without the GIL."""
    def _get_sequence_number_for_group(self) -> int:
        """Returns how many collectives the group has launched."""
    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: the number starts at 0."""
    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of later collectives that are given none."""
    def abort(self) -> None:
        """Frees whoever waits in this group, on every rank, and leaves the group failed."""
    def shutdown(self) -> None:
        """Lets what was launched end, and leaves the group."""

class _HostBarrier:
    """Makes processes of one host that map the same page wait for each other."""

    def __init__(self, page: Buffer, size: int) -> None:
        """Makes the barrier of one of `size` processes.

        Args:
            page: memory that all of them map. It holds zeros at first.
            size: the number of processes.

        Raises:
            ValueError: the memory is too small, or not aligned.
        """

    def wait(self, look: float, timeout: float) -> None:
        """Returns once every process has called it as often as this one. Signal handlers run meanwhile.

        Args:
            look: for how many seconds the others are looked for before this process sleeps.
            timeout: how many seconds it may take.

        Raises:
            TimeoutError: some process did not call it in time.
        """

def _shutdown_process_groups(patience: datetime.timedelta) -> None:
    """Shuts down every group of the process, and waits at most `patience` for each."""

def _algorithms() -> set[tuple[str, str]]:
    """Returns (name, collective) of every algorithm, with the names that VCCL_ALGO knows."""

def _capable_families(collective: str, bytes: int, ranks: int, mapped: bool, across: bool) -> list[str]:
    """Returns the families of algorithms that can do a collective.

    Args:
        collective: its name in VCCL_ALGO. An unknown name has no families.
        bytes: length of the longest buffer. It holds equal chunks of float32 elements.
        ranks: the number of ranks.
        mapped: whether the ranks of a host map each other's buffers. Otherwise the buffers are staged.
        across: whether the ranks are on several hosts.
    """

def _ras_address() -> str:
    """Returns VCCL_RAS_ADDR, or NCCL_RAS_ADDR in pose. Returns an empty text if neither is set.

    Raises:
        ValueError: the variable has a value that is not allowed.
    """

def _register_host_memory(data: int, size: int) -> int:
    """Makes memory of the host count as pinned, from the address `data` on.

    Returns:
        The number of CUDA's error: 712 if a part of it was registered before, 1 for an empty range, or 0.
    """

def _unregister_host_memory(data: int) -> int:
    """Ends that. Returns 713 for an address at which no registered range begins, or 0."""

def _is_strict(by_default: bool) -> bool:
    """Returns whether VCCL_STRICT asks groups to refuse what NCCL refuses.

    Args:
        by_default: the answer where the variable is unset.

    Raises:
        ValueError: the variable has a value that is not allowed.
    """

def _is_cpu_sharing_asked_for() -> bool:
    """Returns whether VCCL_SHARE_CPU asks for shared CPU memory.

    Raises:
        RuntimeError: the variable has a value that is not allowed.
    """

def _waits() -> list[str]:
    """Returns what threads of this process wait for in collectives, each with the ranks that are missing.

    A wait that has just begun is left out, and so is one for another host.
    """

# ---- faults on demand

class _FaultPlan:
    """The rules of a plan of faults, and how often each has matched."""

    def __init__(self, rules: Sequence[Mapping[str, Any]], seed: int) -> None: ...

class _FaultsOfPhase:
    """The faults of a phase that has begun."""

    def end(self) -> None:
        """Strikes with what is due after the phase."""

def _switch_faults_on(plan: _FaultPlan | None) -> _FaultPlan | None:
    """Makes the plan the one that holds from now on, or none with None. Returns the one before."""

def _identify_for_faults(rank: int, restart: int, log: str) -> None:
    """Tells the faults which rank this process is.

    Each fault is appended to the file `log`, unless that is "".
    """

def _set_step_of_faults(step: int) -> None:
    """Sets the number of the program's step."""

def _step_of_faults() -> int:
    """Returns the number of the program's step."""

def _begin_phase_of_faults(phase: str) -> _FaultsOfPhase | None:
    """Strikes at the begin of a phase. Returns its faults, or None."""

def _struck_faults() -> tuple[list[dict[str, Any]], int]:
    """Returns the first faults that struck, as dicts, and the number of all."""

# ---- the flight recorder

def _dump_flight_recorder(operations: bool, stacks: bool, only_active: bool) -> bytes:
    """Returns the dump of this process's flight recorder as a pickle, in the form of torch 2.13's dumps.

    Args:
        operations: whether the dump has the operations, too.
        stacks: whether each operation has the frames of its call, if they were recorded.
        only_active: whether operations that have completed are left out.
    """

def _dump_flight_recorder_json(operations: bool, only_active: bool) -> bytes:
    """Returns the same as JSON, without stacks."""

def _diagnose(stacks_within_ms: int, dumps: bool = False, others: bool = False) -> dict[str, Any]:
    """Returns what the ranks of all jobs of this user on this machine do, who waits for whom, and why.

    The dict has the form of ``python -m vccl.top --json``.

    Args:
        stacks_within_ms: for how long to wait for the stacks of ranks that stand; 0 asks none for its stack.
        dumps: whether each rank has ``dump`` as well: what was read of its recorder, as a dump in JSON.
        others: whether other hosts are asked about the ranks that are not on this machine.
    """

def _serve_stacks() -> None:
    """Makes this process answer other processes of the user that ask for its Python stacks.

    Further calls do nothing. Only a main thread that has called this can say whether it waits.
    """

def _set_library_folders(folders: list[str]) -> None:
    """Names folders, each with a "/" at its end, whose files are not the user's own code in a diagnosis."""

def _begin_record(directory: str, hashes: bool) -> None:
    """Begins to record what the groups of this process do (vccl/_groups/record.py).

    Raises:
        RuntimeError: the directory cannot take a record, or this process records already.
    """

def _end_record(patience: datetime.timedelta) -> None:
    """Ends the record once its operations are over, or the patience has passed."""

def _flight_recorders() -> list[dict[str, Any]]:
    """Returns what the flight recorders of all processes of this user say, each as a dict.

    ``dump`` is JSON, and empty where ``problem`` says why a recorder cannot be read. ``holder`` is a process
    that has the recorder open: not ``pid`` if that is no longer ``alive``.
    """

def _groups_that_stage_cpu_tensors() -> int:
    """Returns how many groups of this process were made before it shared CPU memory, and are still there."""

def _set_crypto_library_path(path: str) -> None:
    """Names the libcrypto that is loaded for links between hosts, if there is no other one."""

def _set_zmq_library_path(path: str) -> None:
    """Names the libzmq that is loaded when two ranks are on two hosts, unless VCCL_ZMQ_LIBRARY names one."""

def _write_addresses_as_numbers() -> bool:
    """Keeps torch's sockets from asking a name server. Returns whether torch's calls were found."""

# ---- races

class _RacePoint:
    """Holds what the race detector knows to come before something."""

class _RaceOrder:
    """Holds what comes before whoever takes a lock next."""

    def __init__(self) -> None: ...
    def release(self) -> None:
        """Adds what the calling thread has done. Call this before the lock is released."""

    def acquire(self) -> None:
        """Orders what the calling thread does from now on after all that was added."""

def _races_start(unwritten: bool, useless: bool, report: Callable[[dict[str, Any]], None]) -> None:
    """Looks for races from now on. ``report`` is called within the call of the second access."""

def _races_stop() -> None:
    """Looks for races no more, and forgets what it has seen."""

def _races_on() -> bool:
    """Returns whether races are looked for."""

def _races_end_with(status: int) -> None:
    """Ends this process with that status if it would end with 0. Call this when Python ends."""

def _races_place(call: str, card: int, stream: int) -> dict[str, Any]:
    """Returns the calling line as an access of a stream, or of the thread if the card is -1."""

def _races_point() -> _RacePoint:
    """Returns what the calling thread has done and waited for until now."""

def _start_schedule(text: str, turns: str, /) -> None:
    """Starts the schedule that VDEV_SCHEDULE and VDEV_SCHEDULE_TURNS would start, in the place of another."""

def _stop_schedule() -> None:
    """Ends the schedule that is on. All threads go on."""

def _schedule_report() -> tuple[int, int, int]:
    """Returns the choices of the last schedule, a hash of them, and how often it took the turn away."""

def _races_wait(point: _RacePoint, /) -> None:
    """Orders what the calling thread does from now on after the point."""

def _races_share(storage: torch.UntypedStorage, rank: int) -> bytes:
    """Returns what the receiver of a storage gives to _races_receive. The sending thread calls this."""

def _races_receive(storage: torch.UntypedStorage, sent: bytes, rank: int, /) -> None:
    """Orders the receiver of a storage after its sender, and follows the memory from now on."""

def _races_shares_memory() -> bool:
    """Returns whether this process shares memory or events with others while races are looked for."""

def _races_publish_host(channel: str, ends: bool) -> None:
    """Call this before this process sends something through a channel. ``ends``: its work has ended."""

def _races_wait_for_hosts(channel: str) -> None:
    """Orders the calling thread after what was published for the channel."""

def _races_judge_shared() -> None:
    """Reports races with other processes that could not be decided before."""

def _races_begin_thread(start: _RacePoint, name: str, /) -> None:
    """Gives the calling thread an order of its own, which begins after the point."""

def _races_end_thread() -> _RacePoint:
    """Takes the order back, and returns its end. Call this when the thread ends."""

def _races_pointer_taken(tensor: torch.Tensor, call: str, /) -> None:
    """Counts as a read of the CPU tensor's memory, if streams have to do with it."""
