"""A federation with TLS and node keys on this machine's loopback: certificates, a SuperLink, three SuperNodes.

`python examples/flower_tls/federation.py` makes the keys, starts everything, shows that a stranger is refused, runs two
rounds of the template, and ends all that it started. docs/federation.md has the same by hand, for machines far apart.
"""

import tempfile
from pathlib import Path

from fedatoms.flower.commands import Value
from fedatoms.flower.deploy import deployed
from fedatoms.flower.keys import node_key
from fedatoms.flower.new_app import new

NODES = 3


def main(folder: Path) -> None:
    """Runs the federation in a folder, which has its certificates, keys, logs and results then."""
    app = folder / "app"
    new(app)
    nodes: list[dict[str, Value]] = [
        {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / "state")} for i in range(NODES)
    ]
    with deployed(folder / "deployment", nodes, tls=True) as deployment:
        print(f"{deployment.online()} nodes with registered keys are online at {deployment.address}, with TLS")
        stranger = deployment.try_node(node_key(folder, "stranger"))
        print("a stranger:", next(line for line in stranger if "Failed to activate" in line))
        config: dict[str, Value] = {"clients": NODES, "rounds": 2, "out": str(folder / "runs"), "name": "tls"}
        for line in deployment.run(app, config, timeout=600):
            if ": loss" in line:
                print(line)
    print("the model:", folder / "runs" / "tls" / "model.safetensors")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fedatoms-") as temporary:
        main(Path(temporary))
