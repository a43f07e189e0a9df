"""Says which wait is missing between two accesses."""

from __future__ import annotations

from typing import Any

from vccl._device_type import device_type


def text_of(raw: dict[str, Any]) -> str:
    """Returns a sentence that names the wait, and the code for it."""
    first, second = raw["first"], raw["second"]
    if raw["what"] == "useless":
        return "nothing: the wait can go"
    if raw["what"] == "unwritten":
        return "something that writes the tensor before it is read, on the same stream or ordered before it"
    if raw["what"] == "unrecorded":
        return (
            f"`event.record()` after the work that line {second['line']} waits for, on the stream of that "
            f"work and before line {second['line']}"
        )
    if raw["what"] == "gone":
        return _of_gone(raw)
    if raw["was_freed"]:
        return _of_freed(raw)
    if raw.get("first_process"):
        return _of_other_process(raw)
    if first["is_host"]:
        return (
            f"{_subject(second)} must come after {first['stream']}'s line {first['line']}: order the two "
            f"threads, "
            "with join(), a queue.Queue or a threading.Event"
        )
    if first["is_operation"]:
        return (
            f"{_subject(second)} must wait for {first['op']} of line {first['line']}: call wait() of its "
            f"Work "
            f"before line {second['line']}" + _on_stream(second)
        )
    if second["is_host"] or second["card"] < 0:  # an operation on the host's memory begins at its call
        return (
            f"the host must wait for {first['stream']} after line {first['line']}: "
            f"`{_code(first)}.synchronize()`, "
            "or an event that is recorded there"
        )
    if second["is_operation"]:
        return (
            f"the stream that is current at line {second['line']} must wait for {first['stream']} after line "
            f"{first['line']}: `torch.accelerator.current_stream().wait_stream({_code(first)})`"
        )
    return (
        f"{second['stream']} must wait for {first['stream']} after line {first['line']}: "
        f"`{_code(second)}.wait_stream({_code(first)})`"
    )


def _of_gone(raw: dict[str, Any]) -> str:
    freed, allocated = raw["freed"], raw["allocated"]
    where = f" at {freed['file']}:{freed['line']}" if freed and freed["file"] else ""
    owner = f" of {allocated['file']}:{allocated['line']}" if allocated and allocated["file"] else ""
    return (
        f"a reference to the tensor{owner}, which was freed{where}: keep it for as long as its memory is "
        f"used through a pointer (from_blob(), data_ptr())"
    )


def _of_freed(raw: dict[str, Any]) -> str:
    first, freed = raw["first"], raw["freed"]
    where = f" at {freed['file']}:{freed['line']}" if freed and freed["file"] else ""
    return (
        f"the memory was freed{where} while {first['stream']} still used it, and was given out again: call "
        f"`tensor.record_stream({_code(first)})` on the tensor of line {first['line']}, or let the stream "
        f"that it "
        f"was allocated for wait for {first['stream']} before it is freed"
    )


def _of_other_process(raw: dict[str, Any]) -> str:
    first, second, other = raw["first"], raw["second"], raw["first_process"]
    return (
        f"{_subject(second)} must come after line {first['line']} of {other}: let {other} synchronize after "
        f"that line and tell this process before line {second['line']}, or record an interprocess event "
        f"there for which {_subject(second)} waits"
    )


def _subject(access: dict[str, Any]) -> str:
    return str(access["stream"])


def _on_stream(access: dict[str, Any]) -> str:
    return "" if access["is_host"] else f", with {access['stream']} as the current stream"


def _code(access: dict[str, Any]) -> str:
    if access["is_operation"] or access["is_host"]:
        return "stream"
    if access["stream_id"] == 0:
        return f"torch.{device_type()}.default_stream({access['card']})"
    return f"stream_{access['stream_id']}"
