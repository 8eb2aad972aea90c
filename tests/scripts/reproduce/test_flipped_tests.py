"""Tables choose without the labels of their test parts: where those are flipped, only scores change."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from problems.small import small_data
from sklearn.model_selection import KFold

from lmbm_torch.compare import trials
from lmbm_torch.compare.methods import METHODS, Ensemble, Tuned
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.estimators import LMBMClassifier
from reproduce import any_table, classifier_chains, crbm_classifier, hierarchies, lmbm_2009, m3n_2003

ONE_SETTING = trials.Settings(splits=2, test_fraction=0.25, budget=1, folds=2, seed=0)


def flipped(data):
    labels = data.labels.copy()
    labels[data.test] = 1 - labels[data.test]
    return replace(data, labels=labels)


def ensemble(base, members):
    """Both of ``lmbm compare``, the ensemble at the base's choices."""

    def run(data):
        single, several = METHODS[base], METHODS[members]
        assert isinstance(single, Tuned)
        assert isinstance(several, Ensemble)
        chosen = trials.try_tuned(data, single, ONE_SETTING, 0)
        return {f"base {key}": value for key, value in chosen.items()} | trials.try_ensemble(
            data, several, chosen
        )

    return run


def machine(data):
    chosen = lmbm_2009.cross_validate(data, LMBMClassifier(random_state=0), {"C": (0.1, 1.0)}, {})
    again = lmbm_2009.decoded(data, LMBMClassifier(random_state=0), "lp_relaxation", chosen)
    return chosen | {f"LP {key}": value for key, value in again.items()}


def conditional_rbm(data):
    pipeline = partial(crbm_classifier._pipeline, objective="mle")
    grid = {"model__C": [0.3], "model__num_hidden": [2], "scaling": list(crbm_classifier.SCALINGS)}
    chosen = crbm_classifier._chosen(data, pipeline(), grid, (0, 1))
    again = crbm_classifier._at_the_choice_of(data, pipeline(decoder="matched"), (0, 1), chosen)
    return chosen | {f"modes {key}": value for key, value in again.items()}


def automatic(data):
    return any_table.try_automatic(data, 200.0, 0)


RUNS = {
    "compare, 10 LMSBNs": ensemble("LMSBN", "10 LMSBNs"),
    "compare, 10 classifier chains": ensemble("classifier chain", "10 classifier chains"),
    "lmbm_2009": machine,
    "crbm_classifier": conditional_rbm,
    "any_table, the automatic choice": automatic,
}
SCORES = {*lmbm_2009.METRICS, *crbm_classifier.METRICS, *any_table.METRICS, *trials.MEASURES}


def is_measured(key):
    """Whether the test part has its say in it, or the machine's clock."""
    return key.rpartition(" ")[2] in SCORES or "seconds" in key


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", RUNS)
def test_only_scores_see_the_labels_of_the_test_part(monkeypatch, name):
    # A clock that ticks when it is asked, so that a search within its seconds tries the same both times.
    ticks = itertools.count()
    monkeypatch.setattr(any_table, "time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    monkeypatch.setattr(any_table, "METRICS", {"exact_match": "exact match"})
    # Two of five folds are enough.
    monkeypatch.setattr(crbm_classifier, "KFold", lambda folds, **options: KFold(2, **options))
    data = small_data()
    clean, dirty = RUNS[name](data), RUNS[name](flipped(data))
    kept = {key for key in clean if not is_measured(key)}
    assert len(kept) > 1
    assert {key: dirty[key] for key in kept} == {key: clean[key] for key in kept}
    for key in ("hamming_loss", "base hamming_loss", "H", "LP H"):
        if isinstance(clean.get(key), float):
            # The same answers.
            assert dirty[key] == pytest.approx(1 - clean[key])
    match = "E" if "E" in clean else "exact_match"
    assert dirty[match] < clean[match]


def test_chains_of_forests_learn_without_the_fold_that_they_answer(monkeypatch):
    data, answered = small_data(), []
    one = SimpleNamespace(split=lambda X: [(data.train, data.test)])
    monkeypatch.setattr(classifier_chains, "KFold", lambda *_, **__: one)
    forests = {name: partial(forest.func, 5) for name, forest in classifier_chains.FORESTS.items()}
    monkeypatch.setattr(classifier_chains, "FORESTS", forests)

    def answers(labels, truth, metrics):
        answered.append(labels[data.test].tolist())
        return {}

    monkeypatch.setattr(classifier_chains, "scores", answers)
    for each in (data, flipped(data)):
        classifier_chains.cross_validate(each, "extra trees", 0)
    assert answered[:3] == answered[3:]
    assert len(answered) == 6


def test_gene_functions_are_learned_and_chosen_without_the_test_part(monkeypatch):
    monkeypatch.setattr(hierarchies, "QUANTILES", 20)
    monkeypatch.setattr(hierarchies, "TREES", 5)
    random = np.random.default_rng(0)

    def genes(count):
        features = random.normal(size=(count, 5))
        labels = features[:, :3] + 0.3 * random.normal(size=(count, 3)) > -0.3
        labels[:, 1] &= labels[:, 0]
        return features, labels.astype(int)

    clean = hierarchies.Genes(genes(60), genes(40), genes(50), {1: 0})
    dirty = replace(clean, test=(clean.test[0], 1 - clean.test[1]))
    methods = ["linear, one for each parent", hierarchies.EXTRA]
    found = []
    for data in (clean, dirty):
        monkeypatch.setattr(hierarchies, "read", lambda *_, data=data: data)
        found.append(hierarchies.measured("made up", methods, ""))
    for method in methods:
        first, second = (each[f"_{method}"] for each in found)
        assert first["auprc"] > second["auprc"]
        for key in ("validation", "violations", "labels"):
            assert first[key] == second[key]


def test_words_are_learned_and_settings_chosen_within_the_fold(monkeypatch):
    methods = {"HMM": m3n_2003.LINEAR["HMM"], "CRF": (m3n_2003.LINEAR["CRF"][0], {"C": (0.1, 3)})}
    monkeypatch.setattr(m3n_2003, "LINEAR", methods)
    monkeypatch.setattr(m3n_2003, "KERNEL", {})
    words = digit_numbers(24, num_folds=3)
    other = np.repeat(words.fold, np.diff(words.start)) != 0
    random = np.random.default_rng(0).integers(len(words.label_names), size=len(words.labels))
    noise = np.where(other, random, words.labels)
    found = []
    for data in (words, replace(words, labels=noise)):
        monkeypatch.setattr(m3n_2003, "load_ocr_letters", lambda folder, data=data: data)
        cells = list(m3n_2003.cells(["words"], "", folds=1, kernel_folds=0))
        assert len(cells) == 4
        for settings, trained in zip(cells[::2], cells[1::2], strict=True):
            chosen = settings.run()
            found.append((chosen, trained.run(chosen)))
    for clean, dirty in zip(found[:2], found[2:], strict=True):
        assert clean[0] == dirty[0]
        kept = ("settings", "gap", "transition")
        assert {key: clean[1][key] for key in kept} == {key: dirty[1][key] for key in kept}
        assert clean[1]["error"] < 0.5 < dirty[1]["error"]
