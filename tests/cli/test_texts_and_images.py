"""Columns of texts and of images from the shell: the features of Python, in runs that read new rows."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image

from lmbm_torch import load
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.cli.given_files import check_files
from lmbm_torch.data import ImageEncoder, TextEncoder

QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false", "logger=none"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Return the folder of a table of 40 rows with texts, and images of one colour beside the table."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("shop")
    rows = []
    for place in range(40):
        is_red, is_dry = random.random(2) < 0.5
        pixels = random.integers(0, 100, (9, 8, 3), np.uint8)
        pixels[..., 0 if is_red else 2] += 150
        Image.fromarray(pixels).save(folder / f"{place}.png")
        taste, colour = "dry" if is_dry else "sweet", "red" if is_red else "white"
        rows.append((f"{place}.png", f"a {taste} and {colour} wine", int(is_red), int(is_dry)))
    pd.DataFrame(rows, columns=["photo", "review", "red", "dry"]).to_csv(folder / "shop.csv", index=False)
    return folder


def composed(folder, *overrides):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        own = ["data=table", f"data.train={folder / 'shop.csv'}", "data.labels=[red,dry]"]
        if any(each.startswith("experiment=") for each in overrides):
            own = own[1:]
        return compose("train", overrides=[*QUIET, *own, *overrides])


def test_options_of_the_shell_give_the_features_of_python(shop, monkeypatch):
    config = composed(
        shop,
        "data.text=[review]",
        "data.text_encoder=[tfidf,characters]",
        "data.image=photo",
        "data.image_size=8",
    )
    check_files(config)
    data = instantiate(config.data).data
    frame = pd.read_csv(shop / "shop.csv")
    monkeypatch.chdir(shop)
    texts = TextEncoder(["tfidf", "characters"]).fit(frame["review"][data.train])
    images = ImageEncoder(size=8).fit(frame["photo"][data.train])
    expected = np.hstack([images.transform(frame["photo"]), texts.transform(frame["review"]).toarray()])
    np.testing.assert_array_equal(data.features.toarray(), expected)
    assert [*data.feature_names] == [*images.get_feature_names_out(), *texts.get_feature_names_out()]


def test_a_wrong_column_of_images_is_found_at_once(shop):
    with pytest.raises(ValueError, match=r"data.image: expected names or patterns of columns, got 'picture'"):
        check_files(composed(shop, "data.image=picture"))


def test_a_run_encodes_images_of_new_rows(shop, tmp_path, monkeypatch):
    options = [
        "data.image=photo",
        "data.image_encoder=pixels",
        "data.image_size=6",
        "data.ignore=[review,dry]",
    ]
    config = composed(shop, *options, "data.labels=[red]", f"paths.run={tmp_path / 'run'}")
    import_module("lmbm_torch.cli.estimated").start(config, [])
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test/exact_match"] == 1
    Image.new("RGB", (5, 5), (240, 50, 50)).save(tmp_path / "new.png")
    monkeypatch.chdir(tmp_path)
    frame = pd.read_csv(shop / "shop.csv")
    frame["photo"] = [str(shop / name) for name in frame["photo"]]
    found = load(tmp_path / "run").predict(frame)
    assert (found[:, 0] == frame["red"]).mean() == 1
    assert load(tmp_path / "run").predict(pd.DataFrame({"photo": ["new.png"]})).tolist() == [[1]]


def test_convolutions_are_trained_along(shop, tmp_path):
    options = ["experiment=image_table_conv", "data.image=photo", "data.image_size=8", "data.ignore=[review]"]
    sizes = ["model.num_features=16", "model.encoder.channels=[2,4]", "trainer.max_epochs=3"]
    config = composed(shop, *options, *sizes, f"paths.run={tmp_path / 'run'}")
    trainer, module, data = import_module("lmbm_torch.training.configured").build(config)
    before = module.model.encoder.layers[0].weight.detach().clone()
    trainer.fit(module, data)
    assert (module.model.encoder.layers[0].weight != before).any()
    assert data.data.schema.columns[0].kind == "images"


def test_a_missing_image_is_found_at_once(shop, tmp_path):
    (tmp_path / "shop.csv").write_text("photo,review,red,dry\nnone.png,a,0,1\n,b,1,0\n")
    with pytest.raises(ValueError, match=r"column 'photo': expected paths of images, got 1 without a file"):
        check_files(composed(tmp_path, "data.image=photo"))
    check_files(composed(shop, "data.image=photo"))
