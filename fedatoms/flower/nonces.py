"""Binds an answer to the order that it answers: the server draws a nonce for each, and the node sends it back.

So an answer that was recorded in an earlier round is refused, whatever round it names. Nonces come from the operating
system's generator, never from the experiment's seed, which every node knows. They travel beside the arrays: neither
the model nor the bytes of the ledger depend on them.
"""

import secrets

from flwr.app import ConfigRecord, RecordDict

RECORD, NAME = "config", "nonce"
BYTES = 8  # headers of a small message count: one guess in 2^64 would be right


def with_nonce(order: RecordDict) -> RecordDict:
    """Returns an order with a new nonce in it.

    >>> len(nonce_of(with_nonce(RecordDict())))
    16
    """
    return _with(order, secrets.token_hex(BYTES))


def echo(order: RecordDict, answer: RecordDict) -> RecordDict:
    """Returns an answer with the nonce of its order.

    >>> order = with_nonce(RecordDict())
    >>> nonce_of(echo(order, RecordDict())) == nonce_of(order)
    True
    """
    return _with(answer, nonce_of(order))


def nonce_of(content: RecordDict) -> str:
    """Reads the nonce of an order or an answer; empty if it has none."""
    return str(content.config_records.get(RECORD, ConfigRecord()).get(NAME, ""))


def foreign(order: RecordDict, answer: RecordDict) -> str:
    """Says why an answer is not one to this order; empty if it is.

    >>> foreign(with_nonce(RecordDict()), with_nonce(RecordDict()))
    'it answers another order than this one'
    """
    if not (said := nonce_of(answer)):
        return "it does not say which order it answers. Install the server's version of fedatoms on the node"
    return (
        ""
        if secrets.compare_digest(said.encode(), nonce_of(order).encode())
        else "it answers another order than this one"
    )


def _with(content: RecordDict, nonce: str) -> RecordDict:
    words = content.config_records.get(RECORD, ConfigRecord())
    return RecordDict({**content, RECORD: ConfigRecord({**words, NAME: nonce})})
