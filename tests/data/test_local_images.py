"""Image folders: classes, splits, modes and sizes, broken files, and what is refused."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_images import write_classes, write_image
from PIL import Image

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import Split, open_dataset, resolve_defaults
from ppdgrow.data.images import decode, size_of
from ppdgrow.data.local.images import LocalImages
from ppdgrow.data.local.splits import by_hash
from ppdgrow.errors import ConfigError, InvalidInputError

CPU = torch.device("cpu")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def images_at(path: Path, **options: Any) -> LocalImages:
    config = DataConfig.model_validate({"name": str(path), **options})
    assert resolve_defaults(config) == ("classify", None)
    dataset = open_dataset(config, "classify")
    assert isinstance(dataset, LocalImages)
    return dataset


def as_bytes(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def test_classes_are_folders_and_the_splits_share_no_image(tmp_path: Path) -> None:
    write_classes(tmp_path, ["dog [b]", "c\u00e4t", "cow"])
    dataset = images_at(tmp_path)
    assert dataset.class_names == ("cow", "c\u00e4t", "dog [b]")
    parts = [dataset.images(split) for split in SPLITS]
    assert [len(part.labels) for part in parts] == [48, 6, 6]
    seen = {bytes(image.numpy()) for part in parts for image in part.pixels}
    assert len(seen) == 60, "every image is in one split"
    assert len(set(parts[0].labels.tolist())) == 3
    assert dataset.input_spec(4).model_dump() | {"kind": "images"} == {
        **{"kind": "images", "channels": 3, "height": 8, "width": 8, "patch_size": 4, "num_classes": 3}
    }
    again = images_at(tmp_path)
    assert all(torch.equal(again.images(split).pixels, part.pixels) for split, part in zip(SPLITS, parts, strict=True))


def test_labels_belong_to_their_images(tmp_path: Path) -> None:
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))):
        (tmp_path / name).mkdir()
        for number in range(12):
            Image.new("RGB", (8, 8), colour).save(tmp_path / name / f"{number}.png")
    dataset = images_at(tmp_path)
    channel = {"red": 0, "green": 1, "blue": 2}
    for split in SPLITS:
        images = dataset.images(split)
        brightest = images.pixels.float().mean(dim=(2, 3)).argmax(1).tolist()
        assert brightest == [channel[dataset.class_names[label]] for label in images.labels.tolist()]


def test_named_splits(tmp_path: Path) -> None:
    for split, count in (("train", 9), ("val", 4), ("test", 5)):
        write_classes(tmp_path / split, count=count)
    dataset = images_at(tmp_path)
    assert [len(dataset.images(split).labels) for split in SPLITS] == [18, 8, 10]
    assert dataset.class_names == ("cat", "dog")


def test_a_class_of_trains_lies_below_train(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ["bus", "test", "train"])
    assert images_at(tmp_path).class_names == ("bus", "test", "train")


@pytest.mark.parametrize("split", ["test", "val", "holdout", "train", "test/unknown", "training_set/cat"])
def test_a_folder_named_like_a_split_beside_classes_is_refused(tmp_path: Path, split: str) -> None:
    write_classes(tmp_path, ["cat", "dog", split])
    part = {"tes": "test", "hol": "test", "val": "validation", "tra": "train"}[split[:3]]
    with pytest.raises(InvalidInputError, match=rf"found 'cat/0\.png', .* beside what is named for {part}: name each"):
        images_at(tmp_path)
    # Control: by another name it is a class.
    (tmp_path / split.partition("/")[0]).rename(tmp_path / "testament")
    assert images_at(tmp_path).class_names == ("cat", "dog", "testament")


def test_splits_below_the_classes_are_refused(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_classes(tmp_path / name, ["train", "test"])
    with pytest.raises(
        InvalidInputError, match=r"found the image 'cat/test/0\.png'.*below those of the splits such as"
    ):
        images_at(tmp_path)


@pytest.mark.parametrize("names", [("training_set", "test_set"), ("train", "eval"), ("Train Data", "holdout-images")])
def test_other_names_of_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write_classes(tmp_path / name)
    assert images_at(tmp_path).class_names == ("cat", "dog")


def test_a_folder_beside_splits_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val", "more"):
        write_classes(tmp_path / "a" / name)
    with pytest.raises(InvalidInputError, match=r"found 'more/cat/0\.png', .* beside what is named for train, valid"):
        images_at(tmp_path / "a")
    for name in ("train", "test", "unlabelled"):
        write_classes(tmp_path / "b" / name)
    with pytest.raises(InvalidInputError, match=r"beside what is named for test, train: name each"):
        images_at(tmp_path / "b")


def test_folders_that_are_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    write_classes(tmp_path / "far", ["zebra"])
    write_classes(tmp_path / "near", ["cat"])
    (tmp_path / "near" / "zebra").symlink_to(tmp_path / "far" / "zebra")
    (tmp_path / "near" / "cat" / "loop").symlink_to(tmp_path / "near")
    dataset = images_at(tmp_path / "near")
    assert dataset.class_names == ("cat", "zebra")
    assert sum(len(dataset.images(split).labels) for split in SPLITS) == 40


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    write_classes(tmp_path)
    for name in ("labels.csv", "README.md", "cat/notes.doc"):
        (tmp_path / name).write_text("x")
    assert images_at(tmp_path).warnings == ["left out files that are not images: 'cat/notes.doc', 'labels.csv'"]
    (tmp_path / "cat" / "photo.HEIC").write_bytes(b"no image")
    with pytest.raises(InvalidInputError, match=r"the image 'cat/photo\.HEIC' cannot be read"):
        images_at(tmp_path).input_spec(4)


def test_only_a_train_folder_is_cut(tmp_path: Path) -> None:
    write_classes(tmp_path / "train")
    dataset = images_at(tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert [len(dataset.images(split).labels) for split in SPLITS] == [32, 4, 4]


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "tiff" if mode == "CMYK" else "png"
    file = write_image(tmp_path / f"x.{suffix}", (6, 5), mode)
    pixels = decode(file.read_bytes(), (6, 5))
    assert (pixels.shape, pixels.dtype) == ((3, 6, 5), torch.uint8)
    if mode in ("L", "LA", "1"):
        assert torch.equal(pixels[0], pixels[1])
    if mode == "RGB":
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.array(Image.open(file)))


def test_transparent_pixels_are_white_and_sixteen_bits_keep_their_range() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert int(decode(as_bytes(clear), (4, 4)).min()) == 255
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=1)
    assert int(decode(file.getvalue(), (4, 4)).min()) == 255
    deep = Image.fromarray(np.array([[0, 65535], [256, 32768]], dtype=np.uint16))
    assert decode(as_bytes(deep), (2, 2))[0].tolist() == [[0, 255], [1, 128]]


def test_photos_are_turned_upright() -> None:
    image = Image.new("RGB", (8, 4), (0, 0, 0))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    assert size_of(file.getvalue()) == (8, 4)
    pixels = decode(file.getvalue(), (8, 4))
    assert pixels[0].nonzero().tolist() == [[0, 3]]


def test_sizes(tmp_path: Path) -> None:
    for number in range(6):
        write_image(tmp_path / "a" / "x" / f"{number}.png", (12, 8))
        write_image(tmp_path / "a" / "y" / f"{number}.png", (12, 8))
    assert images_at(tmp_path / "a").image_size == (3, 12, 8)
    assert images_at(tmp_path / "a", image_size=6).images("train").pixels.shape[1:] == (3, 6, 6)
    write_image(tmp_path / "a" / "y" / "odd.jpg", (30, 50))
    mixed = images_at(tmp_path / "a")
    assert mixed.image_size == (3, 64, 64)
    assert mixed.images("train").pixels.shape[1:] == (3, 64, 64)
    assert "images of 64 x 64" in mixed.describe()


def test_scaling_keeps_the_shape_of_things() -> None:
    """A centred square in a wide image stays a centred square: cut, not squeezed."""
    image = Image.new("RGB", (40, 20))
    image.paste((255, 255, 255), (15, 5, 25, 15))
    lit = decode(as_bytes(image), (20, 20))[0] > 127
    rows, columns = lit.any(1).nonzero().flatten(), lit.any(0).nonzero().flatten()
    assert rows.tolist() == columns.tolist() == list(range(5, 15))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def test_a_broken_image_among_good_ones_is_named_or_skipped(tmp_path: Path) -> None:
    write_classes(tmp_path)
    damage(tmp_path / "dog" / "7.png")
    with pytest.raises(InvalidInputError, match=r"the image 'dog/7\.png' cannot be read.*data\.skip_broken") as info:
        [images_at(tmp_path).images(split) for split in SPLITS]
    assert "\n" not in str(info.value)
    dataset = images_at(tmp_path, skip_broken=True)
    assert sum(len(dataset.images(split).labels) for split in SPLITS) == 39
    assert len(dataset.warnings) == 1
    assert "skipped: data" in dataset.warnings[0]
    assert "'dog/7.png'" in dataset.warnings[0]


def test_of_many_broken_images_the_first_five_are_named_and_all_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPDGROW_CACHE", str(tmp_path / "cache"))
    write_classes(tmp_path / "a")
    for number in range(7):
        (tmp_path / "a" / "dog" / f"{number}.png").write_bytes(b"no image")
    dataset = images_at(tmp_path / "a", skip_broken=True)
    for split in SPLITS:
        dataset.images(split)
    told = dataset.warnings
    assert [warning.count(".png") for warning in told] == [1, 1, 1, 1, 1, 0]
    assert all(warning.endswith("cannot be read (cannot identify image file)") for warning in told[:5])
    (listed,) = (tmp_path / "cache").glob("skipped-*.txt")
    assert told[5] == f"skipped 2 more: all 7 are listed in {str(listed)!r}"
    assert listed.read_text().count(".png' cannot be read (cannot identify image file)\n") == 7
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("PPDGROW_CACHE", str(tmp_path / "no folder"))
    assert dataset.warnings[5] == "skipped 2 more"


def test_a_git_lfs_pointer_is_named_as_what_it_is(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / "dog" / "7.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    says = r"image 'dog/7\.png' cannot be read \(it is a git-lfs pointer, not the file itself: fetch it with `git lfs"
    with pytest.raises(InvalidInputError, match=says):
        images_at(tmp_path).describe()


def test_a_class_without_a_training_image_is_refused(tmp_path: Path) -> None:
    def refused(says: str, **options: Any) -> None:
        with pytest.raises(InvalidInputError, match=says) as info:
            images_at(tmp_path, **options).describe()
        assert "\n" not in str(info.value)

    write_classes(tmp_path / "train", ["bird", "cat", "dog"])
    write_classes(tmp_path / "val", ["bird", "dog", "fox"], 2)
    refused(r"the class 'fox' has no image in the training split \(found 'val/fox/0\.png', 'val/fox/1\.png'\): add")
    shutil.rmtree(tmp_path / "val" / "fox")
    images_at(tmp_path).describe()
    for file in (tmp_path / "train" / "dog").iterdir():
        damage(file)
    refused(r"the class 'dog' has no image in the training split.*of which 20 cannot be read", skip_broken=True)
    (tmp_path / "train" / "dog" / "new.png").write_bytes((tmp_path / "train" / "cat" / "0.png").read_bytes())
    images_at(tmp_path, skip_broken=True).describe()
    # Only who asks for the test split reads it.
    write_classes(tmp_path / "test", ["unknown"], 2)
    dataset = images_at(tmp_path, skip_broken=True)
    dataset.describe()
    assert dataset.class_names == ("bird", "cat", "dog")
    with pytest.raises(InvalidInputError, match="the class 'unknown' has no image in the training split"):
        dataset.images("test")


def test_a_class_whose_only_image_the_cut_takes_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path)
    keys = [by_hash(f"{name}/{number}.png") for name in ("cat", "dog") for number in range(20)]
    first = next(number for number in range(10_000) if by_hash(f"fox/{number}.png") < min(keys))
    last = next(number for number in range(10_000) if by_hash(f"fox/{number}.png") > max(keys))
    image = write_image(tmp_path / "fox" / f"{first}.png")
    images_at(tmp_path).describe()  # control: it is in train
    image.rename(tmp_path / "fox" / f"{last}.png")
    with pytest.raises(InvalidInputError, match=rf"the class 'fox' has no image in .*found 'fox/{last}\.png'\)"):
        images_at(tmp_path).describe()


def use(path: Path, options: dict[str, Any]) -> None:
    dataset = images_at(path, **options)
    dataset.input_spec(4)
    dataset.batches("train", batch_size=16, seed=0, device=CPU)


def test_bad_image_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, match: str, **options: Any) -> None:
        with pytest.raises((InvalidInputError, ConfigError), match=match) as info:
            use(path, options)
        assert "\n" not in str(info.value)

    refused(write_classes(tmp_path / "one", ["cat"]), r"found the one class 'cat', expected at least two")
    write_image(tmp_path / "flat" / "x.png")
    refused(tmp_path / "flat", r"found the image 'x\.png', expected CLASS/IMAGE")
    write_image(tmp_path / "splits" / "train" / "x.png")
    write_image(tmp_path / "splits" / "val" / "y.png")
    refused(tmp_path / "splits", r"found the image 'train/x\.png', expected CLASS/IMAGE or train/CLASS/IMAGE")
    refused(write_classes(tmp_path / "few", count=3), r"found 5 images, expected at least one batch of 16")
    write_image(tmp_path / "size" / "a" / "0.png", (9, 9))
    write_image(tmp_path / "size" / "b" / "0.png", (9, 9))
    refused(tmp_path / "size", r"model\.patch_size is 4, which does not divide the 9x9 images")
    write_image(tmp_path / "all" / "a" / "0.png")
    write_image(tmp_path / "all" / "b" / "0.png")
    damage(tmp_path / "all" / "a" / "0.png")
    (tmp_path / "all" / "b" / "0.png").write_bytes(b"")
    says = r"no file could be read: the image 'a/0\.png' .*truncated\); the image 'b/0\.png' .*\(it is empty\): copy"
    refused(tmp_path / "all", says, skip_broken=True)
    refused(tmp_path / "all", "no file could be read", skip_broken=True, image_size=4)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    refused(tmp_path / "few", r"the images take .* GB decoded.*data\.image_size", image_size=4000)


def test_decompression_bombs_are_broken_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        images_at(tmp_path).input_spec(4)
