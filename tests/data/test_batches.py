"""A plan is a function of (seed, client, round), and fetch does to a batch what a loop over its images would do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedatoms.data.batches import Plan, fetch, normalise, pad_steps, plan
from fedatoms.data.datasets import Fill, Recipe

FEDDC = Recipe(255, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262), flip=True, pad=4, crop=0.5, fill="zero")
sizes = st.integers(1, 30)


def draw_plan(part: Tensor, recipe: Recipe | None = FEDDC, seed: int = 0, client: int = 0, round: int = 0) -> Plan:
    return plan(part, batch_size=4, epochs=2, recipe=recipe, seed=seed, client=client, round=round)


def equal(a: Plan, b: Plan) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@settings(deadline=None)
@given(n=sizes, batch_size=st.integers(1, 12), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_each_epoch_sees_each_sample_once_and_padding_comes_last(
    n: int, batch_size: int, epochs: int, seed: int
) -> None:
    part = torch.arange(n) * 3 + 5
    drawn = plan(part, batch_size=batch_size, epochs=epochs, recipe=FEDDC, seed=seed, client=1, round=2)
    steps = -(-n // batch_size)
    assert drawn.rows.shape == drawn.real.shape == drawn.flip.shape == (epochs * steps, batch_size)
    assert drawn.shift.shape == (epochs * steps, batch_size, 2) and drawn.key.shape == ()
    for rows, real in zip(drawn.rows.split(steps), drawn.real.split(steps), strict=True):
        assert torch.equal(rows[real].sort().values, part)
    assert (drawn.real.long().diff(dim=1) <= 0).all()
    assert [leaf.dtype for leaf in drawn] == [torch.int64, torch.bool, torch.bool, torch.int64, torch.int64]


@settings(deadline=None)
@given(n=sizes, batch_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_padding_is_the_first_sample_of_its_batch_flipped_and_shifted_alike(n: int, batch_size: int, seed: int) -> None:
    """So what a network does with padding it does with a row that counts, and no more overflows than does there."""
    drawn = plan(torch.arange(n), batch_size=batch_size, epochs=2, recipe=FEDDC, seed=seed, client=1, round=2)
    assert drawn.real[:, 0].all()
    for leaf in (drawn.rows, drawn.flip, drawn.shift):
        assert torch.equal(leaf[~drawn.real], leaf[:, :1].expand_as(leaf)[~drawn.real])


def test_a_plan_is_a_function_of_seed_client_and_round() -> None:
    part = torch.arange(50)
    state = torch.get_rng_state()
    first = draw_plan(part, seed=1, client=2, round=3)
    torch.rand(5)
    assert equal(first, draw_plan(part, seed=1, client=2, round=3))
    others = [draw_plan(part, seed=s, client=c, round=r) for s, c, r in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2))]
    assert len({int(one.key) for one in (first, *others)}) == 5
    assert not any(torch.equal(first.rows, one.rows) for one in others)
    torch.set_rng_state(state)
    expected = torch.rand(3)
    torch.set_rng_state(state)
    draw_plan(part)
    assert torch.equal(torch.rand(3), expected), "a plan draws from the global stream"


def test_epochs_have_orders_of_their_own_and_keys_have_63_bits() -> None:
    drawn = draw_plan(torch.arange(40))
    assert not torch.equal(drawn.rows[:10], drawn.rows[10:])
    keys = [int(draw_plan(torch.arange(2), client=client).key) for client in range(200)]
    assert min(keys) >= 0 and max(keys) > 2**62 and len({key % 1024 for key in keys}) > 100


@pytest.mark.parametrize("recipe", [None, FEDDC._replace(flip=False, pad=0, crop=0.0)])
def test_the_recipe_changes_neither_order_nor_key(recipe: Recipe | None) -> None:
    part = torch.arange(13)
    with_recipe, without = draw_plan(part), draw_plan(part, recipe)
    assert torch.equal(with_recipe.rows, without.rows) and with_recipe.key == without.key
    assert not without.flip.any() and not without.shift.any()


@pytest.mark.parametrize(("crop", "pad"), [(0.5, 4), (1.0, 1)])
def test_flips_and_crops_are_as_frequent_as_the_recipe_says(crop: float, pad: int) -> None:
    drawn = draw_plan(torch.arange(20_000), FEDDC._replace(crop=crop, pad=pad))
    assert drawn.flip.float().mean().item() == pytest.approx(0.5, abs=0.01)
    moved = drawn.shift.ne(0).any(-1).float().mean().item()
    assert moved == pytest.approx(crop * (1 - (2 * pad + 1) ** -2), abs=0.01)
    cropped = drawn.shift[drawn.shift.ne(0).any(-1)]
    assert cropped.unique().tolist() == list(range(-pad, pad + 1))
    assert cropped.float().mean(0).abs().max() < 0.1 and abs(cropped.double().T.corrcoef()[0, 1].item()) < 0.05


@settings(deadline=None)
@given(counts=st.lists(sizes, min_size=1, max_size=5))
def test_padding_steps_changes_no_real_one(counts: list[int]) -> None:
    plans = [draw_plan(torch.arange(100 * k, 100 * k + n), client=k) for k, n in enumerate(counts)]
    stacked = pad_steps(plans)
    assert stacked.rows.shape == (len(plans), max(len(one.rows) for one in plans), 4)
    for client, one in enumerate(plans):
        steps = len(one.rows)
        assert equal(one, Plan(*(leaf[client, :steps] for leaf in stacked[:4]), key=stacked.key[client]))
        assert not stacked.real[client, steps:].any() and not stacked.shift[client, steps:].any()
        assert (stacked.rows[client] // 100 == client).all()


def test_plans_of_different_width_do_not_stack() -> None:
    other = plan(torch.arange(3), batch_size=5, epochs=1, recipe=None, seed=0, client=0, round=0)
    with pytest.raises(ValueError, match=r"batch sizes \[4, 5\] are not one size.*Use one batch_size"):
        pad_steps([draw_plan(torch.arange(3)), other])


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs", "words"),
    [(3, 0, 1, "batch_size=0 is less"), (3, 1, 0, "epochs=0 is less"), (0, 1, 1, "has no samples")],
)
def test_a_plan_needs_samples_steps_and_epochs(samples: int, batch_size: int, epochs: int, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}.*(Use|Leave)"):
        plan(torch.arange(samples), batch_size=batch_size, epochs=epochs, recipe=None, seed=0, client=0, round=0)


def slow_image(image: Tensor, recipe: Recipe, flip: bool, down: int, right: int) -> Tensor:
    """Normalises, flips and shifts one image, pixel by pixel."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (recipe.mean, recipe.std))
    image = (image.double() / recipe.scale - mean[:, None, None]) / std[:, None, None]
    image = image.flip(-1) if flip else image
    outside = -mean / std if recipe.fill == "black" else torch.zeros_like(mean)
    _, height, width = image.shape
    out = torch.empty_like(image)
    for i in range(height):
        for j in range(width):
            inside = 0 <= i + down < height and 0 <= j + right < width
            out[:, i, j] = image[:, i + down, j + right] if inside else outside
    return out


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    pad=st.integers(0, 3),
    fill=st.sampled_from(["zero", "black"]),
    flips=st.booleans(),
    seed=st.integers(0, 999),
)
def test_fetch_equals_a_loop_over_images(
    shape: tuple[int, int, int], lead: list[int], pad: int, fill: Fill, flips: bool, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (7, *shape), dtype=torch.uint8, generator=draws)
    y = torch.randint(0, 10, (7,), generator=draws)
    mean, std = (torch.rand(2, shape[0], generator=draws) + 0.1).tolist()
    recipe = Recipe(255, tuple(mean), tuple(std), flip=flips, pad=pad, crop=1.0, fill=fill)
    rows = torch.randint(0, 7, lead, generator=draws)
    flip = (torch.rand(lead, generator=draws) < 0.5) & flips
    shift = torch.randint(-pad, pad + 1, (*lead, 2), generator=draws)
    before = x.clone()
    images, labels = fetch(x, y, rows, recipe, torch.float64, flip, shift)
    flat = zip(rows.flatten(), flip.flatten(), shift.view(-1, 2).tolist(), strict=True)
    loop = torch.stack([slow_image(x[row], recipe, bool(f), *s) for row, f, s in flat]).view(*lead, *shape)
    torch.testing.assert_close(images, loop, rtol=1e-12, atol=1e-12)
    assert torch.equal(labels, y[rows]) and torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unmoved_images_are_the_normalised_ones(dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    rows, still = torch.tensor([4, 0, 4]), torch.zeros(3, 2, dtype=torch.int64)
    for recipe in (FEDDC, FEDDC._replace(fill="black"), FEDDC._replace(flip=False, pad=0)):
        images, _ = fetch(x, torch.zeros(5), rows, recipe, dtype, still[:, 0] > 0, still)
        assert images.dtype == dtype and torch.equal(images, normalise(x[rows], recipe, dtype))


def test_stacked_clients_fetch_what_each_fetches_alone() -> None:
    x, y = torch.randint(0, 256, (90, 3, 8, 8), dtype=torch.uint8), torch.arange(90)
    stacked = pad_steps([draw_plan(torch.arange(30 * k, 30 * k + n), client=k) for k, n in enumerate((30, 7, 12))])
    rows, _, flip, shift = (leaf[:, 1] for leaf in stacked[:4])
    together = fetch(x, y, rows, FEDDC, torch.float32, flip, shift)
    for client in range(3):
        alone = fetch(x, y, rows[client], FEDDC, torch.float32, flip[client], shift[client])
        assert torch.equal(together[0][client], alone[0]) and torch.equal(together[1][client], alone[1])


@pytest.mark.parametrize(
    ("stored", "used"),
    [
        (torch.float16, torch.float64),
        (torch.float64, torch.float64),
        (torch.uint8, torch.float64),
        (torch.int64, torch.int64),
        (torch.int32, torch.int32),
    ],
)
def test_without_a_recipe_data_are_only_cast_and_token_ids_not_even_that(
    stored: torch.dtype, used: torch.dtype
) -> None:
    x, rows = torch.arange(12).view(4, 3).to(stored), torch.tensor([[3, 1]])
    nothing = torch.zeros(1, 2, dtype=torch.bool), torch.zeros(1, 2, 2, dtype=torch.int64)
    inputs, labels = fetch(x, torch.arange(4), rows, None, torch.float64, *nothing)
    assert inputs.dtype == used and inputs.tolist() == [[[9, 10, 11], [3, 4, 5]]] and labels.tolist() == [[3, 1]]


def test_normalising_twice_the_same_pool_changes_nothing() -> None:
    x = torch.rand(2, 3, 4, 4)
    before = x.clone()
    recipe = FEDDC._replace(scale=1.0)
    first = normalise(x, recipe, torch.float32)
    assert torch.equal(first, normalise(x, recipe, torch.float32)) and torch.equal(x, before)
