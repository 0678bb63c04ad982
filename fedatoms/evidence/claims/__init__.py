"""The paper's claims, each judged by a stated rule; imports results and below."""

from fedatoms.evidence.claims import costs, measures, runs, tables
from fedatoms.evidence.claims.base import Claim
from fedatoms.evidence.results.cells import match
from fedatoms.evidence.results.finding import Found
from fedatoms.evidence.results.groups import group
from fedatoms.evidence.results.pairs import known_spreads, latent_pairs, server_spread, unpaired_server_spread

__all__ = ["Claim", "claims"]


def claims(found: Found) -> list[Claim]:
    """Judges the paper's claims by everything that was found, tables first, then figures.

    >>> {claim.verdict for claim in claims(Found([], [], [], [], []))}
    {'not run'}
    """
    groups = group([run for run in found.runs if run.result.metric.is_accuracy])
    ours, explained = match(groups), [each.explanation for each in found.explanations]
    measured = measures.of_the_papers(found.measures)
    spreads, of_server = known_spreads(groups), server_spread(groups)
    shared, own = spreads
    return [
        tables.whole_gain(ours, shared),
        tables.every_algorithm(ours, shared),
        tables.signs(ours, shared),
        tables.baselines(ours),
        tables.no_extra_cost(ours),
        tables.personal(ours, own),
        tables.majority(ours, own),
        tables.more_atoms(ours, own),
        costs.fewer_rounds(ours),  # figure (a)
        *measures.variance(measured),  # (b)
        runs.sampled(groups, of_server),  # (c)
        runs.more_clients(groups, unpaired_server_spread(groups)),
        runs.growing(groups, of_server),
        costs.communication(groups, costs.rounds_spread(ours, "server")),  # (d)
        costs.own_models(groups, costs.rounds_spread(ours)),
        measures.synthetic(measured),
        measures.nearer(measured),
        measures.training_loss(measured),
        measures.landscape(measured),
        measures.bounded(explained),
        measures.latent(explained, latent_pairs(groups), of_server),
        runs.elsewhere(groups, ours, spreads),
    ]
