"""An explanation as a file, `explain.json`: all measurements, and the findings in sentences."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import cast

from fedatoms.core.files import replace_file
from fedatoms.core.lookup import one_line
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import EXPLANATION
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.values import Explanation
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import PATH_FIELDS
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity

FILE = EXPLANATION  # in the run's folder, unless another is asked for


def write(explanation: Explanation, path: Path, found: Sequence[str]) -> None:
    """Writes all measurements and the findings to a JSON file."""
    settings = cast(dict[str, object], _plain(explanation.settings))
    content = {
        **cast(dict[str, object], _plain(explanation)),
        "experiment": _portable(to_json(explanation.experiment)),
        "identity": identity(explanation.experiment),
        "settings": _portable(settings),
        "found": list(found),
    }
    replace_file(path, (json.dumps(sealed({FORMAT: 2, **content}), indent=2, allow_nan=False) + "\n").encode())


def read(path: Path) -> Explanation:
    """Reads what ``write`` wrote, except the findings, which follow from the numbers; refuses anything else."""
    try:
        raw = read_record(path, "it")
        experiment = from_json(fit(raw.get("experiment"), dict[str, object], "experiment"))
        check(experiment)
        explanation = fit({**raw, "experiment": to_json(experiment)}, Explanation, "")
        _check(explanation)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} is not what `fedatoms explain` writes, or is damaged: {one_line(error)}. "
            f"Explain the run again, or delete it."
        ) from error
    return explanation


def _check(explanation: Explanation) -> None:
    """Refuses numbers that contradict each other."""
    rounds, plain, fork = explanation.rounds, explanation.plain, explanation.fork
    if not rounds or explanation.images < 1:
        raise ValueError("it has no rounds or no images")
    last = explanation.round + explanation.settings.rounds
    if any(not explanation.round <= each.round < last for each in rounds):
        raise ValueError("its rounds are not those that follow its checkpoint")
    if plain is not None and len(plain) != explanation.settings.rounds:
        raise ValueError("its plain run has another number of rounds")
    if any(not _is_crossed(each.latent) for each in rounds if each.latent):
        raise ValueError("its latent clients are not all products of its real ones")
    if fork and not fork.accuracy_on:
        raise ValueError("its fork has no rounds")
    if fork and {len(line) for line in vars(fork).values() if isinstance(line, list)} != {explanation.settings.fork}:
        raise ValueError("its fork has another number of rounds")
    accuracies = [both.accuracy for each in rounds for both in (each.aggregates.on, each.aggregates.off)]
    accuracies += [*(plain or ()), *(fork.accuracy_on + fork.accuracy_off if fork else ())]
    if not all(0 <= accuracy <= 100 for accuracy in accuracies):
        raise ValueError("its accuracies are not numbers from 0 to 100")


def _is_crossed(latent: Latent) -> bool:
    """Returns whether all pairs of real clients are combined."""
    clients = [each.atoms for each in latent.real]
    found = {(each.coefficients, each.atoms) for each in (*latent.real, *latent.latent)}
    return found == {(i, j) for i in clients for j in clients}


def _plain(value: object) -> object:
    """Turns dataclasses into dictionaries of fields and properties, and infinity into None, for JSON."""
    if is_dataclass(value):
        derived = [name for name, each in vars(type(value)).items() if isinstance(each, property)]
        names = [*(field.name for field in fields(value)), *derived]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _portable(named: Mapping[str, object]) -> dict[str, object]:
    """Leaves out paths of this machine."""
    return {name: value for name, value in named.items() if name not in (*PATH_FIELDS, "plain")}
