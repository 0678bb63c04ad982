"""The same round of FedAvg in JAX: plain LeNet, `vmap` over clients, `scan` over steps, one `jit` around both.

Run as `python -m fedatoms.bench.jax_twin JSON`, in a process of its own so that its memory is its own. It imports no
torch; it imports jax only when a function is called.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import jax

PAD = 4
SHAPES = {  # of nn.models.lenet
    "conv1.weight": (64, 3, 5, 5),
    "conv1.bias": (64,),
    "conv2.weight": (64, 64, 5, 5),
    "conv2.bias": (64,),
    "fc1.weight": (384, 1600),
    "fc1.bias": (384,),
    "fc2.weight": (192, 384),
    "fc2.bias": (192,),
    "fc3.weight": (10, 192),
    "fc3.bias": (10,),
}
PRECISIONS = {"tf32": "tensorfloat32", "float32": "float32", "bf16": "default"}
Arrays = dict[str, "jax.Array"]
Array = npt.NDArray[np.generic]


class Task(NamedTuple):
    """What to measure; the batches are drawn anew for each round, as everywhere."""

    clients: int
    samples: int
    batch: int
    epochs: int
    turns: int
    lr: float
    momentum: float
    weight_decay: float
    clip: float
    precision: str


class Batches(NamedTuple):
    """Rows (C, S, B) of the pool, and how each image is augmented."""

    rows: Array
    flip: Array
    shift: Array  # (C, S, B, 2)


Round = Callable[[Arrays, "jax.Array", "jax.Array", Batches], Arrays]


def federated_round(task: Task) -> Round:
    """Returns a compiled round: parameters, pool and batches in; the mean of the clients' parameters out."""
    import jax
    import jax.numpy as jnp

    step = _step(task)

    def client(params: Arrays, x: "jax.Array", y: "jax.Array", batches: Batches) -> Arrays:
        def once(carry: tuple[Arrays, Arrays], now: Batches) -> tuple[tuple[Arrays, Arrays], None]:
            return step(carry, _inputs(x[now.rows], now), y[now.rows]), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        last: tuple[Arrays, Arrays] = jax.lax.scan(once, (params, zeros), batches)[0]
        return last[0]

    def whole(params: Arrays, x: "jax.Array", y: "jax.Array", batches: Batches) -> Arrays:
        trained = jax.vmap(client, in_axes=(None, None, None, 0))(params, x, y, batches)
        mean: Arrays = jax.tree.map(lambda leaf: leaf.mean(0), trained)
        return mean

    compiled: Round = jax.jit(whole)
    return compiled


def logits_of(params: Arrays, x: "jax.Array") -> "jax.Array":
    """LeNet, with torch's names and layouts."""
    import jax
    import jax.numpy as jnp

    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        x = jax.nn.relu(x + params[f"{name}.bias"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(x @ params[f"{name}.weight"].T + params[f"{name}.bias"])
    return x @ params["fc3.weight"].T + params["fc3.bias"]


def draw(task: Task, draws: np.random.Generator) -> Batches:
    """Draws every client's batches of a round, augmentation included.

    >>> draw(Task(2, 6, 3, 1, 1, 0.1, 0.0, 0.0, 1.0, "tf32"), np.random.default_rng(0)).rows.shape
    (2, 2, 3)
    """
    order = [
        client * task.samples + draws.permutation(task.samples)
        for client in range(task.clients)
        for _ in range(task.epochs)
    ]
    rows = np.stack(order).reshape(task.clients, -1, task.batch)
    cropped = draws.random((*rows.shape, 1)) < 0.5
    return Batches(rows, draws.random(rows.shape) < 0.5, draws.integers(-PAD, PAD + 1, (*rows.shape, 2)) * cropped)


def measure(task: Task) -> dict[str, object]:
    """Times the first round, which compiles, and those after it."""
    import jax

    draws = np.random.default_rng(0)
    n = task.clients * task.samples
    x = jax.device_put(draws.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8))
    y = jax.device_put(draws.integers(0, 10, n))
    params: Arrays = {
        name: jax.device_put(draws.normal(0, 0.03, shape).astype(np.float32)) for name, shape in SHAPES.items()
    }
    train, seconds = federated_round(task), []
    with jax.default_matmul_precision(PRECISIONS[task.precision]):
        for _ in range(1 + task.turns):
            began = time.perf_counter()
            params = jax.block_until_ready(train(params, x, y, jax.device_put(draw(task, draws))))
            seconds.append(time.perf_counter() - began)
    if not all(bool(np.isfinite(leaf).all()) for leaf in params.values()):
        raise FloatingPointError("the JAX model is not finite")
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {"first": seconds[0], "seconds": seconds[1:], "memory": memory and memory / 1e6, "jax": jax.__version__}


def _inputs(x: "jax.Array", now: Batches) -> "jax.Array":
    """Normalises, flips and shifts images by one gather from padded planes, as ``data.batches`` does."""
    import jax.numpy as jnp

    n, channels, height, width = x.shape
    wide = width + 2 * PAD
    images = (x.astype(jnp.float32) / 255 - 0.5) / 0.25
    padded = jnp.pad(images, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD))).reshape(n, channels, -1)
    row = jnp.arange(PAD, PAD + height) + now.shift[:, :1]
    column = jnp.arange(PAD, PAD + width) + now.shift[:, 1:]
    column = jnp.where(now.flip[:, None], wide - 1 - column, column)
    pixel = (row[:, :, None] * wide + column[:, None, :]).reshape(n, 1, -1)
    return jnp.take_along_axis(padded, pixel, axis=2).reshape(x.shape)


def _step(
    task: Task,
) -> Callable[[tuple[Arrays, Arrays], "jax.Array", "jax.Array"], tuple[Arrays, Arrays]]:
    """Returns one step of SGD: gradient, clip, weight decay, momentum."""
    import jax
    import jax.numpy as jnp

    compute = jnp.bfloat16 if task.precision == "bf16" else jnp.float32

    def loss(params: Arrays, x: "jax.Array", y: "jax.Array") -> "jax.Array":
        low = jax.tree.map(lambda leaf: leaf.astype(compute), params)
        likely = jax.nn.log_softmax(logits_of(low, x.astype(compute)).astype(jnp.float32))
        return -jnp.take_along_axis(likely, y[:, None], axis=1).mean()

    def step(carry: tuple[Arrays, Arrays], x: "jax.Array", y: "jax.Array") -> tuple[Arrays, Arrays]:
        params, velocity = carry
        gradient = jax.grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradient.values()))
        scale = jnp.minimum(task.clip / (norm + 1e-6), 1.0)
        moves = {
            name: g * scale + task.weight_decay * params[name] + task.momentum * velocity[name]
            for name, g in gradient.items()
        }
        new = {name: leaf - task.lr * moves[name] for name, leaf in params.items()}
        return new, moves if task.momentum else velocity

    return step


if __name__ == "__main__":
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))
