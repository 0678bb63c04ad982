"""Claims that measures, explanations and steps between runs speak of hold or fall with the numbers in the files."""

from pathlib import Path

import pytest
from results import VALUES, a_full_measure, a_run, an_explanation
from test_claims import the_claim

from fedatoms.paper.studies import SAMPLED


@pytest.mark.parametrize("ends, verdict", [((2.0, 1.5), "holds"), ((2.0, 2.0), "does not hold")])
def test_the_ends_of_both_trajectories_decide(ends: tuple[float, float], verdict: str, tmp_path: Path) -> None:
    paths = [{"x": [0.0, 1.0], "y": [0.0, 1.0], "loss": [2.5, end]} for end in ends]
    a_full_measure(tmp_path, "landscape", VALUES["landscape"] | {"paths": paths})
    claim = the_claim(tmp_path, "loss landscape")
    assert claim.verdict == verdict and claim.numbers == (None, ends[1] / ends[0])


@pytest.mark.parametrize("many, verdict", [(0.125, "holds"), (0.5, "does not hold")])
def test_more_models_are_compared_with_the_fewest(many: float, verdict: str, tmp_path: Path) -> None:
    few, latent = VALUES["synthetic"]["lines"]  # type: ignore[misc]
    lines = [few | {"variance": [0.0, 0.5]}, few | {"name": "25 models", "variance": [0.0, many]}]
    lines.append(latent | {"variance": [0.0, 0.5], "products": [0.0, 0.5]})
    a_full_measure(tmp_path, "synthetic", VALUES["synthetic"] | {"lines": lines})
    claim = the_claim(tmp_path, "two Gaussians")
    assert claim.verdict == verdict and claim.numbers == (None, 2 * many)
    assert [line.about for line in claim.evidence] == ["25 models against 5 models"]  # latent clients are no models


def test_one_latent_client_beyond_the_worst_real_one_breaks_the_bound(tmp_path: Path) -> None:
    file = an_explanation(tmp_path / "it")
    bounded = {share: file.read_text().replace('"bounded": 1.0', f'"bounded": {share}') for share in (1.0, 0.75)}
    assert bounded[1.0] != bounded[0.75]
    for share, verdict in ((1.0, "holds"), (0.75, "does not hold")):
        file.write_text(bounded[share])
        claim = the_claim(tmp_path, "is bounded by those of real clients")
        assert claim.verdict == verdict and claim.numbers == (None, 100 * share)


def test_without_latent_clients_nothing_speaks_of_their_bound(tmp_path: Path) -> None:
    an_explanation(tmp_path / "it", crossed=0)
    assert the_claim(tmp_path, "is bounded by those of real clients").verdict == "not run"


@pytest.mark.parametrize("gain, verdict", [(0.25, "holds"), (-0.25, "does not hold")])
def test_the_most_atoms_are_compared_with_the_fewest(gain: float, verdict: str, tmp_path: Path) -> None:
    for atoms, accuracy in ((3, 80.0), (6, 99.0), (12, 80.0 + gain)):
        run = a_run(tmp_path / f"{atoms}", preset="local-atoms-personal-cifar10-5", rounds=0, atoms=atoms)
        file = run / "result.json"
        file.write_text(
            file.read_text().replace('"personal": null', f'"personal": {{"after the last pass": {accuracy}}}')
        )
    claim = the_claim(tmp_path, "Table 3")
    assert claim.verdict == verdict and claim.numbers == pytest.approx((87.08 - 81.66, gain))
    assert "Run: 1 of 6 columns." in claim.rule


@pytest.mark.parametrize("last, verdict", [(61.0, "holds"), (60.25, "does not hold")])
def test_steps_to_more_clients_are_shown_and_their_sum_decides(last: float, verdict: str, tmp_path: Path) -> None:
    accuracies = [60.0, 70.0, 69.0, last]
    for count, accuracy in zip(SAMPLED, accuracies, strict=False):
        a_run(tmp_path / f"{count}", accuracy, "fedavg-cifar10-5", rounds=200, fraction=count / 100)
    claim = the_claim(tmp_path, "More clients in a round")
    steps = [line for line in claim.evidence if line.about.startswith("plain")]
    assert claim.verdict == verdict and claim.numbers == pytest.approx((None, last - 60.0))
    assert [line.speaks_for for line in steps] == [True, False, False]
