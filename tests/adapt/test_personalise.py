"""A client that joins later: only its part moves, its file is small and knows its model, and mistakes cost a line."""

import ast
import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.small import difference, identical, small_net
from torch import Tensor, nn

import fedatoms
from fedatoms.adapt.fitting import fingerprint, inputs_of, load_personal, personal_model, personalise, save_personal
from fedatoms.adapt.joining import Newcomer, join, prepare
from fedatoms.cli import main
from fedatoms.data import load
from fedatoms.data.image_files import FORMATS, Wanted, read_images
from fedatoms.nn.atoms import decompose, is_decomposed
from fedatoms.nn.models import build
from fedatoms.nn.parameter_groups import groups
from fedatoms.nn.pure import with_params

SMALL = "--clients 5 --rounds 2 --epochs 1 --batch-size 32 --threads 1 --device cpu --parametrisation atoms".split()


def a_client(n: int = 23, seed: int = 1) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 6, 6, dtype=torch.float64, generator=draws), torch.randint(3, (n,), generator=draws)


def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model.eval()(data[0]), data[1]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs on digits: with clients' own atoms, with another seed, plain, and one that is not finished."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["run", *SMALL, "--out", str(folder)]
    assert main([*words, "--name", "mine", "--personal", "local-atoms", "--own-test", "classes"]) == 0
    assert main([*words, "--name", "other", "--seed", "1"]) == 0
    assert main([*words, "--name", "plain", "--parametrisation", "plain"]) == 0
    shutil.copytree(folder / "mine", folder / "unfinished")
    (folder / "unfinished" / "model.safetensors").unlink()
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(runs)
    digits = load("digits")
    np.savez("ann.npz", x=digits.test_x[:60].flip(-1).numpy(), y=digits.test_y[:60].numpy())
    return tmp_path


@pytest.mark.parametrize("part", ["atoms", "head", "atoms,head"])
def test_all_but_the_part_is_untouched_to_the_bit(part: str) -> None:
    net, data = small_net(atoms=4, norm=True), a_client()
    before = {name: leaf.clone() for name, leaf in net.state_dict().items()}
    own = personalise(net, data, part=part)
    assert identical(before, dict(net.state_dict()))
    assert own.keys() == {name for name, group in groups(net).items() if group in part.split(",")}
    assert not any(torch.equal(leaf, before[name]) for name, leaf in own.items())
    with_own = with_params(net, own, own).state_dict()
    assert identical(
        {n: v for n, v in before.items() if n not in own}, {n: with_own[n] for n in before if n not in own}
    )


@pytest.mark.parametrize("part", ["atoms", "head", "atoms,head"])
def test_the_fit_lowers_the_loss_on_the_clients_data(part: str) -> None:
    net, data = small_net(atoms=4), a_client()
    own = personalise(net, data, part=part)
    assert loss(with_params(net, own, own), data) < loss(net, data)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    net, data = small_net(atoms=4), a_client()
    first, again, other = (personalise(net, data, seed=seed) for seed in (0, 0, 1))
    assert identical(first, again) and not identical(first, other)
    files = [save_personal(tmp_path / f"{k}.safetensors", own, of=net) for k, own in enumerate((first, again))]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_is_the_hand_written_loop() -> None:
    net, (x, y) = small_net(atoms=4), a_client(n=10)
    own = personalise(net, (x, y), epochs=3, lr=0.05, momentum=0.9, batch_size=10)
    mine = copy.deepcopy(net)
    atoms = [leaf for name, leaf in mine.named_parameters() if name.endswith("atoms")]
    optimiser = torch.optim.SGD(atoms, lr=0.05, momentum=0.9)
    for _ in range(3):  # one batch is the whole data, so its order does not matter
        optimiser.zero_grad()
        F.cross_entropy(mine(x), y).backward()
        nn.utils.clip_grad_norm_(atoms, 10.0)
        optimiser.step()
    assert difference(own, {name: mine.state_dict()[name] for name in own}) < 1e-12


@pytest.mark.parametrize("part", ["atoms", "atoms,head"])
def test_the_loaded_network_is_plain_and_computes_the_same(part: str, tmp_path: Path) -> None:
    net, data = small_net(atoms=4, norm=True), a_client()
    own = personalise(net, data, part=part)
    loaded = load_personal(net, save_personal(tmp_path / "ann.safetensors", own, of=net))
    assert not is_decomposed(loaded) and not loaded.training
    assert torch.allclose(loaded(data[0]), with_params(net, own, own).eval()(data[0]), atol=1e-5)
    small_net(norm=True).load_state_dict(loaded.state_dict())  # the network before it was decomposed


