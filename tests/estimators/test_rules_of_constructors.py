"""Rules that classifiers are given with their settings, against those around them and against enumeration."""

from __future__ import annotations

import inspect
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from problems.under_rules import NAMES, RULES, X, Y
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from annotate.completions import Completer
from lmbm_torch import estimators, load
from lmbm_torch.constraints import Constraints, parse
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.label_chains import probabilistic as members
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor

PUBLIC = [name for name in estimators.__all__ if isinstance(getattr(estimators, name), type)]
FRAME = pd.DataFrame(Y, columns=NAMES)
ALLOWED = Constraints.of(RULES, NAMES)
# Training labels that the rules allow: of others structural SVMs and machines learn nothing.
OBEYING = ~ALLOWED.violated(Y).any(1)
ROWS, TARGETS = X[OBEYING], FRAME[OBEYING]
EVERYTHING = np.array(list(product([0, 1], repeat=4)))
NETWORK = LMSBNClassifier(random_state=0)
# Their training looks at no rule: answers are those of the same estimator with rules around it.
UNTRAINED = [
    NETWORK,
    LMSBNEnsembleClassifier(NETWORK, num_members=2, random_state=0),
    ConditionalRBMClassifier(num_hidden=2, max_iter=5, objective="mle", random_state=0),
    ProbabilisticClassifierChain(LogisticRegression(), precision=1e-9),
]
TRAINED = [
    LMBMClassifier(random_state=0),
    LMBMClassifier(decoder="exact", calibrate="scale", random_state=0),
    StructuralSVMClassifier(random_state=0),
    StructuralSVMClassifier(decoder="exact", calibrate=True, random_state=0),
    LMSBNClassifierCV(NETWORK, Cs=[0.1, 1.0], cv=2, random_state=0),
    ThresholdTunedClassifier(NETWORK, cv=2, max_cycles=1, num_steps=2),
]
# Of positions, of nodes, of classes, of a hierarchy, which is their rule, of thresholds for a risk, and what
# takes the place of such a parameter.
WITHOUT = {
    *(
        "GraphClassifier",
        "GridClassifier",
        "HiddenMarkovClassifier",
        "MaximumEntropyMarkovClassifier",
        "MultiClassSVM",
    ),
    *("HierarchicalClassifier", "KernelLogisticRegression", "JointClassifier", "RiskControlledClassifier"),
}


def named(estimator):
    return type(estimator).__name__


def under(estimator, rules=RULES):
    return clone(estimator).set_params(constraints=rules)


def test_every_classifier_of_label_matrices_takes_rules_with_its_settings():
    kinds = {name: inspect.signature(getattr(estimators, name)).parameters for name in PUBLIC}
    assert {name for name, parameters in kinds.items() if "constraints" not in parameters} == WITHOUT


@pytest.mark.parametrize("estimator", UNTRAINED, ids=named)
def test_answers_are_those_of_rules_put_around(estimator):
    own = under(estimator).fit(X, FRAME)
    around = ConstrainedClassifier(clone(estimator), RULES).fit(X, FRAME)
    assert ALLOWED.violated(around.estimator_.predict(X)).any(), "else rules are not needed"
    np.testing.assert_array_equal(own.predict(X), around.predict(X))
    np.testing.assert_allclose(own.decode(X, top_k=2).objective, around.decode(X, top_k=2).objective)
    assert own.binding_rules(X) == around.binding_rules(X)
    # Rules of one call are obeyed beside them.
    both = own.decode(X, constraints="sun").labels.numpy()
    assert both[:, 0].all()
    assert not ALLOWED.violated(both).any()


@pytest.mark.parametrize("estimator", [*UNTRAINED, *TRAINED], ids=named)
def test_answers_and_probabilities_obey_after_saving_and_copying(estimator, tmp_path):
    model = under(clone(under(estimator))).fit(ROWS, TARGETS)
    assert not ALLOWED.violated(model.predict(X)).any()
    assert not ALLOWED.violated(model.decode(X, top_k=2).labels.flatten(0, 1).numpy()).any()
    if hasattr(model, "predict_proba"):
        probability = model.predict_proba(X)
        assert (probability[:, 0] + probability[:, 1] <= 1 + 1e-9).all()
        with np.errstate(divide="ignore"):
            every = [np.exp(model.log_prob(X, np.tile(labels, (len(X), 1)))) for labels in EVERYTHING]
        np.testing.assert_allclose(np.sum(every, 0), 1, atol=1e-6)
        np.testing.assert_allclose(np.einsum("sb,sl->bl", every, EVERYTHING), probability, atol=1e-6)
        assert not np.array(every)[ALLOWED.violated(EVERYTHING).any(1)].any()
    if isinstance(model, ProbabilisticClassifierChain):
        return
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.binding_rules(X) == model.binding_rules(X)


