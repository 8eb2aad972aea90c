from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from scipy.sparse import csr_array, random_array
from sklearn.preprocessing import StandardScaler
from sweeps import slow

from lmbm_torch.data import MultilabelData, SevenSegment, load
from lmbm_torch.data.batches import shuffled
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.features import numbered
from lmbm_torch.data.scaling import standardise, unit_norm, unscaled
from lmbm_torch.data.splits import random_split
from lmbm_torch.persistence.archives import unpack


def toy(sparse=False, num_test=7):
    generator = np.random.default_rng(0)
    features = random_array((50, 6), density=0.5, format="csr", rng=generator)
    labels = generator.integers(0, 2, (50, 3)).astype(np.float32)
    labels[4, 1] = np.nan
    order = generator.permutation(50)
    return MultilabelData(
        "toy",
        csr_array(features) if sparse else features.toarray() + 3,
        labels,
        numbered("label", 3),
        numbered("feature", 6),
        order[num_test:],
        order[:num_test],
    )


def rows_of(batches):
    return torch.cat([batch.index for batch in batches])


def test_sizes_names_and_scaling_are_known_at_once():
    data = toy()
    module = MultilabelDataModule(data, scaling=standardise, validation_fraction=0.25)
    assert (module.num_features, module.num_labels, module.label_names) == (6, 3, data.label_names)
    expected = StandardScaler().fit(data.features[module.train_rows])
    np.testing.assert_allclose(module.scaling.mean, expected.mean_)
    np.testing.assert_allclose(module.scaling.scale, expected.scale_)
    for part, rows in (
        (module.train_set, module.train_rows),
        (module.validation_set, module.validation_rows),
        (module.test_set, data.test),
    ):
        batch = part.__getitems__(range(len(part)))
        np.testing.assert_allclose(batch.features, expected.transform(data.features[rows]), atol=1e-6)
        np.testing.assert_array_equal(batch.labels, data.labels[rows])


def test_a_validation_part_that_comes_with_the_data_is_served():
    data = replace(toy(), train=np.arange(30), validation=np.arange(30, 40), test=np.arange(40, 50))
    module = MultilabelDataModule(data, scaling=unscaled)
    np.testing.assert_array_equal(module.train_rows, data.train)
    served = torch.cat([batch.features for batch in module.val_dataloader()])
    np.testing.assert_allclose(served, data.features[30:40].astype(np.float32))
    with pytest.raises(
        ValueError, match=r"validation_fraction: expected 0, because toy has a validation part, got 0\.5"
    ):
        MultilabelDataModule(data, validation_fraction=0.5)
    with pytest.raises(ValueError, match="validation: expected no rows that are also in test, got 1"):
        replace(data, validation=np.arange(31, 41), train=np.arange(30))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_hold_rows_labels_and_their_place(sparse, dtype):
    data = toy(sparse)
    module = MultilabelDataModule(data, scaling=unit_norm, batch_size=8, dtype=dtype, seed=3)
    batches = list(module.train_dataloader())
    assert [len(batch.index) for batch in batches] == [8] * 5 + [3]
    assert torch.equal(rows_of(batches).sort().values, torch.arange(43))
    features = data.train_features.toarray() if sparse else data.train_features
    features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-300)
    for batch in batches:
        assert (batch.features.layout == torch.sparse_csr) == sparse
        assert (batch.features.dtype, batch.labels.dtype, batch.index.dtype) == (dtype, dtype, torch.int64)
        np.testing.assert_allclose(batch.features.to_dense(), features[batch.index], rtol=1e-6)
        np.testing.assert_array_equal(batch.labels, data.train_labels[batch.index])


def test_one_instance_is_a_batch_of_one():
    part = MultilabelDataModule(toy(), scaling=unscaled).train_set
    assert part[5].features.shape == (1, 6)
    assert part[5].index.tolist() == [5]


def test_order_is_that_of_seed_and_epoch():
    def order(seed, epoch):
        loader = MultilabelDataModule(toy(), seed=seed).train_dataloader()
        loader.sampler.set_epoch(epoch)
        return rows_of(loader).tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(5, 0)


def test_processes_share_the_instances():
    part = MultilabelDataModule(toy()).train_set
    shares = [rows_of(shuffled(part, 8, 0, num_processes=2, process=process)) for process in (0, 1)]
    assert [len(share) for share in shares] == [22, 22]
    assert set(torch.cat(shares).tolist()) == set(range(43))


