"""Files in every format give the same predictions, and only a file that fits the model gives any."""

from __future__ import annotations

import csv
from functools import partial

import numpy as np
import pytest
import torch
from problems.small import NAMES, NUM_FEATURES, NUM_LABELS, network, small_data
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.constraints import Constraints
from lmbm_torch.data.features import numbered
from lmbm_torch.data.scaling import standardise, unit_norm
from lmbm_torch.inference import decode
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.prediction import answers, reading, tables
from lmbm_torch.prediction.answers import allowed_probabilities
from lmbm_torch.prediction.predictor import Predictor


def saved_model(names=NAMES, scaling=standardise) -> Predictor:
    model = network()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, generator=generator)
    return Predictor.of_model(model.eval(), tuple(names), 1.0, scaling(small_data().train_features))


@pytest.fixture
def npz(tmp_path):
    data = small_data()
    path = tmp_path / "small.npz"
    np.savez(
        path,
        x_train=data.train_features,
        y_train=data.train_labels,
        x_test=data.test_features,
        y_test=data.test_labels,
        label_names=NAMES,
    )
    return path


def all_labels(decodings):
    return torch.cat([decoding.labels for decoding in decodings])


def test_npz_arff_and_svmlight_agree(tmp_path, npz):
    data = small_data()
    arff = tmp_path / "small.arff"
    names = [*numbered("feature", NUM_FEATURES), *NAMES]
    header = ["@relation small", *[f"@attribute {name} numeric" for name in names], "@data"]
    rows = np.hstack([data.features, data.labels]).tolist()
    arff.write_text("\n".join([*header, *[",".join(map(repr, row)) for row in rows]]) + "\n")
    svmlight = tmp_path / "small.svm"
    dump_svmlight_file(data.features, data.labels, str(svmlight), zero_based=False, multilabel=True)

    saved = saved_model()
    expected = all_labels(answers.decode(saved, data.features))
    assert len(torch.unique(expected, dim=0)) > 5
    numbers = saved_model(names=[str(label) for label in range(NUM_LABELS)], scaling=unit_norm)
    by_number = all_labels(answers.decode(numbers, csr_array(data.features)))
    for path, model, labels in (
        (npz, saved, expected),
        (arff, saved, expected),
        (svmlight, numbers, by_number),
    ):
        read = reading.read(path, model)
        found = answers.decode(model, read.features[reading.rows_of(read, "all")])
        assert torch.equal(all_labels(found), labels)
        assert np.array_equal(read.labels, data.labels)


@pytest.mark.parametrize("form", ["csc", "coo", "duplicates"])
def test_sparse_rows_of_any_format_are_decoded_alike(form):
    rows = csr_array(np.where(np.abs(small_data().features) > 0.5, small_data().features, 0))
    saved = saved_model(scaling=unit_norm)
    expected = torch.cat([found.objective for found in answers.decode(saved, rows)])
    halves = np.repeat(0.5 * rows.data, 2), np.repeat(rows.indices, 2), 2 * rows.indptr
    other = csr_array(halves, shape=rows.shape) if form == "duplicates" else rows.asformat(form)
    found = torch.cat([found.objective for found in answers.decode(saved, other)])
    torch.testing.assert_close(found, expected)


def test_batches_change_nothing(monkeypatch):
    whole = list(answers.decode(saved_model(), small_data().features))
    monkeypatch.setattr(answers, "BATCH_SIZE", 9)
    parts = list(answers.decode(saved_model(), small_data().features))
    assert (len(whole), len(parts)) == (1, 9)
    assert torch.equal(all_labels(whole), all_labels(parts))


def test_rows_are_those_of_the_test_part_where_there_is_one():
    data = small_data()
    assert reading.rows_of(data).tolist() == data.test.tolist()
    assert reading.rows_of(data, "train").tolist() == data.train.tolist()
    assert len(reading.rows_of(data, "all")) == 80
    alone = data.with_split(np.arange(80), np.arange(0))
    assert len(reading.rows_of(alone)) == 80
    with pytest.raises(ValueError, match=r"part: expected a part with rows, got test"):
        reading.rows_of(alone, "test")
    with pytest.raises(ValueError, match=r"part: .* got half"):
        reading.rows_of(data, "half")


def test_metrics_are_those_of_the_decodings(npz, monkeypatch):
    monkeypatch.setattr(answers, "BATCH_SIZE", 9)
    saved = saved_model()
    data = reading.read(npz, saved)
    scores = answers.evaluate(saved, data, data.test)
    decodings = list(answers.decode(saved, data.test_features))
    wrong = all_labels(decodings).numpy() != data.test_labels
    assert scores["exact_match"] == pytest.approx((~wrong.any(1)).mean())
    assert scores["hamming_loss"] == pytest.approx(wrong.mean())
    assert scores["proven_optimal"] == 1.0
    nodes = torch.cat([decoding.nodes for decoding in decodings])
    assert scores["mean_nodes"] == pytest.approx(nodes.double().mean().item())