def test_a_data_set_a_recipe_and_a_plain_model_with_a_head_work_too(tmp_path: Path) -> None:
    net, (x, y) = small_net(), a_client()
    recipe = fedatoms.data.Recipe(2.0, (0.5,), (0.25,), flip=False, pad=0, crop=0.0, fill="zero")
    own = personalise(net, torch.utils.data.TensorDataset(x, y), part="head", recipe=recipe)
    assert difference(own, personalise(net, ((x / 2 - 0.5) / 0.25, y), part="head")) < 1e-12
    assert own.keys() == {"fc2.weight", "fc2.bias"}
    load_personal(net, save_personal(tmp_path / "x.safetensors", own, of=net))
    assert personalise(net, (x, y), part="head", head="fc1").keys() == {"fc1.weight", "fc1.bias"}


def test_the_file_of_a_lenet_with_nine_atoms_holds_450_numbers_in_less_than_4_kb(tmp_path: Path) -> None:
    net = decompose(build("lenet", classes=10, channels=3, seed=0), atoms=9, init="orthonormal")
    own = personalise(net, (torch.rand(4, 3, 32, 32), torch.arange(4)), epochs=1)
    file = save_personal(tmp_path / "ann.safetensors", own, of=net)
    assert sum(leaf.numel() for leaf in load_file(file).values()) == 450
    assert file.stat().st_size < 4000


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    net, data = small_net(atoms=4), a_client()
    file = save_personal(tmp_path / "ann.safetensors", personalise(net, data), of=net)
    nudged = with_params(net, {"fc2.bias": net.fc2.bias.detach() + 1e-9}, ["fc2.bias"])
    for other in (small_net(atoms=4, seed=1), small_net(atoms=3), small_net(), nudged):
        with pytest.raises(ValueError, match="another model"):
            load_personal(other, file)
    moved = with_params(
        net, {"conv1.atoms": torch.zeros(4, 3, 3).double()}, ["conv1.atoms"]
    )  # its own part is not what it stands on
    assert fingerprint(moved, load_file(file)) == fingerprint(net, load_file(file))
    load_personal(moved, file)


def test_mistakes_in_python_are_explained(tmp_path: Path) -> None:
    net, (x, y) = small_net(atoms=4), a_client()
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("Did you mean 'atoms'", lambda: personalise(net, (x, y), part="atom")),
        ("Decompose it first: parametrisation='atoms'", lambda: personalise(small_net(), (x, y))),
        ("lr=0", lambda: personalise(net, (x, y), lr=0)),
        ("epochs=0", lambda: personalise(net, (x, y), epochs=0)),
        ("momentum=1", lambda: personalise(net, (x, y), momentum=1)),
        ("has no samples", lambda: personalise(net, (x[:0], y[:0]))),
        ("labels go up to 7", lambda: personalise(net, (x, y + 5))),
        ("not a part of the model", lambda: save_personal(tmp_path / "a", {"conv1.atom": x}, of=net)),
        ("not a part of the model", lambda: save_personal(tmp_path / "a", {}, of=net)),
        ("nowhere holds no run", lambda: personalise("nowhere", (x, y))),
        ("does not exist", lambda: load_personal(net, tmp_path / "nothing")),
        ("not a safetensors file", lambda: load_personal(net, Path(__file__))),
    ]
    for line, call in wrong:
        with pytest.raises(ValueError, match=line):
            call()
    with pytest.raises(FloatingPointError, match=r"learning rate of 1e\+06. Lower it"):
        personalise(net, (x, y), lr=1e6, clip=0, epochs=100)


def test_a_run_folder_is_personalised_with_its_recipe(here: Path) -> None:
    arrays = np.load("ann.npz")
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    own = personalise("runs/mine", (x, y))
    assert identical(own, personalise(fedatoms.load_model("runs/mine"), (inputs_of("runs/mine", x), y)))
    file = save_personal("ann.safetensors", own, of="runs/mine")
    assert torch.equal(
        load_personal("runs/mine", file)(inputs_of("runs/mine", x)),
        load_personal(fedatoms.load_model("runs/mine"), file)(inputs_of("runs/mine", x)),
    )
    with pytest.raises(ValueError, match=r"another model of experiment \w+, not to this one of experiment"):
        load_personal("runs/other", file)
    with pytest.raises(ValueError, match=r"takes \(1, 8, 8\)"):
        personalise("runs/mine", (x[:, :, 1:], y))


