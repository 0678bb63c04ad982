"""What Flower's numbers mean here: a code says that something was refused, and has one cause or two. No torch."""

import re
from collections.abc import Iterable, Mapping, Sequence

CODES: Mapping[int, Sequence[str]] = {
    15: (
        "a key of --run-config is not in the app's pyproject.toml: write it there first, under [tool.flwr.app.config]",
    ),
    23: ("the key is registered already: nothing is to be done, or give each node a key of its own",),
    201: ("the server's code raised an error: it is the line above; mend it, then resume=true",),
    302: ("the file of --auth-supernode-private-key is no key: use the node's file without .pub",),
    303: ("the SuperLink wants keys, which needs TLS: start the node with --root-certificates, not --insecure",),
    305: ("the SuperLink cannot be reached: look at --superlink, the firewall and the certificate's name",),
    607: ("a module cannot be imported: install fedatoms and torch where this process runs",),
    1001: ("the SuperLink has another version of Flower: install flwr==1.41.0 on both",),
    1008: ("a process of a run that has ended still speaks: nothing is to be done",),
    2001: ("the node has no key, and the SuperLink wants one: start it with --auth-supernode-private-key",),
    2004: (
        "the key is not registered: flwr supernode register NODE.pub link",
        "the node was killed, and the SuperLink believes it online for another minute: start it again after that",
    ),
    2007: ("the run has ended or was stopped while the node worked on it: nothing is to be done",),
}
TOLD = re.compile(r"(?:code: |Exit Code: )(\d+)")


def explain(lines: Iterable[str]) -> list[str]:
    """Lists the causes of the codes in a log, each code once.

    >>> explain(["HTTP 412 (code: 2001)"])
    ['code 2001: the node has no key, and the SuperLink wants one: start it with --auth-supernode-private-key']
    """
    found = dict.fromkeys(int(code) for line in lines for code in TOLD.findall(line))
    return [f"code {code}: {', or '.join(CODES[code])}" for code in found if code in CODES]
