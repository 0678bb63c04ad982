"""Calls with nonsense, of what came last: networks that come and go, data that are read lazily, and what is learnt."""

from itertools import product

NUMBERS = ("-1", "0", "1.5", "nan", "inf", "10**30", "True", "None", "'1'", "[1]", "1j", "torch.tensor(2)")
MODELS = (
    "nn.LazyConv2d(4, 3)",
    "nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))",
    "nn.DataParallel(net())",
    "torch.jit.script(net())",
    "nn.Sequential()",
    "nn.Linear(3, 3)",
    "nn.Conv2d(1, 4, 1)",
    "nn.Conv2d(1, 4, (3, 5))",
    "nn.Conv2d(4, 4, 3, groups=4)",
    "nn.ConvTranspose2d(1, 4, 3)",
    "nn.Conv3d(1, 4, 3)",
    "nn.Conv2d(1, 4, 3, dtype=torch.complex64)",
    "nn.Conv2d(1, 4, 3, device='meta')",
    "nn.utils.parametrizations.weight_norm(conv())",
    "nn.utils.weight_norm(conv())",
    "torch.compile(net())",
    "decompose(net(), atoms=2)",
    "None",
    "'net'",
    "nn.Conv2d",
)
OUT = (
    "''", "'net'", "'net.onnx'", "None", "3", "'a\\0b.safetensors'", "'/proc/net.safetensors'", "'runs'", "'/dev/null'",
)  # fmt: skip
OWN_FILES = ("'runs/a/model.safetensors'", "'runs/a/personal/000000.safetensors'", "'runs/a/checkpoint/x.safetensors'")
SHAPES = ("()", "None", "3", "(1, 6)", "(1, 6, -6)", "(1, 6, 6.5)", "(1, 10**9, 10**9)", "(0, 6, 6)", "('1', 6, 6)")
SAFE = "shape=(1, 6, 6), to='safetensors'"
LEFT = (
    *(f"fnn.export({model}, 'net.safetensors', {SAFE})" for model in MODELS),
    *(f"fnn.export(net(), {path}, {SAFE})" for path in (*OUT, *OWN_FILES)),
    *(f"fnn.export(net(), 'net.safetensors', shape={shape}, to='safetensors')" for shape in SHAPES),
    *(f"fnn.export(net(), 'net.onnx', shape=(1, 6, 6), to={to})" for to in ("'nosuch'", "None", "3")),
    *(f"fnn.summary({model})" for model in MODELS),
    *(f"fnn.summary(net(), {value})" for value in (*NUMBERS, "10**6")),
    *(f"fnn.summary(net(), where={value})" for value in ("'('", "3", "lambda name: 1")),
    *(f"fnn.summary(net(), head={value})" for value in ("'nosuch'", "''", "3", "'0'", "[]")),
)
PLACES = ("''", "'/nothing'", "'/dev/null'", "'/dev/zero'", "None", "3", "'a\\0b'", "'runs'", "'w.pth'")
LOADED = (
    *(f"fnn.load_weights(net(), {path})" for path in (*PLACES, "'runs/a/model.safetensors'", "'runs/a/result.json'")),
    *(f"fnn.load_weights({model}, 'w.pth')" for model in MODELS),
    *(f"fnn.load_weights(net(), 'w.pth', sha256={value})" for value in ("'x'", "None", "3")),
    *(f"fnn.load_weights(net(), 'w.pth', head={value})" for value in ("'nosuch'", "''", "3")),
    *(f"fnn.build({name}, classes=10)" for name in ("'nosuch'", "None", "3", "''", "'os:getcwd'", "'math:pi'")),
    *(f"fnn.build('digits-cnn', classes={value})" for value in (*NUMBERS, "10**12")),
    *(f"fnn.build('digits-cnn', classes=10, channels={value})" for value in (*NUMBERS, "10**12")),
)
ITEMS = (
    "[]", "None", "3", "[None]", "[[]]", "[[1, 2, 3]]", "[[(torch.zeros(1, 6, 6), 'x')]]",
    "[[(torch.zeros(1, 6, 6),)]]",
    "[[(torch.zeros(1, 6, 6), torch.tensor(0)), (torch.zeros(1, 5, 5), torch.tensor(0))]]",
    "[[(torch.full((1, 6, 6), nan), 0)] * 8]", "[[(torch.zeros(1, 6, 6), 10**12)] * 8]",
    "[[(np.zeros((1, 6, 6), dtype=object), 0)] * 8]", "[Failing()]", "[Endless()]", "[TensorDataset(*images())]",
    "[torch.utils.data.IterableDataset()]",
)  # fmt: skip
LAZY = (
    *(f"train(sim(data=federation({items}, test=images(), lazy=True)), 1).scores" for items in ITEMS),
    *(f"federation([TensorDataset(*images())], test=images(), lazy=True, workers={value})" for value in NUMBERS),
    *(f"federation([images()], test=images(), lazy={value})" for value in ("None", "3", "'x'")),
    *(f"federation([images()], tests={value})" for value in ("None", "[]", "[None]", "[images(0)]", "3", "[1, 2]")),
)
FACTORIES = {
    "objectives.classification": ("-1", "1", "nan", "'x'", "None", "0.1, [1]", "0.1, []", "0.1, [nan]", "0.1, 'x'"),
    "objectives.regression": ("3", "None", "'a' * 9999", "'a\\nb'"),
    "objectives.segmentation": ("'x'", "1.5", "None", "nan", "-1", "10**30"),
    "objectives.objective": ("'nosuch'", "None", "3", "'os:getcwd'", "'regression', 1", "'classification', 7"),
    "optimisers.sgd": NUMBERS,
    "optimisers.adamw": (*NUMBERS, "0.9, 1", "0.9, nan", "0.9, 0.9, 0", "0.9, 0.9, -1", "0.9, 0.9, inf"),
    "optimisers.optimiser": ("'nosuch'", "None", "3", "'os:getcwd'", "'adamw', 0.9", "'sgd', 2"),
    "optimisers.constant": (*NUMBERS, "steps='nosuch'", "warmup_steps=-1", "warmup_steps=10**12"),
    "optimisers.cosine": (*NUMBERS, "3, 3", "3, -1", "3, steps=None", "3, warmup_steps=nan"),
}
LEARNT = (
    *(f"{factory}({value})" for factory, values in FACTORIES.items() for value in values),
    *(f"train(sim(objective={value}), 1).scores" for value in ("None", "'regression'", "objectives.regression", "3")),
    *(f"train(sim(objective=objectives.{name}()), 1).scores" for name in ("regression", "multi_label", "segmentation")),
    *(
        f"train(sim(training=Training({name}={value})), 1).scores"
        for name, value in product(("optimiser", "schedule"), ("'adamw'", "3", "lambda t: 1", "optimisers.adamw"))
    ),
    *(f"train(sim(training=Training(accumulate={value})), 1).scores" for value in (*NUMBERS, "10**6")),
    *(
        f"train(sim(training=Training(schedule=optimisers.Schedule(lambda t: {value}))), 1).scores"
        for value in ("nan", "-1", "None", "'x'", "1j")
    ),
    "train(sim(training=Training(optimiser=optimisers.adamw(), momentum=0.9)), 1).scores",
)
CALLS: tuple[str, ...] = (*LEFT, *LOADED, *LAZY, *LEARNT)
NONSENSE = (  # what must not work
    *(f"fnn.export(net(), {path}, {SAFE})" for path in OWN_FILES),
    *(f"fnn.export({model}, 'net.safetensors', {SAFE})" for model in ("None", "'net'", "nn.Conv2d")),
    *(f"fnn.summary({model})" for model in ("None", "'net'", "nn.Conv2d")),
    *(f"fnn.build('digits-cnn', classes={value})" for value in ("-1", "0", "nan", "10**12")),
    *(f"objectives.segmentation({value})" for value in ("'x'", "1.5", "None", "nan")),
    *(f"train(sim(training=Training(accumulate={value})), 1).scores" for value in ("-1", "0", "nan", "1.5")),
    "fnn.load_weights(net(), 'w.pth')",
)