def test_validation_part_is_held_out_of_everything():
    data = toy()
    module = MultilabelDataModule(data, validation_fraction=0.25, splitter=random_split, seed=1)
    assert len(module.validation_rows) == 11
    np.testing.assert_array_equal(
        np.sort(np.concatenate([module.train_rows, module.validation_rows])), np.sort(data.train)
    )
    again = MultilabelDataModule(data, validation_fraction=0.25, splitter=random_split, seed=1)
    np.testing.assert_array_equal(module.train_rows, again.train_rows)
    assert torch.equal(rows_of(module.val_dataloader()), torch.arange(11))


def with_labels(labels: np.ndarray) -> MultilabelData:
    data = toy()
    return replace(data, labels=labels.astype(data.labels.dtype))


def test_validation_rows_have_all_labels():
    labels = toy().labels.copy()
    labels[np.arange(len(labels)) % 2 == 0, 0] = np.nan
    module = MultilabelDataModule(with_labels(labels), validation_fraction=0.5)
    assert len(module.validation_rows) == np.ceil((toy().train % 2 == 1).sum() / 2)
    assert not module.validation_set.labels.isnan().any()
    assert sorted([*module.train_rows, *module.validation_rows]) == sorted(toy().train)


def test_no_validation_part_can_be_held_out_of_rows_that_lack_labels():
    labels = np.full_like(toy().labels, np.nan)
    labels[toy().train[0]] = 1
    words = r"validation_fraction: expected rows that have all labels .* found 1 in 43 rows: label more"
    with pytest.raises(ValueError, match=words):
        MultilabelDataModule(with_labels(labels), validation_fraction=0.5)
    assert len(MultilabelDataModule(with_labels(labels)).train_rows) == 43


