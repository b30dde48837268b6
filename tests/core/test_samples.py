"""Batches: bytes become normalised floats; augmentation crops and mirrors."""

import torch

from fedgraft.core.samples import Preparation, Samples

IMAGES = torch.randint(0, 256, (6, 5, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_pixels_are_normalised_per_channel() -> None:
    preparation = Preparation(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.2))
    x, y = Samples(IMAGES, torch.arange(6), preparation).batch(torch.tensor([4, 1]))
    assert y.tolist() == [4, 1]
    assert x.shape == (2, 3, 5, 5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.25), (0.3, 0.2))):
        expected = (IMAGES[4, :, :, channel].float() / 255 - mean) / std
        torch.testing.assert_close(x[0, channel], expected, rtol=1e-5, atol=1e-5)


def test_the_default_maps_to_minus_one_and_one() -> None:
    x = Preparation().apply(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    torch.testing.assert_close(x.flatten(), torch.tensor([-1.0, 1.0]))


def test_floats_pass_through() -> None:
    raw = torch.randn(3, 7)
    assert Preparation(crop=4, flip=True).apply(raw, torch.Generator()) is raw


def test_a_preparation_of_ones_own_may_draw_in_training() -> None:
    class Noisy(Preparation):
        pass

    assert not Preparation((0.5,), (0.5,)).augments
    assert all(each.augments for each in (Preparation(crop=1), Preparation(flip=True), Noisy()))


def test_augmentation_moves_and_mirrors_but_keeps_the_pixels() -> None:
    plain, moved = Preparation(), Preparation(crop=2, flip=True)
    same = moved.apply(IMAGES)
    assert torch.equal(same, plain.apply(IMAGES)), "without a generator there is no augmentation"
    bright = torch.full((64, 5, 5, 1), 255, dtype=torch.uint8)
    shifted = moved.apply(bright, torch.Generator().manual_seed(0))
    borders = (shifted == -1).flatten(1).sum(1)
    assert set(borders.tolist()) <= {25 - (5 - a) * (5 - b) for a in range(3) for b in range(3)}
    assert len(set(borders.tolist())) > 3
    flipped = Preparation(flip=True).apply(IMAGES, torch.Generator().manual_seed(1))
    mirror = plain.apply(IMAGES).flip(3)
    kinds = {("same" if torch.equal(flipped[i], same[i]) else "mirror") for i in range(6)}
    assert kinds == {"same", "mirror"}
    for i in range(6):
        assert torch.equal(flipped[i], same[i]) or torch.equal(flipped[i], mirror[i])


def test_a_crop_is_a_window_of_the_image_with_a_black_margin() -> None:
    cropped = Preparation(crop=2).apply(IMAGES, torch.Generator().manual_seed(3))
    margin = torch.nn.functional.pad(Preparation().apply(IMAGES), (2, 2, 2, 2), value=-1.0)
    for image, got in zip(margin, cropped, strict=True):
        windows = [image[:, top : top + 5, left : left + 5] for top in range(5) for left in range(5)]
        assert any(torch.equal(window, got) for window in windows)
