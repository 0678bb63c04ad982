"""fedatoms bench: how fast, how big."""

from collections.abc import Sequence
from typing import Annotated

from fedatoms.bench.settings import Bench
from fedatoms.cli.args import flags, updated
from fedatoms.cli.console import line, show_table, suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.experiment.fields import Experiment


def options(words: Sequence[str]) -> Options:
    """Returns the options: the settings of the benchmark."""

    def bench(*, given: Annotated[object, flags(Bench())]) -> Job:
        """Measures speed and memory against a hand-written loop, and says which bars are met.

        With --device cuda, torch.compile, CUDA graphs, JAX and pfl compete too; flags below --out are for that alone.
        """
        return lambda: _bench(updated(Bench(), given))

    return bench


def _bench(settings: Bench) -> int:
    import torch

    from fedatoms.bench import cpu, gpu
    from fedatoms.bench.results import Event, check, collect, machine, write
    from fedatoms.cli.result_tables import benchmarks, contest, news
    from fedatoms.core.allocator import keep_freed_memory
    from fedatoms.experiment.build import device_of

    check(settings)  # before a file is written
    console, events = terminal(), list[Event]()
    device = device_of(Experiment(device=settings.device))
    torch.set_num_threads(settings.threads)  # which the file names
    keep_freed_memory()  # as in any run, and for all contestants
    origin = machine(device)
    write(collect(settings, events, origin))  # a file that cannot be written fails now
    for event in cpu.measure(settings) if device == "cpu" else gpu.measure(settings):
        events.append(event)
        write(collect(settings, events, origin))  # what was measured stays, should a later part never end
        line(console, news(event))
    results = collect(settings, events, origin)
    if results.rows:
        show_table(console, contest(results.rows))
    show_table(console, benchmarks(results.results))
    if device == "cpu":
        suggest(console, ("fedatoms bench --device cuda --out bench.json", "the contest on a GPU, kept in a file"))
    return 0
