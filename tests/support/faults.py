"""What can happen to the parts of a deployment: they are killed, hang, or end in peace."""

import signal
import time

from fedatoms.flower.deploy import Deployment, DeploymentError
from fedatoms.flower.processes import end, kill, marked, send

MISSING = 120.0  # seconds until the SuperLink must have noticed that a node was killed: two heartbeats of 30, and spare
STILL_THERE = "code: 2004"  # how it refuses a node that it believes to be online


def start_node(deployment: Deployment, i: int) -> None:
    """Starts a SuperNode again and waits until it is online.

    Without TLS it is a new node to the SuperLink. With TLS it is the old one, and after a kill it is let in only when
    the SuperLink has missed it for a minute.
    """
    until = time.monotonic() + MISSING
    while True:
        try:
            return deployment.start_nodes([i])
        except DeploymentError:
            if time.monotonic() > until or not any(STILL_THERE in line for line in deployment.log(f"node-{i}")):
                raise
        time.sleep(1)


def kill_part(deployment: Deployment, name: str) -> None:
    """Kills the "link" or "node-0" and so on, and all it started, as a power cut would."""
    kill(deployment.mark(name))
    deployment.parts[name].process.wait()


def hold_node(deployment: Deployment, i: int) -> None:
    """Makes a SuperNode and all it started hang, as a machine without memory would."""
    send(marked(deployment.mark(f"node-{i}")), signal.SIGSTOP)


def let_node_go(deployment: Deployment, i: int) -> None:
    """Lets a SuperNode that hangs go on."""
    send(marked(deployment.mark(f"node-{i}")), signal.SIGCONT)


def end_node(deployment: Deployment, i: int) -> None:
    """Ends a SuperNode in peace: it says goodbye, so the SuperLink knows at once."""
    end(deployment.mark(f"node-{i}"))
    deployment.parts[f"node-{i}"].process.wait()


def kill_server_app(deployment: Deployment) -> int:
    """Kills the server's side of runs, but not the SuperLink, and returns how many processes these were."""
    return kill(deployment.mark("link"), "flwr-serverapp")