def test_clients_of_a_run_have_their_own_models(here: Path) -> None:
    x = inputs_of("runs/mine", load("digits").test_x[:5])
    shared = fedatoms.load_model("runs/mine")
    outputs = [personal_model("runs/mine", client=client)(x) for client in range(5)]
    assert not torch.equal(outputs[0], outputs[1])
    own = load_file("runs/mine/personal/000001.safetensors")
    assert own.keys() == {name for name, group in groups(shared).items() if group == "atoms"}
    assert torch.allclose(outputs[1], with_params(shared, own, own).eval()(x), atol=1e-5)
    with pytest.raises(ValueError, match="Use 0 to 4"):
        personal_model("runs/mine", client=5)
    with pytest.raises(ValueError, match="another `personal`"):
        personal_model("runs/other", client=0)
    with pytest.raises(ValueError, match="personal_model"):
        load_personal("runs/mine", "runs/mine/personal/000001.safetensors")


def test_the_command_fits_scores_saves_and_says_how_to_load(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["personalize", "runs/mine", "--images", "ann.npz", "--out", "ann.safetensors", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("global", "personal", "162", "held out", "kB")), said
    line = next(line for line in said.splitlines() if line.startswith("load: ")).removeprefix("load: ")
    space: dict[str, object] = {"fedatoms": fedatoms}
    exec(line, space)
    model = space["model"]
    assert isinstance(model, nn.Module) and not is_decomposed(model)
    assert Path("ann.safetensors").stat().st_size < 1500


def test_the_command_gives_the_same_bits_again_and_holds_out_what_it_scores(here: Path) -> None:
    asked = Newcomer(images="ann.npz", out="a.safetensors", device="cpu", holdout=0.25)
    first, again = (join(prepare(Path("runs/mine"), replace(asked, out=f"{k}.safetensors"))) for k in "ab")
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    assert first.scores == again.scores and first.scores["personal"].loss < first.scores["global"].loss
    data = first.ready.sim.data
    assert len(data.y) + len(data.test_y) == 60 and 10 <= len(data.test_y) <= 20
    everything = join(prepare(Path("runs/mine"), replace(asked, out="c.safetensors", holdout=0.0)))
    assert everything.scores == {} and len(everything.ready.sim.data.y) == 60


@pytest.mark.parametrize("layout", ["(n, H, W)", "(n, H, W, C)", "floats", "int64"])
def test_pictures_may_come_in_other_layouts(layout: str, here: Path) -> None:
    arrays = np.load("ann.npz")
    x, y = arrays["x"], arrays["y"].astype(np.uint8)
    ways = {
        "(n, H, W)": x[:, 0],
        "(n, H, W, C)": x.transpose(0, 2, 3, 1),
        "floats": x / 16,
        "int64": x.astype(np.int64),
    }
    np.savez("same.npz", x=ways[layout], y=y)
    first, second = (
        prepare(Path("runs/mine"), Newcomer(images=f"{name}.npz", out="a.safetensors", device="cpu")).sim.data
        for name in ("ann", "same")
    )
    assert torch.equal(first.x.double(), second.x.double()) and torch.equal(first.y, second.y)


def picture_folders(names: list[str], size: tuple[int, int] = (8, 8)) -> None:
    from PIL import Image

    for place, name in enumerate(names):
        Path("pictures", name).mkdir(parents=True)
        for k in range(2):
            Image.new("L", size, 20 * place + k).save(f"pictures/{name}/{k}.png")


def test_folders_of_image_files_are_labelled_by_number_or_by_sorted_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    picture_folders(["7", "3"])
    words = ["personalize", "runs/mine", "--images", "pictures", "--device", "cpu", "--epochs", "1"]
    assert main([*words, "--out", "a.safetensors", "--holdout", "0"]) == 0
    assert "labels: folders' numbers" in capsys.readouterr().out
    data = prepare(Path("runs/mine"), Newcomer(images="pictures", out="x.safetensors", holdout=0)).sim.data
    assert data.y.tolist() == [3, 3, 7, 7] and float(data.x.max()) == pytest.approx(21 / 255 * 16)
    shutil.rmtree("pictures")
    picture_folders([f"kind-{letter}" for letter in "abcdefghij"])
    assert main([*words, "--out", "b.safetensors"]) == 0
    assert "kind-a = 0, kind-b = 1" in capsys.readouterr().out


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(run) print
showpage
%%EOF
"""


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.eps", "a"])
def test_a_picture_reaches_no_other_interpreter(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = pytest.importorskip("PIL.EpsImagePlugin")
    Path("gs").write_text("#!/bin/sh\ntouch reached\nexit 1\n")
    Path("gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=":")
    monkeypatch.setattr(plugin, "gs_binary", None)  # look for it again
    Path("pictures/1").mkdir(parents=True)
    Path("elsewhere").write_bytes(EPS)
    Path("pictures/1", name).symlink_to(here / "elsewhere")
    words = ["runs/mine", "--images", "pictures", "--out", "new.safetensors"]
    line = mistake(words, capsys)
    assert f"pictures/1/{name} is not a readable image" in line and not Path("reached").exists()
    assert "none of PNG, JPEG, BMP, GIF, WEBP, TIFF, PPM. Convert it to PNG" in line


@pytest.mark.parametrize("kind", FORMATS)
def test_pictures_are_told_by_what_they_hold(kind: str, here: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    Path("pictures/1").mkdir(parents=True)
    image.new("L", (8, 8), 200).save("pictures/1/a.xyz", kind)
    x = read_images(Path("pictures"), Wanted((1, 8, 8), 255, classes=2)).x
    assert x.shape == (1, 1, 8, 8) and int((x.int() - 200).abs().max()) < 5  # some are lossy


def test_images_are_opened_by_format_everywhere() -> None:
    for path in Path(fedatoms.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Image.open"):
                assert "formats" in [word.arg for word in call.keywords], path


def mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(Path.cwd().rglob("*"))
    capsys.readouterr()
    assert main(["personalize", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("fedatoms: ") and "Traceback" not in said, said
    assert sorted(Path.cwd().rglob("*")) == before, "something was written"
    return said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nowhere", ["nowhere holds no run"]),
        ("--images ann.npz", ["RUN is missing", "runs/mine"]),
        ("runs/unfinished", ["not finished", "--resume"]),
        ("runs/plain", ["no atoms", "--parametrisation atoms"]),
        ("runs/mine --out a.safetensors", ["--images is missing"]),
        ("runs/mine --images ann.npz", ["--out is missing"]),
        ("runs/mine --images ann.npz --out ann.npz", ["--out ann.npz", ".safetensors"]),
        ("runs/mine --images ann.npz --out old.safetensors", ["old.safetensors exists", "another `--out`"]),
        ("runs/mine --images ann.npz --out no/a.safetensors", ["no is not a folder", "--out"]),
        ("runs/mine --images gone.npz", ["gone.npz does not exist", "x and y"]),
        ("runs/mine --images text.npz", ["text.npz", "not a zip file", "numpy.savez"]),
        ("runs/mine --images cut.npz", ["cut.npz", "numpy.savez"]),
        ("runs/mine --images objects.npz", ["objects.npz", "holds objects"]),
        ("runs/mine --images no-y.npz", ["no-y.npz", "no array y"]),
        ("runs/mine --images no-x.npz", ["no-x.npz", "no array x"]),
        ("runs/mine --images big.npz", ["(60, 1, 8, 9)", "(1, 8, 8)", "(n, 8, 8)"]),
        ("runs/mine --images labels.npz", ["label 10", "0..9"]),
        ("runs/mine --images negative.npz", ["label -1", "0..9"]),
        ("runs/mine --images floats.npz", ["float64", "whole numbers"]),
        ("runs/mine --images few.npz", ["(59,)", "60"]),
        ("runs/mine --images empty.npz", ["empty.npz", "no image"]),
        ("runs/mine --images bright.npz", ["17", "0 to 16"]),
        ("runs/mine --images nan.npz", ["nan", "0 to 1"]),
        ("runs/mine --images text-x.npz", ["cannot be pixels", "uint8"]),
        ("runs/mine --images single.npz", ["--holdout 0.2", "--holdout 0."]),
        ("runs/mine --images nothing", ["nothing", "no image"]),
        ("runs/mine --images cats", ["1 class folders", "10 classes", "0..9"]),
        ("runs/mine --images unreadable", ["unreadable/1/a.png", "not a readable image"]),
        ("runs/mine --images large", ["large/1/0.png", "9 x 8", "8 x 8"]),
        ("runs/mine --images ann.npz --part atom", ["'atom'", "'atoms'"]),
        ("runs/mine --images ann.npz --lr 0", ["--lr 0", "positive"]),
        ("runs/mine --images ann.npz --epochs 0", ["--epochs 0"]),
        ("runs/mine --images ann.npz --holdout 1", ["--holdout 1", "[0, 1)"]),
        ("runs/mine --images ann.npz --device gpu", ["--device gpu", "--device cpu"]),
        ("runs/mine --images ann.npz --lr 1e30", ["--lr 1e+30 is more than 1e6"]),
        ("runs/mine --images ann.npz --lr 1e6 --epochs 100", ["not finite", "Lower it"]),
        ("runs/mine --imags ann.npz", ["--imags", "--images"]),
    ],
)
def test_bad_input_gets_one_line(
    words: str, expected: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = np.load("ann.npz")
    x, y = arrays["x"], arrays["y"]
    Path("old.safetensors").touch()
    Path("text.npz").write_text("hello")
    Path("cut.npz").write_bytes(Path("ann.npz").read_bytes()[:-100])
    np.savez("objects.npz", x=np.array([{}], dtype=object), y=y[:1])
    np.savez("no-y.npz", x=x)
    np.savez("no-x.npz", y=y)
    np.savez("big.npz", x=np.zeros((60, 1, 8, 9), np.uint8), y=y)
    np.savez("labels.npz", x=x, y=y + (y == 9))
    np.savez("negative.npz", x=x, y=y - 1)
    np.savez("floats.npz", x=x, y=y.astype(float))
    np.savez("few.npz", x=x, y=y[1:])
    np.savez("empty.npz", x=x[:0], y=y[:0])
    np.savez("bright.npz", x=x + 1, y=y)
    np.savez("nan.npz", x=x / np.where(x > 15, np.nan, 16), y=y)
    np.savez("text-x.npz", x=x.astype(str), y=y)
    np.savez("single.npz", x=x[:1], y=y[:1])
    for folder in ("nothing/1", "cats/cat", "unreadable/1", "large/1"):
        Path(folder).mkdir(parents=True)
    if expected[0].startswith(("unreadable", "large")):
        image = pytest.importorskip("PIL.Image")
        Path("unreadable/1/a.png").write_text("hello")
        image.new("L", (9, 8)).save("large/1/0.png")
    usual = "" if "is missing" in expected[0] else " --out new.safetensors"
    if "--out" not in words:
        words += usual
    line = mistake(words.split(), capsys)
    assert all(part in line for part in expected), line


def test_the_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["personalize", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(flag in said for flag in ("RUN", "--images", "--holdout", "--batch-size"))
    code = "import sys; from fedatoms.cli import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "personalize" in done.stdout and done.stdout.splitlines()[-1] == "False"


def packed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def parted(content: bytes) -> tuple[dict[str, object], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(content: bytes, **changes: object) -> bytes:
    header, body = parted(content)
    return packed(json.dumps({**header, **changes}).encode(), body)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda content: content[:-3],
    "too long": lambda content: content + b"abc",
    "a header of terabytes": lambda content: b"\xff" * 8 + content[8:],
    "a header of brackets": lambda content: packed(b"[" * 100_000),
    "a list for a header": lambda content: packed(b"[]"),
    "a header of bytes": lambda content: packed(b"\xff" * 40),
    "nothing but a header": lambda content: packed(b"{}"),
    "metadata of brackets": lambda content: with_header(
        content, __metadata__={"images": "[" * 100_000, "fedatoms": "[" * 100_000}
    ),
    "metadata of numbers": lambda content: with_header(content, __metadata__=3),
    "a tensor without end": lambda content: with_header(
        content, more={"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}
    ),
    "a tensor of text": lambda content: with_header(content, more="text"),
    "many classes": lambda content: with_header(
        content, __metadata__={"images": '{"classes": 1000000000000, "shape": [1, 8, 8]}'}
    ),
    "flat images": lambda content: with_header(content, __metadata__={"images": '{"classes": 10, "shape": [1]}'}),
}

IN_METADATA = ("metadata of brackets", "many classes", "flat images")  # which files of clients lack


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_of_tensors_is_named_on_one_line(
    damage: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load_file("runs/mine/personal/000000.safetensors")
    save_personal("own.safetensors", own, of="runs/mine")
    shutil.copytree("runs/mine", "ours")
    clients = Path("ours/personal/000000.safetensors")
    for file, call in (
        (Path("own.safetensors"), lambda: load_personal("runs/mine", "own.safetensors")),
        (clients, lambda: personal_model("ours", 0)),
        (Path("ours/model.safetensors"), lambda: load_personal("ours", "own.safetensors")),
    ):
        if file == clients and damage in IN_METADATA:
            continue
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
        with pytest.raises(ValueError, match=re.escape(str(file))) as caught:
            call()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert "ours/model.safetensors" in mistake("ours --images ann.npz --out new.safetensors".split(), capsys)


def test_a_file_of_tensors_is_no_larger_than_its_model(here: Path) -> None:
    for size, words in (
        (7 * 10**9, "takes 7,000,000,000 bytes, but such a file has at most"),
        (10**6, "a header of 0"),
    ):
        with Path("own.safetensors").open("wb") as file:
            file.truncate(size)
        with pytest.raises(ValueError, match=f"own.safetensors .*{words}"):
            load_personal("runs/mine", "own.safetensors")


def test_a_null_byte_in_a_path_is_said_with_its_argument(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runs/mine", "--images", "ann.npz", "--out", "a.safetensors"]
    for place, flag in ((2, "--images"), (4, "--out")):
        nul = [word.replace("a", "a\0") if at == place else word for at, word in enumerate(words)]
        assert f"{flag} a\\x00" in mistake(nul, capsys)
    net, wrong = small_net(atoms=4), r"='a\\x00' has a null byte in it, which no path can have"
    for argument, call in {
        "path": lambda: load_personal(net, "a\0"),
        "model": lambda: load_personal("a\0", "a"),
        "folder": lambda: personal_model("a\0", 0),
    }.items():
        with pytest.raises(ValueError, match=argument + wrong):
            call()
    with pytest.raises(ValueError, match=r"client=1.5 is not a client of runs/mine. Use 0 to 4"):
        personal_model("runs/mine", 1.5)  # type: ignore[arg-type]


def test_colours_keep_their_places(here: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    Path("colours/1").mkdir(parents=True)
    image.new("RGB", (5, 4), (10, 20, 30)).save("colours/1/a.png")
    x, y, _ = read_images(Path("colours"), Wanted((3, 4, 5), 255, classes=2))
    assert x.shape == (1, 3, 4, 5) and x.dtype == torch.uint8 and y.tolist() == [1]
    assert x[0, :, 0, 0].tolist() == [10, 20, 30]
    np.savez("colours.npz", x=x.permute(0, 2, 3, 1).numpy() / 255, y=y.numpy())
    again = read_images(Path("colours.npz"), Wanted((3, 4, 5), 255, classes=2)).x
    assert torch.allclose(again, x.float(), atol=1e-4)


def test_pictures_without_folders_of_classes_are_told_where_to_go(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").new("L", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"holds no image in a folder of its class, such as .*0/a\.png, but needs"):
        read_images(tmp_path, Wanted((1, 8, 8), 16, 10))


def test_inputs_come_as_tensors_or_arrays_with_or_without_a_grey_channel(here: Path) -> None:
    x = load("digits").test_x[:5]
    wanted = inputs_of("runs/mine", x)
    for same in (x.numpy(), x[:, 0], x.numpy()[:, 0]):
        assert torch.equal(inputs_of("runs/mine", same), wanted)
    for shape in ((8, 8), (5, 3, 8, 8)):
        with pytest.raises(ValueError, match=r"x has the shape .*\. Pass pixels of shape \(n, 1, height, width\)\."):
            inputs_of("runs/mine", torch.zeros(shape))
    for wrong in (x.to(torch.complex64), x.numpy().astype(object)):
        with pytest.raises(ValueError, match=r"x: .*(cannot be inputs|is no tensor)"):
            inputs_of("runs/mine", wrong)


def test_a_changed_bit_of_a_clients_own_parameters_is_noticed(tmp_path: Path) -> None:
    settings = fedatoms.Experiment(
        parametrisation="atoms", personal="local-atoms", rounds=1, epochs=1, clients=5, last_epochs=0
    )
    folder = fedatoms.run(replace(settings, out=str(tmp_path), name="run")).folder
    path = folder / "personal" / "000003.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with pytest.raises(ValueError, match=r"000003.safetensors does not match its checksum in result.json"):
        personal_model(folder, 3)
    personal_model(folder, 2)
