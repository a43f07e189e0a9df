"""One rank of the pool: runs the functions that the tests name, until its pipe closes. See rank_pool.py."""

import contextlib
import datetime
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import vccl  # noqa: F401


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def call(job: dict[str, Any], store: dist.Store) -> Any:
    rank, size = job["rank"], job["size"]
    function = getattr(importlib.import_module(job["module"]), job["name"])
    store = dist.PrefixStore(job["prefix"], store)
    torch.accelerator.set_device_index(rank)
    with environment(job["env"]):
        try:
            if not job["group"]:
                return function(rank, size, store, *job["args"])
            dist.init_process_group(
                "vccl",
                store=store,
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=job["group_timeout"]),
            )
            return function(rank, size, *job["args"])
        finally:
            clean_up()


def clean_up() -> None:
    """Leaves no group and no stream's error to the next test."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # torch names groups by this number, and counts one whose making failed. Ranks that have failed and ranks
    # that are new would meet under different names.
    dist.distributed_c10d._world.group_count = 0
    # Bounded, as the failure of a group that somebody still holds is raised every time.
    for _ in range(100):
        try:
            return torch.accelerator.synchronize()
        except RuntimeError:
            continue


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    port = int(sys.argv[2])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("done", call(job, store))
        except BaseException as error:
            answer = ("raised", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pipe.send(answer)


if __name__ == "__main__":
    main()
