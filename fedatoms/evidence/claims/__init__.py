"""The paper's claims, each judged by a stated rule; imports results and below."""

from fedatoms.evidence.claims import measures, runs, tables
from fedatoms.evidence.claims.base import Claim
from fedatoms.evidence.results.cells import match
from fedatoms.evidence.results.finding import Found
from fedatoms.evidence.results.groups import group

__all__ = ["Claim", "claims"]


def claims(found: Found) -> list[Claim]:
    """Judges the paper's claims by everything that was found, tables first, then figures.

    >>> {claim.verdict for claim in claims(Found([], [], [], [], []))}
    {'not run'}
    """
    groups = group([run for run in found.runs if run.result.metric.is_accuracy])
    ours, explained = match(groups), [each.explanation for each in found.explanations]
    return [
        tables.mean_gain(ours),
        tables.every_algorithm(ours),
        tables.signs(ours),
        tables.baselines(ours),
        tables.no_extra_cost(ours),
        tables.personal(ours),
        tables.more_atoms(ours),
        tables.fewer_rounds(ours),  # figure (a)
        measures.variance(found.measures),  # (b)
        runs.sampled(groups),  # (c)
        runs.more_clients(groups),
        runs.communication(groups),  # (d)
        measures.synthetic(found.measures),
        measures.training_loss(found.measures),
        measures.landscape(found.measures),
        measures.bounded(explained),
        measures.latent(explained),
        runs.elsewhere(groups, ours),
    ]
