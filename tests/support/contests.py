"""The settings of a contest that takes a second."""

from fedatoms.bench.results import Bench

TINY = Bench(
    threads=1, repeats=2, steps=2, clients="2,3", batch="2", rounds=1, against=2, samples=4, tested=4,
    precision="float32", backend="eager", pfl_clients=4, pfl_cohort=2, pfl_processes="1",
)  # fmt: skip
