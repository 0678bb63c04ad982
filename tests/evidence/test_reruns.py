"""A command on a claim's card is complete: the real command line reads it as what is behind the card."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from support.results import SOURCE, VALUES, a_run, kept

from fedatoms.cli import main
from fedatoms.evidence.claims import Claim, claims
from fedatoms.evidence.explain.settings import Explain
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json, size_of
from fedatoms.evidence.measures.files import Measure, write_measure
from fedatoms.evidence.page.reruns import AGAIN, LATENT, PAIRS
from fedatoms.evidence.page.verdict_cards import claim_cards
from fedatoms.evidence.paper.study_list import CLIENTS, study
from fedatoms.evidence.reproduce.plan import chosen, jobs
from fedatoms.evidence.reproduce.settings import Reproduce
from fedatoms.evidence.results.finding import Found, find
from fedatoms.evidence.results.groups import group, groups_of
from fedatoms.evidence.results.pairs import judged_pairs, latent_pairs
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity, run_name


class Heard(NamedTuple):
    """What the command line reads in a command: experiments, where their results go, and how to replay one."""

    experiments: list[Experiment]
    out: Path
    replay: Explain | None = None


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """Collects what commands read, and lets none of them do anything."""
    found = list[Heard]()

    def reproduce(names: list[str], settings: Reproduce, *clock: object) -> int:
        made = [one for job in jobs(chosen(names), settings) for one in job.experiments]
        found.append(Heard(made, Path(settings.out)))
        return 0

    def run(one: Experiment, notice: str) -> int:
        found.append(Heard([one], Path(one.out) / run_name(one)))
        return 0

    def compare(some: list[Experiment], *title: object, **how: object) -> int:
        found.append(Heard(some, Path(some[0].out)))
        return 0

    def explain(folder: Path, settings: Explain) -> int:
        found.append(Heard([], folder, settings))
        return 0

    for name, does in {"reproduce._reproduce": reproduce, "run._run": run, "explain._explain": explain}.items():
        monkeypatch.setattr(f"fedatoms.cli.{name}", does)
    monkeypatch.setattr("fedatoms.cli.compare.compared", compare)
    return found


def type_all(claim: Claim, found: Found) -> None:
    """Types the commands on a claim's card."""
    for typed in re.findall("<code>(.*?)</code>", claim_cards([claim], found)):
        program, *words = shlex.split(unescape(re.sub("<[^>]+>", "", typed)))
        assert program == "fedatoms" and main(words) == 0


def behind(name: str, found: Found) -> Iterator[Experiment]:
    """Returns the experiments that a claim rests on, each with its seed: of its study, of figure (c) of its pairs."""
    for each in found.measures:
        if (kind := study(name).measure) == each.measure.name and size_of(MEASURES[kind], each.measure) == "full":
            yield from each.measure.experiments
    groups = group(found.runs)
    pairs = [one for both in judged_pairs(groups).values() for one in both] if name == CLIENTS else []
    for one in pairs or groups_of(name, groups, quick_ones=False).values():
        yield from (run.result.experiment for run in one.runs)


def identities(experiments: Iterator[Experiment] | list[Experiment]) -> set[str]:
    return {identity(one) for one in experiments}


def of_studies(found: Found) -> Iterator[tuple[Claim, str]]:
    for claim in claims(found):
        if (name := next((name for words, name in AGAIN.items() if words in claim.text), "")) and claim.evidence:
            yield claim, name


def a_few(folder: Path) -> Found:
    """Makes runs and measures whose seeds are not the usual ones."""
    for seed in (3, 5):
        for name in ("fedavg", "fedavg-atoms"):
            a_run(folder / f"{name}-{seed}", 70.0, f"{name}-cifar10-2", seed, rounds=0)
        kind = MEASURES["training_loss"]
        ran = tuple(replace(one, seed=seed) for one in kind.experiments)
        made = Measure("training_loss", ran, as_json(kind.settings), VALUES["training_loss"], SOURCE)
        write_measure(folder / f"loss-{seed}", made)
    return find([folder])


@pytest.mark.parametrize("which, measured", [("ours", "synthetic"), ("a few", "training-loss")])
def test_a_command_on_a_card_is_read_as_all_the_runs_behind_it_with_their_seeds(
    which: str, measured: str, heard: list[Heard], tmp_path: Path
) -> None:
    found = kept() if which == "ours" else a_few(tmp_path)
    judged = [*of_studies(found)]
    assert {name for _, name in judged} >= {"table1", measured}
    for claim, name in judged:
        heard.clear()
        type_all(claim, found)
        again = [one for each in heard for one in each.experiments]
        assert identities(behind(name, found)) <= identities(again)
        assert {one.seed for one in again} == {one.seed for one in behind(name, found)}
        assert {each.out for each in heard} == {Path("again")}


def test_figure_c_of_earlier_runs_is_run_again_as_it_was(heard: list[Heard], tmp_path: Path) -> None:
    """Its study has the paper's 9 atoms: its command would run none of the pairs with 25 on the card."""
    for count, kind in product((2, 40), ("", "-atoms25")):
        preset = f"fedavg{kind}-cifar10-5"
        a_run(tmp_path / f"{count}{kind}", 70.0, preset, 3, rounds=200, fraction=count / 100)
    a_run(tmp_path / "ours", 70.0, "fedavg-atoms-cifar10-5", 3, rounds=200, fraction=0.02)
    found = find([tmp_path])
    judged = [claim for claim, name in of_studies(found) if name == CLIENTS]
    assert len(judged) == 3
    for claim in judged:
        heard.clear()
        type_all(claim, found)
        again = [one for each in heard for one in each.experiments]
        assert identities(again) == identities(behind(CLIENTS, found))
        assert {one.atoms for one in again if one.parametrisation == "atoms"} == {25}
        assert {each.out for each in heard} == {Path("again")}


def test_the_commands_of_a_replay_make_its_run_and_replay_it_where_that_lies(heard: list[Heard]) -> None:
    found = kept()
    explained = [each.explanation for each in found.explanations]
    claim = next(claim for claim in claims(found) if "bounded by those of real clients" in claim.text)
    type_all(claim, found)
    runs, replays = heard[::2], heard[1::2]
    assert [identities(run.experiments) for run in runs] == [{identity(each.experiment)} for each in explained]
    assert [run.out for run in runs] == [replay.out for replay in replays]
    assert len({run.out for run in runs}) == 2 and all(run.out.is_relative_to("again") for run in runs)
    assert [replay.replay for replay in replays] == [each.settings for each in explained]


def test_the_commands_of_latent_clients_begin_with_the_whole_runs_with_and_without_them(heard: list[Heard]) -> None:
    found = kept()
    type_all(next(claim for claim in claims(found) if LATENT in claim.text), found)
    pairs = latent_pairs(group(found.runs))
    whole = [run.result.experiment for both in pairs for each in both for run in each.runs]
    count = 2 * len(pairs)
    assert count and identities([one for each in heard[:count] for one in each.experiments]) == identities(whole)
    assert len(heard) == count + 4  # two runs and their replays


def test_a_new_pair_lies_in_a_folder_of_its_own(heard: list[Heard]) -> None:
    type_all(next(claim for claim in claims(kept()) if PAIRS in claim.text), kept())
    (pair,) = heard
    assert pair.out == Path("again")
    assert {(one.parametrisation, one.seed) for one in pair.experiments} == {
        (form, seed) for form in ("plain", "atoms") for seed in range(3)
    }
