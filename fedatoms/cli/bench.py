"""fedatoms bench: how fast, how big."""

from fedatoms.cli.args import parse
from fedatoms.cli.console import terminal
from fedatoms.experiment.fields import Experiment


def command(words: list[str]) -> int:
    """Measures, writes and shows what there is a bar for."""
    import torch

    from fedatoms.bench import cpu, gpu
    from fedatoms.bench.results import Bench, Event, check, collect, machine, write
    from fedatoms.cli.tables import benchmarks, contest, news
    from fedatoms.experiment.build import device_of

    settings, console = parse("bench", words, Bench()), terminal()
    check(settings)  # before a file is written
    events: list[Event] = []
    device = device_of(Experiment(device=settings.device))
    torch.set_num_threads(settings.threads)  # which the file names
    origin = machine(device)
    write(collect(settings, events, origin))  # a file that cannot be written is said now
    for event in cpu.measure(settings) if device == "cpu" else gpu.measure(settings):
        events.append(event)
        write(collect(settings, events, origin))  # what was measured stays, should a later part never end
        console.print(news(event), highlight=False, soft_wrap=True)
    results = collect(settings, events, origin)
    if results.rows:
        console.print(contest(results.rows))
    console.print(benchmarks(results.results))
    return 0
