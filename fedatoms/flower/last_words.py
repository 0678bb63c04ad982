"""A process that outlives a ServerApp, and tells the SuperLink when it was killed: then the run ends, and its stream.

A process that is killed by ``kill -9``, or for want of memory, says nothing. Flower itself notices after a minute that
it no longer hears from it, and until then ``flwr run --stream`` shows nothing. Run as ``python -m
fedatoms.flower.last_words``; its input is a pipe that only the ServerApp holds open, with the grid's address on its
first line and a full stop at the end of a run that ends by itself. It imports Flower only if it has something to say:
that takes a second of a processor which nodes of this machine need.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from fedatoms.flower.watcher import ALL_IS_WELL, environment

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from flwr.superlink.grid.http_grid import HttpGrid

KILLED = (
    "the ServerApp ended without a word: it was killed, by hand or for want of memory. Type the same command with "
    "resume=true in the run config"
)
Where = Mapping[str, object]


@contextmanager
def outlived(grid: "Grid") -> Iterator[None]:
    """Sees to it that, if this process is killed inside, the SuperLink of the grid hears of it at once."""
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):  # a simulation, which ends with this process
        yield
        return
    words = [sys.executable, "-P", "-m", "fedatoms.flower.last_words"]
    null = subprocess.DEVNULL
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=null, stderr=null, env=environment(), start_new_session=True
    )
    assert child.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):  # it could not start: then Flower's own minute passes
        child.stdin.write(json.dumps(_address(grid)).encode() + b"\n")  # a token is in it, so not among its words
        child.stdin.flush()
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            child.communicate(ALL_IS_WELL)


def listen(pipe: BinaryIO, tell: Callable[[Where], None]) -> None:
    """Waits until the pipe is closed, and tells it if that came without a word.

    >>> from io import BytesIO
    >>> listen(BytesIO(b'{"run": 1}\\n'), print)
    {'run': 1}
    >>> listen(BytesIO(b'{"run": 1}\\n.'), print)
    """
    where = pipe.readline()
    if pipe.read() != ALL_IS_WELL and where.endswith(b"\n"):
        tell(json.loads(where))


def _address(grid: "HttpGrid") -> Where:
    certificate = None if grid._cert is None else grid._cert.decode()
    run = grid.run.run_id
    return {"address": grid._addr, "insecure": grid._insecure, "cert": certificate, "token": grid._token, "run": run}


def _tell(where: Where) -> None:
    """Ends the run as failed, with a line in its log."""
    from flwr.common.constant import SubStatus
    from flwr.proto.log_pb2 import PushLogsRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.superlink.grid.http_grid import HttpGrid

    certificate = None if where["cert"] is None else str(where["cert"]).encode()
    grid = HttpGrid(str(where["address"]), bool(where["insecure"]), certificate, token=str(where["token"]))
    grid._retry_invoker.max_tries = 1
    client = grid._runtime_client
    client.PushLogs(PushLogsRequest(node=Node(node_id=0), run_id=int(str(where["run"])), logs=[f"{KILLED}.\n"]))
    client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=KILLED))


if __name__ == "__main__":
    listen(sys.stdin.buffer, _tell)