@pytest.mark.parametrize("decoder", ["exact_match", "hamming", "f1", "jaccard"])
@pytest.mark.parametrize("estimator", [NETWORK, UNTRAINED[1], UNTRAINED[3]], ids=named)
def test_every_decoder_obeys(estimator, decoder):
    free = clone(estimator).set_params(decoder=decoder).fit(X, FRAME)
    assert ALLOWED.violated(free.predict(X)).any(), "else rules are not needed"
    model = under(free).fit(X, FRAME)
    assert not ALLOWED.violated(model.predict(X)).any()
    known = np.full((1, 4), np.nan)
    known[0, 0] = 1
    assert model.predict(X[:1], known=known)[0, 0] == 1


def _shares(common: Any, every: Any) -> np.ndarray:
    return np.where(every == 0, 1.0, common / np.maximum(every, 1))


# Of answers and truths (…, labels).
MEASURES = {
    "exact_match": lambda y, z: (y == z).all(-1).astype(float),
    "hamming": lambda y, z: (y == z).mean(-1),
    "f1": lambda y, z: _shares(2 * (y & z).sum(-1), (y + z).sum(-1)),
    "jaccard": lambda y, z: _shares((y & z).sum(-1), (y | z).sum(-1)),
}
PATH = LMSBNClassifierCV(NETWORK, Cs=[1.0], cv=2, random_state=0)


@pytest.mark.parametrize("decoder", MEASURES)
@pytest.mark.parametrize("estimator", [NETWORK, UNTRAINED[1], UNTRAINED[3], PATH], ids=named)
def test_rules_around_every_decoder_leave_the_best_of_all_allowed_answers(estimator, decoder):
    decoding = {"base__decoder" if estimator is PATH else "decoder": decoder}
    model = ConstrainedClassifier(clone(estimator).set_params(**decoding), RULES).fit(X, FRAME)
    found, free = model.predict(X), model.estimator_.predict(X)
    allowed = EVERYTHING[~ALLOWED.violated(EVERYTHING).any(1)]
    probability = [np.exp(model.estimator_.log_prob(X, np.tile(each, (len(X), 1)))) for each in allowed]
    worth = MEASURES[decoder](allowed[:, None], allowed) @ (probability / np.sum(probability, 0))
    own = (allowed[:, None] == found).all(2)
    assert (own.sum(0) == 1).all()
    regret = worth.max(0) - worth[own.argmax(0), np.arange(len(X))]
    ruled = model._ruled()
    if ruled is not None:
        said = getattr(ruled, "estimator_", ruled).predict_decoding(X).status.residual.numpy()
        assert (regret <= said + 1e-6).all()
    # Labellings are enumerated until little probability is left, which hardly ever matters.
    assert (regret < LIMITS.mass_left).all()
    assert (regret < 1e-6).mean() >= 0.95
    is_changed = (free != found).any(1)
    assert 0 < is_changed.sum() < len(X)
    bound = [rules for rules, changed in zip(model.binding_rules(X), is_changed, strict=True) if changed]
    assert sum(map(len, model.binding_rules(X))) == sum(map(len, bound))
    told = model.explain(X[is_changed][:1])
    assert [told[name].value for name in NAMES] == found[is_changed][0].tolist()
    assert told.rules == tuple(dict.fromkeys(bound[0]))


@pytest.mark.parametrize(
    "rules", [RULES[0], RULES, ALLOWED, [rule for text in RULES for rule in parse(text)]]
)
def test_rules_of_every_form_are_kept_in_files(rules, tmp_path):
    model = under(NETWORK, rules).fit(ROWS, TARGETS)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again._rules().matrix, model._rules().matrix)
    assert again._rules().texts == model._rules().texts


def test_rules_of_the_base_and_of_its_wrapper_hold_together():
    base = under(NETWORK, RULES[0])
    ensemble = LMSBNEnsembleClassifier(base, num_members=2, random_state=0, constraints=RULES[1:])
    paths = LMSBNClassifierCV(base, Cs=[1.0], cv=2, random_state=0, constraints=RULES[1:])
    around = ConstrainedClassifier(base, RULES[1:])
    for model in (ensemble, paths, around):
        assert not ALLOWED.violated(model.fit(X, FRAME).predict(X)).any()
        assert {text for texts in model.binding_rules(X) for text in texts} == {*ALLOWED.texts}


def test_folds_of_a_path_are_scored_under_the_rules():
    free = LMSBNClassifierCV(NETWORK, Cs=[0.1, 1.0], cv=2, random_state=0).fit(ROWS, TARGETS)
    held = clone(free).set_params(constraints=RULES).fit(ROWS, TARGETS)
    assert (held.scores_ != free.scores_).any()


