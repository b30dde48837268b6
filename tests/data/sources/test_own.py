"""A site's own data: the same samples from an .npz file, a table and folders of images."""

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgraft.base.errors import UserError
from fedgraft.data.sources import read_own
from fedgraft.data.sources.fitted import Fitted, Input
from fedgraft.data.sources.source import Reading

TABLE = "set,age,label,dose\ntrain,50,1,0.5\ntest,61,0,1.5\n\ntrain,42,0,-2e-1\n"


def test_a_table_is_split_by_its_column_and_keeps_the_order_of_its_features(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE, "utf-8")
    site = read_own(tmp_path / "a.csv", Reading())
    np.testing.assert_array_equal(site.x_train, np.array([[50, 0.5], [42, -0.2]], np.float32))
    np.testing.assert_array_equal(site.x_test, np.array([[61, 1.5]], np.float32))
    assert site.y_train.tolist() == [1, 0]
    assert site.y_test.tolist() == [0]
    np.savez(tmp_path / "a.npz", **site.arrays())
    same = read_own(tmp_path / "a.npz", Reading()).arrays()
    assert all((array == same[name]).all() for name, array in site.arrays().items())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no first line that names its columns"),
        (",a,label\n0,1,0\n", r"the first column of .* has no name: are these the numbers of rows that pandas writes"),
        ("x,y\n0,1\n", "say with --target which column of a.csv is to be learned: x, y"),
        ("label,x\n0,1\n", "has 1 rows, too few to split: a site needs 20, or a column `set`"),
        (TABLE + "train,1,0\n", "the column dose of .* has missing cells"),
        (TABLE + "train,1,0,2,3\n", "not a table: .*Expected 4 fields in line 6, saw 5"),
        (TABLE + "later,1,0,2\n", "row 4 of .*: the column set says train, test or val, not 'later'"),
        (TABLE + "train,1,0,\n", "the column dose of .* has missing cells: the federation has to agree"),
        (TABLE + "train,1,0,high\n", "such as 'high' in row 4"),
        (TABLE + "train,nan,0,1\n", "the column age of .* has missing cells"),
        (TABLE.replace("test", "train"), "no row of a says test in its column set"),
        ("set,label\ntrain,0\ntest,0\n", "no column but label"),
        ("set,x,label,label\ntrain,1,0,0\n", "two columns called 'label'"),
        ("set,x,label,Label \ntrain,1,0,0\n", "two columns called 'label'"),
        (TABLE + "train,1,0," + "9" * 200_000, "3 numbers and 1 cells that are none, such as '9{50}'"),
        (TABLE + "train,1,0," + "x" * 100_000, "such as 'x{50}' in row 4"),
        (TABLE + "x" * 100_000 + ",1,0,1", "says train, test or val, not 'x{50}'"),
        (TABLE + "train,1,0,1e39\n", "float32 cannot hold"),
    ],
)
def test_a_table_that_will_not_do_is_refused_in_a_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "a.csv").write_text(text, "utf-8")
    with pytest.raises(UserError, match=complaint) as refused:
        read_own(tmp_path / "a.csv", Reading())
    assert len(str(refused.value)) < 400


def picture(path: Path, value: int, *, mode: str = "L", size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)


def test_folders_of_images_are_pixels_with_the_number_of_their_folder(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "0-healthy" / "b.png", 7)
    picture(tmp_path / "train" / "0-healthy" / "a.png", 5)
    picture(tmp_path / "train" / "2-ill" / "c.png", 9)
    picture(tmp_path / "test" / "2-ill" / "d.png", 11)
    (tmp_path / "train" / "0-healthy" / "notes.txt").write_text("no image")
    site = read_own(tmp_path, Reading())
    assert site.x_train.shape == (3, 3, 4)
    assert site.x_train.dtype == np.uint8
    assert site.x_train[:, 0, 0].tolist() == [5, 7, 9]
    assert site.y_train.tolist() == [0, 0, 2]
    assert site.y_test.tolist() == [2]


def test_one_coloured_image_makes_all_of_them_coloured(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "0" / "a.png", 5)
    picture(tmp_path / "test" / "1" / "b.png", 200, mode="RGB")
    site = read_own(tmp_path, Reading())
    assert site.x_train.shape == (1, 3, 4, 3)
    assert site.x_train[0, 0, 0].tolist() == [5, 5, 5]
    assert site.x_test[0, 0, 0].tolist() == [200, 0, 0]


def test_folders_that_will_not_do_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no images; they lie in train/CLASS and test/CLASS, or in CLASS"):
        read_own(tmp_path, Reading())
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        read_own(tmp_path, Reading())
    picture(tmp_path / "train" / "0" / "a.png", 5)
    picture(tmp_path / "test" / "0" / "b.png", 5, size=(5, 3))
    with pytest.raises(UserError, match="is 5x3"):
        read_own(tmp_path, Reading())
    picture(tmp_path / "test" / "0" / "b.png", 5)
    (tmp_path / "test" / "0").rename(tmp_path / "test" / "ill")
    with pytest.raises(UserError, match="does not begin with the number of its class"):
        read_own(tmp_path, Reading())
    (tmp_path / "test" / "ill").rename(tmp_path / "test" / "0")
    picture(tmp_path / "train" / "0-well" / "c.png", 5)
    with pytest.raises(UserError, match="the folders 0 and 0-well begin with the same number"):
        read_own(tmp_path, Reading())
    shutil.rmtree(tmp_path / "train" / "0-well")
    (tmp_path / "test" / "0" / "b.png").write_bytes(b"no image at all")
    with pytest.raises(UserError, match="damaged"):
        read_own(tmp_path, Reading())


def declaring(width: int, height: int) -> bytes:
    """A PNG that says it has that size, with a hundred pixels behind it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (10_000, 10_000), (4097, 4096)])
def test_an_image_that_promises_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, width: int, height: int
) -> None:
    picture(tmp_path / "train" / "0" / "a.png", 5)
    picture(tmp_path / "test" / "0" / "b.png", 5)
    (tmp_path / "test" / "0" / "b.png").write_bytes(declaring(width, height))
    with pytest.raises(UserError, match=r"b\.png has more pixels than the 4096x4096 that are allowed"):
        read_own(tmp_path, Reading())


def test_images_are_nothing_for_a_federation_of_tables(tmp_path: Path) -> None:
    (tmp_path / "theo" / "0").mkdir(parents=True)
    fitted = Fitted(target="ill", inputs=(Input(name="age", kind="number"),), labels=("no", "yes"))
    with pytest.raises(UserError, match="theo holds images, and the federation's sites have tables"):
        read_own(tmp_path / "theo", Reading(target="ill"), fitted=fitted)