def predicted(saved, features, decoder=None):
    return list(answers.predict(saved, features, decoder))


def test_predictions_are_written_with_names_probabilities_and_certificates(tmp_path):
    saved = saved_model()
    path = tmp_path / "predictions.csv"
    predictions = predicted(saved, small_data().test_features)
    tables.write_predictions(path, saved, predictions)
    with path.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    alone = [f"P({name})" for name in NAMES]
    assert header == ["row", "rank", "labels", *NAMES, *alone, "probability", "objective", "bound", "exact"]
    assert [row[:2] for row in rows] == [[str(number), "1"] for number in range(20)]
    table = torch.tensor([[float(cell) for cell in row[3:]] for row in rows], dtype=torch.float64)
    (each,) = predictions
    found = each.decoding
    assert [row[2] for row in rows] == [
        ";".join(name for name, on in zip(NAMES, labels, strict=True) if on)
        for labels in found.labels.tolist()
    ]
    assert torch.equal(table[:, :NUM_LABELS], found.labels.double())
    energy = saved.energies(torch.from_numpy(small_data().test_features))[0]
    likely = exact.marginals(energy).labels
    assert torch.allclose(table[:, NUM_LABELS : 2 * NUM_LABELS], likely.double())
    assert torch.allclose(table[:, -4], energy.log_prob(found.labels).exp().double())
    assert torch.equal(table[:, -3:].mT, torch.stack([found.objective, found.bound, found.status.exact]))


@pytest.mark.parametrize("batch_size", [1024, 9])
def test_several_labellings_of_a_row_come_best_first(tmp_path, monkeypatch, batch_size):
    monkeypatch.setattr(answers, "BATCH_SIZE", batch_size)
    saved, features = saved_model(), small_data().test_features
    rows = list(tables.table_rows(saved, predicted(saved, features, partial(decode, top_k=16))))
    assert [row[:2] for row in rows] == [[row, rank] for row in range(20) for rank in range(1, 17)]
    probability = np.array([row[-4] for row in rows]).reshape(20, 16)
    assert np.allclose(probability.sum(1), 1)
    assert (np.diff(probability, axis=1) <= 1e-6).all()
    best = [row[3 : 3 + NUM_LABELS] for row in rows[::16]]
    assert best == all_labels(each.decoding for each in predicted(saved, features, decode)).tolist()


def test_a_file_of_predictions_is_complete_or_not_there(tmp_path):
    saved, path = saved_model(), tmp_path / "predictions.csv"
    predictions = predicted(saved, small_data().test_features)

    def interrupted():
        yield from predictions
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.write_predictions(path, saved, interrupted())
    assert list(tmp_path.iterdir()) == []
    tables.write_predictions(path, saved, predictions)
    with pytest.raises(FileExistsError):
        tables.write_predictions(path, saved, [])
    assert len(path.read_text().splitlines()) == 21
    tables.write_predictions(path, saved, [], "w")
    assert len(path.read_text().splitlines()) == 1


def test_files_that_do_not_fit_are_refused(tmp_path, npz):
    saved = saved_model()
    with pytest.raises(ValueError, match=r"path: expected a file ending in"):
        reading.read(tmp_path / "small.doc", saved)
    with pytest.raises(ValueError, match=r"path: expected a file without column names"):
        reading.read(tmp_path / "small.csv", saved)
    with pytest.raises(ValueError, match=r"path: .*labels of svmlight files are numbers.*'sun'"):
        reading.read(tmp_path / "small.svm.gz", saved)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        reading.read(tmp_path / "none.npz", saved)
    with pytest.raises(ValueError, match=r"features: expected shape \(at least 1, 5\)"):
        list(answers.decode(saved, small_data().features[:, :3]))
    other = saved_model(names=["a", "b", "c", "d"])
    data = reading.read(npz, other)
    with pytest.raises(ValueError, match="label_names: expected the model's"):
        answers.evaluate(other, data, data.test)
    clash = saved_model(names=["sun", "sea", "bound", "sky"])
    with pytest.raises(ValueError, match=r"label_names: .*\['bound'\]"):
        tables.write_predictions(tmp_path / "clash.csv", clash, [])
    assert not (tmp_path / "clash.csv").exists()


def test_probabilities_under_rules_are_not_given_where_no_sum_is_exact():
    dense = random_pairwise_energy(0, 30, 2)
    rules = Constraints.of("a -> not b", ["a", "b", *map(str, range(28))])
    found = allowed_probabilities([dense], rules)
    assert found.labels.isnan().all()
    assert found.log_partition.isnan().all()
    assert "not known under these rules: " in found.method
