"""Fine-tuning: a global model, and a last local pass over it on every client (FedAvg + FT, FedProx + FT)."""

from fedatoms.personal.base import Personal, everything, of_groups


def finetune() -> Personal:
    """Trains a global model, and at the end all of it on every client's own data.

    >>> finetune().final is everything
    True
    """
    return Personal(final=everything)


def finetune_head() -> Personal:
    """Trains a global model, and at the end its head on every client's own data.

    >>> finetune_head().beside
    False
    """
    return Personal(final=of_groups("head"))
