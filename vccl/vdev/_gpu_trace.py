"""Callbacks for the program's calls about cards, with the names of ``torch.cuda._gpu_trace``.

torch calls them once ``torch._C._activate_gpu_trace()`` has been called. They run in the thread that made the
call. What a running task does, such as freeing memory, is told by the next thread of the program that makes
a call. Events, memory and streams are named by address: ``event_id``, ``data_ptr()`` and ``native_handle``.
"""

from collections.abc import Callable

from torch._utils import CallbackRegistry

# torch's compiled module looks for these names.
EventCreationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev event creation")
EventDeletionCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev event deletion")
EventRecordCallbacks: "CallbackRegistry[[int, int]]" = CallbackRegistry("vdev event record")
EventWaitCallbacks: "CallbackRegistry[[int, int]]" = CallbackRegistry("vdev event wait")
MemoryAllocationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev memory allocation")
MemoryDeallocationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev memory deallocation")
StreamCreationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev stream creation")
DeviceSynchronizationCallbacks: "CallbackRegistry[[]]" = CallbackRegistry("vdev device synchronization")
StreamSynchronizationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev stream synchronization")
EventSynchronizationCallbacks: "CallbackRegistry[[int]]" = CallbackRegistry("vdev event synchronization")


def register_callback_for_event_creation(cb: Callable[[int], None]) -> None:
    """Registers ``cb(event)``. An event is created by its first record."""
    EventCreationCallbacks.add_callback(cb)


def register_callback_for_event_deletion(cb: Callable[[int], None]) -> None:
    """Registers ``cb(event)``."""
    EventDeletionCallbacks.add_callback(cb)


def register_callback_for_event_record(cb: Callable[[int, int], None]) -> None:
    """Registers ``cb(event, stream)``."""
    EventRecordCallbacks.add_callback(cb)


def register_callback_for_event_wait(cb: Callable[[int, int], None]) -> None:
    """Registers ``cb(event, stream)``, where the stream waits for the event."""
    EventWaitCallbacks.add_callback(cb)


def register_callback_for_memory_allocation(cb: Callable[[int], None]) -> None:
    """Registers ``cb(address)``. Memory that only a kernel uses while it runs does not count."""
    MemoryAllocationCallbacks.add_callback(cb)


def register_callback_for_memory_deallocation(cb: Callable[[int], None]) -> None:
    """Registers ``cb(address)``."""
    MemoryDeallocationCallbacks.add_callback(cb)


def register_callback_for_stream_creation(cb: Callable[[int], None]) -> None:
    """Registers ``cb(stream)``. The streams of a card's pool are created when they are first handed out."""
    StreamCreationCallbacks.add_callback(cb)


def register_callback_for_device_synchronization(cb: Callable[[], None]) -> None:
    """Registers ``cb()``."""
    DeviceSynchronizationCallbacks.add_callback(cb)


def register_callback_for_stream_synchronization(cb: Callable[[int], None]) -> None:
    """Registers ``cb(stream)``. ``item()`` and copies to the host synchronise with a stream, too."""
    StreamSynchronizationCallbacks.add_callback(cb)


def register_callback_for_event_synchronization(cb: Callable[[int], None]) -> None:
    """Registers ``cb(event)``."""
    EventSynchronizationCallbacks.add_callback(cb)
