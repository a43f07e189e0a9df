"""A page of torch's debug server that shows what ``vccl.top`` shows, for every machine of a job.

    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers
    from vccl.top.debug_server import JobsPage

    start_debug_server(handlers=[*default_handlers(), JobsPage()])

Every rank has to import this module: its worker server then answers for the machine.
"""

import ctypes
import json
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import _register_handler, _Request, _Response
from torch.distributed.debug import _frontend

from vccl.top import jobs, screen

if TYPE_CHECKING:
    from torch.distributed.debug._frontend import HTTPRequestHandler

# By this name torch's worker server of a rank answers, under /handler/.
WORKER_HANDLER = "vccl_jobs"


def _answer(_request: _Request, response: _Response) -> None:
    response.set_content(json.dumps(jobs.look(others=False)), "application/json")
    response.set_status(200)


class JobsPage(_frontend.DebugHandler):
    """The page ``/vccl_top``, with the tables of each machine. Its dump is called ``vccl_top``."""

    def routes(self) -> list[_frontend.Route]:
        return [_frontend.Route("/vccl_top", self._page)]

    def nav_links(self) -> list[_frontend.NavLink]:
        return [_frontend.NavLink("/vccl_top", "vccl.top")]

    def dump_filename(self) -> str:
        return "vccl_top"

    def dump(self) -> str:
        return "\n".join(f"{name}\n{response.text}" for name, response in self._machines())

    def _page(self, request: "HTTPRequestHandler") -> bytes:
        names, responses = zip(*self._machines(), strict=True)
        return request.frontend.render_template(
            "raw_resp.html", title="vccl.top", addrs=names, resps=responses
        )

    def _machines(self) -> list[tuple[str, _frontend.Response]]:
        """Asks all ranks, and returns one answer of each machine, and each rank that did not answer."""
        addresses, responses = _frontend.fetch_all(WORKER_HANDLER, timeout=self.fetch_timeout)
        shown: dict[str, _frontend.Response] = {}
        for address, response in zip(addresses, responses, strict=True):
            if response.status_code != 200:
                shown[address] = response
                continue
            found = json.loads(response.text)
            shown.setdefault(found["host"], _frontend.Response(200, screen.as_text(found)))
        return list(shown.items())


# The registry is a static object of torch's library, and is destroyed after Python has ended. It must not
# hold the last reference: destroying a function then ends the process with "Fatal Python error".
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
_register_handler(WORKER_HANDLER, _answer)
