"""The public surface called with nonsense: it works, or refuses in one line of our own words."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import product, zip_longest
from pathlib import Path

from hostile import misused, subjects
from hostile.misused import MODELS, NUMBERS
from hostile.shell import Shell
from hostile.verdicts import Case, Verdict, verdict

NUMBER, REAL = 400, 60
MEMORY = 1000.0  # MB above an idle interpreter

TRAINING = ("epochs", "batch_size", "lr", "lr_decay", "momentum", "weight_decay", "clip", "atoms_lr", "controls")
TRAINED = (f"train(sim(training=Training({name}={value})), 1).scores" for name in TRAINING for value in NUMBERS)
SIMULATED = (
    f"train(sim({name}={value}), 1).scores"
    for name, values in {
        "fraction": NUMBERS,
        "failures": ("-1", "1", "0.999999999", "nan", "'x'", "None"),
        "score": ("()", "('nosuch',)", "'server'", "None", "3", "('personal',)", "('server', 'server')"),
        "seed": ("-1", "10**30", "1.5", "nan", "None", "'x'"),
        "device": ("'cuda:7'", "'cpu:7'", "'meta'", "'nosuch'", "''", "None", "3", "torch.device('cpu')"),
        "map": ("'nosuch'", "None", "3"),
        "block": ("-1", "1.5", "nan", "10**30", "None"),
        "precision": ("'float16'", "None"),
        "client_state": ("'nosuch'", "'disk'", "None"),
        "head": ("'nosuch'", "''", "3", "'0'"),
        "algorithm": ("None", "'fedavg'", "algorithms.fedavg"),
        "exchange": ("None", "engine.every_round()"),
        "personal": ("None", "'local'", "personal.local_atoms()", "personal.fedbn()"),
        "training": ("None", "{}", "Training"),
        "model": (
            "None",
            "nn.Identity()",
            "nn.Linear(3, 3)",
            "net().half()",
            "net().to(torch.complex64)",
            "net().cuda",
        ),
        "data": ("None", "[]", "(1, 2)"),
    }.items()
    for value in values
)
CHANGED = (f"{call}({model})" for call, model in product(("decompose", "fuse", "groups", "fnn.factorise"), MODELS))
DECOMPOSED = (
    *(f"decompose(net(), atoms={value})" for value in (*NUMBERS, "10**6", "10**12")),
    *(f"decompose(net(), init={value})" for value in ("'nosuch'", "None", "3", "''")),
    *(f"decompose(net(), where={value})" for value in ("'('", "3", "'nosuch'", "None")),
    *(f"fnn.factorise(net(), gamma={value})" for value in NUMBERS),
    "decompose(decompose(net(), atoms=2), atoms=5)",
    "decompose(decompose(net(), atoms=2), init='dct')",
)
DATA = (
    "federation([], test=images())",
    "federation(images(), test=images())",
    "federation(None, test=None)",
    "federation([images()], test=None)",
    "federation([(1, 2)], test=images())",
    "federation([images(dtype=torch.complex64)], test=images())",
    "federation([images(dtype=torch.uint8), images()], test=images())",
    "federation([images(dtype=torch.float64), images()], test=images())",
    "federation([images(dtype=torch.bool)], test=images())",
    "federation([(torch.zeros(3, 1, 6, 6), torch.zeros(3))], test=images())",
    "federation([(torch.zeros(3, 1, 6, 6), torch.tensor([0, 1, 2**62]))], test=images())",
    "federation([(torch.zeros(3, 1, 6, 6), torch.tensor([0, 1, 10**9]))], test=images())",
    "federation([(torch.full((3, 1, 6, 6), nan), torch.arange(3))], test=images())",
    "federation([images(0)], test=images())",
    "federation([images()], test=images(0))",
    "federation([(torch.zeros(3, 1, 6, 6).to_sparse(), torch.arange(3))], test=images())",
    "federation([(torch.zeros(3, 1, 6, 6, device='meta'), torch.arange(3))], test=images())",
    "federation([(np.zeros((3, 6), dtype=object), np.arange(3))], test=images())",
    "federation([(np.zeros((3, 6), dtype='U3'), np.arange(3))], test=images())",
    "federation([TensorDataset(*images())], test=TensorDataset(*images()))",
    "federation({'a': images()}, test=images())",
    "federation([torch.utils.data.IterableDataset()], test=images())",
    *(f"data.load({name})" for name in ("'nosuch'", "None", "3", "'digits', 3", "'digits', augment='nosuch'")),
    *(f"data.load('cifar10', {place})" for place in ("''", "'/nothing'", "'a\\0b'", "None", "'/dev/zero'")),
    *(f"data.iid(torch.arange(9), torch.arange(9), {value}, 0)" for value in NUMBERS),
    *(f"data.dirichlet(torch.arange(9) % 3, torch.arange(9) % 3, 3, {value}, 0)" for value in (*NUMBERS, "1e308")),
    *(f"data.shards(torch.arange(9) % 3, torch.arange(9) % 3, 3, {value}, 0)" for value in NUMBERS),
    *(f"data.hold_out(data.load('digits'), {value}, 0)" for value in NUMBERS),
    "data.iid([], [], 1, 0)",
    "data.iid(torch.zeros(3, 3), torch.zeros(3), 2, 0)",
    "data.dirichlet(torch.tensor([5, 7]), torch.tensor([5]), 1, 1.0, 0)",
)
TRAINS = (
    *(
        f"train(sim(), {value}).scores" for value in NUMBERS if value not in ("10**30", "inf")
    ),  # which would work for long
    *(f"train(sim(), 1, eval_every={value}).scores" for value in NUMBERS),
    "train(sim(), 1, watch=3)",
    "train(None, 1)",
    "train(Simulation, 1)",
    "train(sim(model=decompose(net(), atoms=2), personal=personal.local_atoms()), 1).scores",
    "train(sim(model=nn.Sequential(nn.Flatten(), nn.Linear(36, 2))), 1)",
    "train(sim(model=nn.Sequential(nn.Flatten(), nn.Linear(35, 3))), 1)",
    "train(sim(model=nn.Flatten()), 1)",
    "train(sim(model=nn.DataParallel(net())), 1).scores",
    "train(sim(model=nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))), 1)",
    "train(sim(data=federation([images(dtype=torch.uint8)] * 2, test=images(dtype=torch.uint8))), 1).scores",
    "train(sim(data=sim().data._replace(parts=[])), 1)",
    "train(sim(data=sim().data._replace(classes=-1)), 1)",
    "train(sim(data=sim().data._replace(parts=[torch.tensor([99])] * 2)), 1)",
)
METHODS = (
    *(
        f"algorithms.{name}({value})"
        for name in ("fedprox", "feddyn", "feddc", "fedavgm", "fedadam")
        for value in NUMBERS
    ),
    *(
        f"algorithms.algorithm({value})"
        for value in ("'nosuch'", "None", "3", "'os:getcwd'", "'fedprox', -1", "'fedavg', 1")
    ),
    *(
        f"personal.personal({value})"
        for value in ("'nosuch'", "None", "3", "'os:getcwd'", "'ditto', -1", "'ditto', nan")
    ),
    *(
        f"engine.fast_slow({value})"
        for value in ("{'atoms'}, {'head'}, 0", "{'x'}, {'y'}, 2", "None, None, 2", "'atoms', 'head', nan")
    ),
    "engine.Exchange(None)",
    "engine.Exchange(engine.every_round(), slow_local='nosuch')",
)
PATHS = ("''", "'/nothing'", "'/dev/null'", "None", "3", "'a\\0b'", "'runs'")
FIELDS = (
    "rounds='x'", "rounds=nan", "lr=None", "out=None", "name='a/b'", "out=''", "dataset=3", "beta=nan", "beta=0",
    "fast=3", "model='os:getcwd'", "model=''", "strength='x'", "seed=-1", "seed=10**30", "clients=True",
    "out='/proc/x'", "name='a' * 300", "name='\\0'", "out='\\0'",
)  # fmt: skip
SETTINGS = ("part", "epochs", "lr", "momentum", "batch_size", "clip", "weight_decay", "seed", "device", "head")
OWN = ("None", "images()", "(1, 2)", "(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 99]))")
INPUTS = ("None", "3", "torch.zeros(3)", "torch.full((1, 1, 8, 8), nan)", "'x'")
RUNS = (
    *(f"{call}({path})" for call in ("load_model", "read_result") for path in PATHS),
    *(f"run(replace(TINY, {change}))" for change in FIELDS),
    *(f"preset({name})" for name in ("'nosuch'", "None", "3", "''")),
    *(f"adapt.personal_model('runs/a', {client})" for client in NUMBERS),
    *(f"adapt.personalise('runs/a', {value})" for value in OWN),
    *(
        f"adapt.personalise(decompose(net(), atoms=2), images(), {name}={value})"
        for name, value in product(SETTINGS, ("-1", "nan", "None", "'x'", "10**30"))
    ),
    *(f"adapt.inputs_of('runs/a', {value})" for value in INPUTS),
    "adapt.save_personal('own.safetensors', {}, of=net())",
    "adapt.save_personal('', {'0.weight': torch.zeros(1)}, of=net())",
    "adapt.save_personal('/proc/x', dict(net().state_dict()), of=net())",
    "adapt.load_personal(net(), '/dev/zero')",
    "adapt.load_personal(net(), 'runs/a/model.safetensors')",
    "adapt.load_personal('runs/a', 'runs/a/personal/000000.safetensors')",
    "fnn.AtomConv2d(1, 4, 3, atoms=-1)",
)
GROUPS = {
    "training": (*TRAINED, *TRAINS),
    "simulations": tuple(SIMULATED),
    "networks": (*CHANGED, *DECOMPOSED),
    "data": DATA,
    "methods": METHODS,
    "runs": RUNS,
    "export and summary": misused.LEFT,
    "weights": misused.LOADED,
    "lazy data": misused.LAZY,
    "objectives, optimisers and schedules": misused.LEARNT,
}
CALLS: tuple[str, ...] = tuple(call for calls in GROUPS.values() for call in calls)


BELOW_NOTHING = ("-1", "nan", "inf", "1j", "[1]")
NONSENSE = frozenset(  # what must not work
    [
        *(
            f"train(sim(training=Training({name}={value})), 1).scores"
            for name in TRAINING[:7]
            for value in BELOW_NOTHING
        ),
        *(f"train(sim(), {value}).scores" for value in ("-1", "0", "1.5", "nan", "None")),
        *(f"train(sim(block={value}), 1).scores" for value in ("-1", "1.5", "nan")),
        *(f"train(sim(device={value}), 1).scores" for value in ("'cuda:7'", "'cpu:7'", "'meta'", "'nosuch'", "''")),
        "federation([images(dtype=torch.complex64)], test=images())",
        "federation([images(dtype=torch.uint8), images()], test=images())",
        "decompose(decompose(net(), atoms=2), atoms=5)",
        *misused.NONSENSE,
    ]
)


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted(GROUPS)


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Takes calls that must not work, and others in a random order; with a large number all of them."""
    source = subjects.finished(store, "personal")
    others = [code for code in CALLS if code not in NONSENSE]
    nonsense = sorted(NONSENSE) if number >= NUMBER else draws.sample(sorted(NONSENSE), number // 4)
    for code in [*nonsense, *_of_each_group(draws, others, number - len(nonsense))]:
        yield Case(code, partial(_judge, source, code))


def _of_each_group(draws: random.Random, codes: list[str], number: int) -> list[str]:
    """Draws calls, as many of each group as of any other while there are some left."""
    groups = [[code for code in codes if code in calls] for calls in GROUPS.values()]
    rows = zip_longest(*(draws.sample(found, len(found)) for found in groups))
    mixed = [code for row in rows for code in row if code is not None]
    return list(dict.fromkeys(mixed))[:number]


def _judge(source: Path, code: str, folder: Path, shell: Shell) -> Verdict:
    subjects.copied(source, folder)
    found = verdict(shell.python(code, folder), MEMORY)
    return Verdict("different", "nonsense is accepted") if found.word == "fine" and code in NONSENSE else found
