"""A client that joins after training: a few hundred numbers make the global model its own, and fill a small file."""

import tempfile

import torch
from torch import Tensor, nn

import fedatoms


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Says in per cent how often a model is right."""
    with torch.no_grad():
        return 100 * float((model.eval()(x).argmax(1) == y).double().mean())


def main() -> None:
    """Ten clients train a model of digits; then one joins whose scanner mirrors every picture."""
    torch.set_num_threads(1)  # 8x8 pixels: a second thread would only wait
    digits = fedatoms.data.load("digits")
    x, y, new_x, new_y = digits.x / 16, digits.y, digits.test_x.flip(-1) / 16, digits.test_y
    clients = [(x[k::10], y[k::10]) for k in range(10)]
    net = fedatoms.decompose(fedatoms.nn.build("digits-cnn", classes=10, channels=1), atoms=9, init="orthonormal")
    data = fedatoms.data.federation(clients, test=(digits.test_x / 16, digits.test_y))
    training = fedatoms.Training(epochs=2, batch_size=20, lr=0.1, momentum=0.5)
    method = fedatoms.personal.local_atoms()
    sim = fedatoms.Simulation(net, data, personal=method, training=training, score=("server",))
    model = fedatoms.train(sim, 8, eval_every=8).model

    own = fedatoms.adapt.personalise(model, (new_x[::2], new_y[::2]), epochs=20)  # its atoms; all else is fixed
    with tempfile.TemporaryDirectory() as folder:
        file = fedatoms.adapt.save_personal(f"{folder}/ann.safetensors", own, of=model)
        ours, size = fedatoms.adapt.load_personal(model, file), file.stat().st_size  # one plain network
    numbers = sum(leaf.numel() for leaf in own.values())
    print(f"global model    accuracy {accuracy(model, new_x[1::2], new_y[1::2]):.1f} % on mirrored digits")
    print(f"personal model  accuracy {accuracy(ours, new_x[1::2], new_y[1::2]):.1f} %: {numbers} numbers, {size} bytes")


if __name__ == "__main__":
    main()
