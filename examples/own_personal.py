"""A personalised method of your own, in twenty lines: every client has biases of its own, all else is shared.

After Ben Zaken et al., "BitFit: Simple Parameter-efficient Fine-tuning", ACL 2022. In this folder, type
`fedatoms run --personal own_personal:own_biases`.
"""

from torch import nn

import fedatoms
from fedatoms.personal import Personal
from fedatoms.personal.base import Labels


def own_biases() -> Personal:
    """Keeps all biases on each client, and trains them jointly with the rest, which is averaged."""

    def biases(model: nn.Module, labels: Labels) -> frozenset[str]:
        return frozenset(name for name in labels if name.endswith("bias"))

    return Personal(own=biases)


if __name__ == "__main__":
    fedatoms.testing.check_personal(own_biases)  # the laws that our own methods keep, in seconds
    experiment = fedatoms.Experiment(personal="own_personal:own_biases", clients=10, rounds=2, last_epochs=1)
    print(f"accuracy of clients' own models {fedatoms.run(experiment).personal}")
