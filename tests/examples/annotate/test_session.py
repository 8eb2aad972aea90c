"""Labels given by hand: what the model makes of them, and the table that is written."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from annotate.completions import Completer
from annotate.session import Rows, Session, continued
from lmbm_torch.data import read_table
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration
from lmbm_torch.prediction.predictor import Predictor


def brute_force(saved, features, known):
    """All labellings that agree with what is known, the least hinge loss first, and log P given it."""
    energy = saved.energies(features)[0]
    all_labels = torch.tensor(list(itertools.product((0, 1), repeat=len(known))), dtype=energy.dtype)
    given = torch.from_numpy(known)
    agreeing = all_labels[((all_labels == given) | given.isnan()).all(1)]
    margins = torch.stack([energy.local_margins(labels[None])[0] for labels in agreeing])
    losses = (saved.margin - margins).clamp(min=0).sum(1)
    scores = saved.calibrated([energy])[0].score(agreeing[:, None])[:, 0]
    order = losses.argsort()
    return agreeing[order].int(), losses[order], scores.log_softmax(0)[order]


@pytest.mark.parametrize(
    "known", [(np.nan,) * 4, (1, np.nan, np.nan, 0), (np.nan, 1, np.nan, 1), (0, 1, 1, 0)]
)
def test_completions_are_those_of_enumeration(saved, session, known):
    known = np.array(known, np.float64)
    for row in range(session.num_rows):
        features = session.rows.features[row : row + 1]
        found = Completer(saved).complete(features, known)
        labels, losses, log_prob = brute_force(saved, features, known)
        few = min(3, len(labels))
        assert found.exact
        assert [list(each.labels) for each in found.best] == labels[:few].tolist()
        assert [each.objective for each in found.best] == pytest.approx(losses[:few].tolist())
        assert [each.log_prob for each in found.best] == pytest.approx(log_prob[:few].tolist())
        assert found.probabilities == pytest.approx((log_prob.exp() @ labels.double()).tolist())


def test_effects_are_what_is_answered_without_a_label(saved, session):
    seen = 0
    for row in range(session.num_rows):
        features = session.rows.features[row : row + 1]
        for values in itertools.product((0, 1), repeat=2):
            known = np.array([*values, np.nan, np.nan])
            found = Completer(saved).complete(features, known)
            assert set(found.effects) == {0, 1}
            for label, changed in found.effects.items():
                without = known.copy()
                without[label] = np.nan
                other = brute_force(saved, features, without)[0][0].tolist()
                pairs = enumerate(zip(other, found.best[0].labels, strict=True))
                assert changed == {k: pair for k, pair in pairs if k != label and pair[0] != pair[1]}
                seen += len(changed)
    assert seen


@pytest.mark.parametrize(("labels", "given"), [(18, 1), (18, 3), (30, 6), (30, 12)])
def test_clicks_on_many_labels_wait_for_no_enumeration(labels, given):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 10))
    fields = X @ generator.normal(size=(10, labels))
    Y = (fields + fields[:, ::-1] / 2 + generator.normal(size=fields.shape) > 0).astype(int)
    large = Predictor.of(LMSBNClassifier(random_state=0).fit(X, Y))
    known = np.full(labels, np.nan)
    known[:given] = Y[0, :given]
    completer = Completer(large)
    found = completer.complete(X[:1], known)
    (energy,) = large.calibrated(large.energies(X[:1]))
    if labels - given <= 18:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pairwise_enumeration, "compiled", lambda *_: None)
            expected = exact.marginals(energy, known=torch.from_numpy(known[None])).labels[0]
            likely = completer.complete(X[:1], known)
        assert found.method == "exact, by enumeration"
        assert found.probabilities == pytest.approx(expected.tolist(), abs=1e-12)
        # Without the kernel, too, for elsewhere there is none.
        error = float(likely.method.rpartition(" ")[2])
        assert error < 0.1
        assert likely.probabilities == pytest.approx(expected.tolist(), abs=1.01 * error)
    else:
        likely = found
    assert likely.method.startswith("by the likely labellings, none wrong by more than ")
    seconds = []
    for _ in range(5):
        began = time.process_time()
        completer.complete(X[:1], known)
        seconds.append(time.process_time() - began)
    # Some .02 to .03 where nothing else runs.
    assert min(seconds) < 0.1


def test_clicks_on_undirected_models_wait_for_no_enumeration_either():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 5))
    Y = (X @ generator.normal(size=(5, 20)) + generator.normal(size=(80, 20)) > 0).astype(int)
    completer = Completer(Predictor.of(LMBMClassifier(random_state=0).fit(X, Y)))
    known = np.full(20, np.nan)
    known[0] = Y[0, 0]
    seconds = []
    for _ in range(5):
        began = time.process_time()
        found = completer.complete(X[:1], known)
        seconds.append(time.process_time() - began)
    # Some .01 where nothing else runs, and one where all labellings are listed.
    assert min(seconds) < 0.1
    assert found.method == "exact, by enumeration"
    assert len(found.best) == 1
    known[:6] = Y[0, :6]
    assert len(completer.complete(X[:1], known).best) == 3


def test_a_mark_tells_what_it_flips(session):
    before = session.completion(0).best[0].labels
    flipped = session.mark(0, 1, 1 - before[1])
    after = session.completion(0).best[0].labels
    assert after[1] == 1 - before[1]
    assert flipped == {k: (before[k], after[k]) for k in (0, 2, 3) if before[k] != after[k]}
    assert flipped
    assert session.mark(0, 1, None) == {k: pair[::-1] for k, pair in flipped.items()}


def test_what_is_given_is_known_and_nothing_is_written_yet(session):
    assert session.known[3, 0] == 1
    assert session.progress() == (1, 1)
    assert session.next_unlabelled(2) == 4
    assert not session.output.exists()


def test_training_reads_what_is_written(session, table):
    session.accept(0)
    session.mark(1, 2, 0)
    session.keep(1)
    answer = session.completion(0).best[0].labels
    data = read_table(session.output, labels=[*session.label_names], ignore=["name"], test_fraction=0.0)
    expected = np.full((5, 4), np.nan)
    expected[0], expected[1, 2], expected[3, 0] = answer, 0, 1
    np.testing.assert_array_equal(data.labels, expected)
    np.testing.assert_array_equal(data.features, session.rows.features)
    lines = session.output.read_text().splitlines()
    assert [line.partition(",,")[0][:8] for line in lines[1:]] == [f'"00{row} <sc' for row in range(5)]
    assert session.progress() == (3, 2)


def test_a_session_goes_on_with_its_own_table_alone(saved, session, table):
    session.accept(2)
    labels = continued(session.output, session.rows, saved.label_names)
    np.testing.assert_array_equal(labels, session.written)
    others = replace(session.rows, columns=session.rows.columns | {"name": ["another"] * 5})
    with pytest.raises(ValueError, match="has other rows"):
        continued(session.output, others, saved.label_names)
    with pytest.raises(ValueError, match="has other rows or columns"):
        continued(table, session.rows, saved.label_names)


def test_a_file_that_came_in_between_is_not_replaced(session):
    session.output.write_text("another's")
    with pytest.raises(FileExistsError):
        session.accept(0)
    assert session.output.read_text() == "another's"
    assert np.isnan(session.written[0]).all()


def test_other_files_and_models_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match=r"file: expected one ending in \.csv"):
        Rows.read(tmp_path / "rows.npz", saved)
    with pytest.raises(ValueError, match="trained on a table"):
        Rows.read(tmp_path / "rows.csv", replace(saved, schema=None))


def test_warming_up_changes_nothing(session: Session):
    session.warm_up()
    assert np.isnan(session.known).sum() == 19