@pytest.mark.parametrize("sparse", [False, True])
def test_parts_that_are_not_there(sparse):
    module = MultilabelDataModule(toy(sparse, num_test=0), scaling=unit_norm)
    assert module.val_dataloader() == []
    for loader in (module.test_dataloader, module.predict_dataloader):
        with pytest.raises(ValueError, match="data: expected a test part, got none in toy"):
            loader()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer of at least 1"),
        ({"validation_fraction": 1.0}, "validation_fraction: expected 0 or more and less than 1"),
        ({"validation_fraction": -0.1}, "validation_fraction: expected 0 or more and less than 1"),
        ({"dtype": torch.float16}, "dtype: expected torch.float32 or torch.float64"),
        ({"scaling": unscaled(np.ones((1, 4)))}, r"rows: expected shape \(43, 4\), got \(43, 6\)"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultilabelDataModule(toy(), **options)


def test_features_are_raw_by_default_and_sparse_ones_never_made_dense():
    data = toy()
    part = MultilabelDataModule(data).train_set
    np.testing.assert_array_equal(part.features, data.features[data.train].astype(np.float32))
    with pytest.raises(ValueError, match="features: expected dense features to standardise"):
        MultilabelDataModule(toy(sparse=True), scaling=standardise)


class Recorder(LightningModule):
    """A linear model that writes down which instances it saw."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.seen = []

    def loss(self, batch):
        return (self.linear(batch.features) - batch.labels.nan_to_num(0)).square().mean()

    def training_step(self, batch, _):
        self.seen.extend(batch.index.tolist())
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.log("loss", self.loss(batch))

    def test_step(self, batch):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(epochs):
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def run(epochs, module, checkpoint):
    """Train a model and leave a checkpoint at the end of the last epoch."""
    seed_everything(0)
    model, lightning = Recorder(), trainer(epochs)
    lightning.fit(model, module)
    lightning.save_checkpoint(checkpoint)
    return model


@pytest.mark.parametrize("sparse", [False, True])
def test_resumed_run_sees_what_the_whole_run_saw(tmp_path, sparse):
    def module():
        return MultilabelDataModule(toy(sparse), scaling=unit_norm, validation_fraction=0.2, batch_size=16)

    whole = run(3, module(), tmp_path / "whole.ckpt")
    run(2, module(), tmp_path / "cut.ckpt")
    seed_everything(1)
    resumed = Recorder()
    trainer(3).fit(resumed, module(), ckpt_path=tmp_path / "cut.ckpt")
    num_train = len(module().train_set)
    assert len(whole.seen) == 3 * num_train
    assert whole.seen[:num_train] != whole.seen[num_train : 2 * num_train]
    assert resumed.seen == whole.seen[2 * num_train :]
    assert torch.equal(resumed.linear.weight, whole.linear.weight)


def test_checkpoint_carries_the_scaling_and_refuses_another(tmp_path):
    data, path = toy(), tmp_path / "last.ckpt"
    module = MultilabelDataModule(data, scaling=standardise)
    model = run(1, module, path)
    saved = unpack(torch.load(path, weights_only=True)["MultilabelDataModule"])["scaling"]
    assert saved.agrees(module.scaling)
    other = data.with_split(data.test, data.train)
    with pytest.raises(
        ValueError, match="scaling: expected the scaling of the checkpoint, got another one for toy"
    ):
        trainer(2).fit(model, MultilabelDataModule(other, scaling=standardise), ckpt_path=path)
    served = MultilabelDataModule(other, scaling=saved)
    results = trainer(1).test(model, served, ckpt_path=path, verbose=False)
    with torch.no_grad():
        losses = [model.loss(batch) * len(batch.index) for batch in served.test_dataloader()]
    assert results[0]["loss"] == pytest.approx(sum(losses).item() / len(served.test_set), rel=1e-5)


def test_raw_rows_scale_as_the_served_ones():
    data = SevenSegment()
    module = MultilabelDataModule(data, scaling=standardise)
    raw = torch.tensor(data.test_features)
    served = torch.cat([batch.features for batch in module.test_dataloader()])
    assert torch.equal(module.scaling.transform(raw), served)


@pytest.mark.data
def test_text_is_served_sparse(data_folder):
    module = MultilabelDataModule(load("rcv1_subset1", data_folder), scaling=unit_norm, batch_size=100)
    batch = next(iter(module.train_dataloader()))
    assert batch.features.layout == torch.sparse_csr
    assert batch.features.shape == (100, 47236)
    squares = torch.sparse.sum(batch.features.to_sparse_coo() ** 2, 1).to_dense()
    torch.testing.assert_close(squares, torch.ones(100))


@pytest.mark.data
def test_images_are_standardised(data_folder):
    module = MultilabelDataModule(load("scene", data_folder), scaling=standardise, validation_fraction=0.1)
    features = torch.from_numpy(module.train_set.features)
    assert features.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(294))
    assert (len(module.train_set), len(module.validation_set), len(module.test_set)) == (1089, 122, 1196)


def test_evaluation_has_batches_of_its_own_size():
    data = MultilabelDataModule(SevenSegment(), batch_size=10, evaluation_batch_size=100)
    assert len(next(iter(data.train_dataloader())).labels) == 10
    assert len(next(iter(data.test_dataloader())).labels) == 100
    with pytest.raises(ValueError, match="evaluation_batch_size"):
        MultilabelDataModule(SevenSegment(), evaluation_batch_size=0)


def batches_of(module, epoch):
    loader = module.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return [*loader, *module.val_dataloader(), *module.test_dataloader()]


class OnCpu:
    """A trainer, as far as data need one."""

    world_size, global_rank = 1, 0
    strategy = SimpleNamespace(root_device=torch.device("cpu"))


@pytest.mark.parametrize("options", [{"on_device": True}, slow({"num_workers": 1})])
def test_batches_are_the_same_wherever_they_are_put_together(options):
    expected = MultilabelDataModule(toy(), validation_fraction=0.2, batch_size=8)
    module = MultilabelDataModule(toy(), validation_fraction=0.2, batch_size=8, **options)
    module.trainer = OnCpu()
    for came, wanted in zip(batches_of(module, 3), batches_of(expected, 3), strict=True):
        for one, other in zip(came, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    if "on_device" in options:
        # Copied once, for all epochs.
        assert module.train_dataloader().dataset is module.train_dataloader().dataset
        assert module.train_dataloader().dataset is not module.train_set


@pytest.mark.parametrize(
    "options",
    [{"num_workers": -1}, {"on_device": True, "num_workers": 1}, {"on_device": True, "pin_memory": True}],
)
def test_ways_of_loading_that_do_not_fit_are_refused(options):
    with pytest.raises(ValueError, match=r"^(num_workers|on_device): expected"):
        MultilabelDataModule(toy(), **options)
    with pytest.raises(ValueError, match=r"on_device: expected dense features.* got .* CSR features"):
        MultilabelDataModule(toy(sparse=True), scaling=unscaled, on_device=True)