def test_a_chain_has_the_probabilities_of_what_is_allowed(monkeypatch):
    chain = ProbabilisticClassifierChain(LogisticRegression(), num_members=2, precision=1e-12, random_state=0)
    free = chain.fit(ROWS, TARGETS)
    own = under(chain).fit(ROWS, TARGETS)
    every = np.stack([np.exp(free.log_prob(X, np.tile(each, (len(X), 1)))) for each in EVERYTHING])
    allowed = ~ALLOWED.violated(EVERYTHING).any(1)
    expected = np.where(allowed[:, None], every, 0) / every[allowed].sum(0)
    np.testing.assert_allclose(own.predict_proba(X), np.einsum("sb,sl->bl", expected, EVERYTHING), atol=1e-6)
    drawn = own.sample(X[:5], 3000)
    assert not ALLOWED.violated(drawn.reshape(-1, 4)).any()
    np.testing.assert_allclose(drawn.mean(0), own.predict_proba(X[:5]), atol=0.04)
    # What is found in part tells how much it leaves of what is allowed.
    few = own.set_params(max_labellings=3).marginals(X)
    wrong = np.abs(few.states[..., 1].numpy() - np.einsum("sb,sl->bl", expected, EVERYTHING)).max(1)
    known = few.status.residual.numpy() < 1
    assert known.any()
    assert (wrong <= few.status.residual.numpy() + 1e-6)[known].all()
    monkeypatch.setattr(members, "MAX_DRAWS", 1)
    with pytest.raises(ValueError, match="constraints: expected samples that obey the rules, got none in 1"):
        own.sample(X, 100)


def test_what_rules_rule_out_is_told():
    model = under(NETWORK, ["not rain", "sun or city"]).fit(ROWS, TARGETS)
    margins = model.decision_function(X)
    assert (margins[:, 1] == -np.inf).all()
    assert np.isfinite(margins[:, [0, 2, 3]]).all()
    assert ((margins > 0) == model.predict(X)).all()
    told = model.explain(X[:1])
    assert told["rain"].otherwise is None
    assert told.rules == tuple(dict.fromkeys(model.binding_rules(X[:1])[0]))
    with pytest.raises(ValueError, match="compile_predictor: expected no rules"):
        model.compile_predictor()


def test_rules_that_cannot_be_are_refused_before_training():
    with pytest.raises(ValueError, match="expected names of labels, got 'snow'"):
        under(NETWORK, "snow").fit(ROWS, TARGETS)
    with pytest.raises(ValueError, match="got a contradiction: sun -> rain; sun; not rain"):
        under(NETWORK, ["sun -> rain", "sun", "not rain"]).fit(ROWS, TARGETS)
    with pytest.raises(ValueError, match="constraints: expected None, because fit was given classes"):
        under(NETWORK, "sun").fit(ROWS, TARGETS["sun"])
    with pytest.raises(ValueError, match="The 'constraints' parameter of LMBMClassifier"):
        under(LMBMClassifier(), 3).fit(ROWS, TARGETS)


def test_programs_that_read_a_saved_model_obey_its_own_rules():
    saved = Predictor.of(under(NETWORK).fit(X, FRAME))
    rows = np.asarray(X, np.float64)
    (found,) = answers.predict(saved, rows)
    allowed = ConstrainedClassifier(NETWORK, RULES).fit(X, FRAME)
    np.testing.assert_allclose(found.probabilities.labels, allowed.predict_proba(X), atol=1e-9)
    several = saved.deciding(top_k=3)(saved.energies(rows)[0]).labels.flatten(0, 1).numpy()
    assert not ALLOWED.violated(several).any()
    known = np.array([1, np.nan, np.nan, np.nan])
    completed = Completer(saved).complete(rows[:1], known)
    assert not ALLOWED.violated(np.array([each.labels for each in completed.best])).any()
    assert completed.probabilities[1] == 0, "sun -> not rain"


@pytest.mark.parametrize(
    "estimator",
    [
        under(NETWORK, "not sun").set_params(decoder="f1"),
        under(StructuralSVMClassifier(random_state=0), "not sun"),
        ThresholdTunedClassifier(under(NETWORK, "not sun"), cv=2, max_cycles=1, num_steps=2),
    ],
    ids=named,
)
def test_a_saved_model_s_rules_give_way_to_others(estimator):
    saved, rows = Predictor.of(clone(estimator).fit(X, FRAME)), np.asarray(X, np.float64)
    _, free = saved.obeying(None).answer(rows)
    assert saved.rules.violated(free.labels.numpy()).any()
    other = Constraints.of("sun", NAMES)
    _, found = saved.obeying(other).answer(rows)
    assert found.labels[:, 0].all()
    assert saved.obeying(other).rules.texts == other.texts
    assert saved.rules.texts != other.texts


@pytest.mark.parametrize("estimator", [LMSBNClassifier(C=10.0), LMBMClassifier(C=10.0)], ids=named)
def test_errors_are_not_bounded_by_losses_where_the_truth_may_break_rules(estimator):
    alone, separable = np.eye(4)[[0, 1] * 20], pd.DataFrame(np.eye(4, dtype=int)[[0, 1] * 20], columns=NAMES)
    assert clone(estimator).fit(alone, separable).error_bound_ < 1
    model = under(estimator, "not sun").fit(alone, separable)
    assert (model.predict(alone) != separable.to_numpy()).any(1).mean() <= model.error_bound_ == 1
