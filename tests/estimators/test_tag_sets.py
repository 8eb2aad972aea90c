"""Allowed transitions and partly known tags of sequence classifiers, against enumeration."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from lmbm_torch import load
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators import ChainCRF, ChainSVM, HiddenMarkovClassifier, MaximumEntropyMarkovClassifier
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import AllowedSteps
from lmbm_torch.solvers.structural import frank_wolfe, smoothing

NAMES = np.array(["B-a", "I-a", "O"])
PAIRS = [(before, after) for before in NAMES for after in NAMES if (before, after) != ("O", "I-a")]
PAIRS += [(None, "B-a"), (None, "O")]


def is_allowed(tags):
    return all(before != "O" or after != "I-a" for before, after in pairwise(["O", *tags]))


def every(length, allowed=is_allowed):
    return [tags for tags in product(NAMES, repeat=length) if allowed(tags)]


def sentences(seed, count=12, longest=4):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest + 1, count)
    y = [np.array(every(length)[random.integers(len(every(length)))]) for length in lengths]
    X = [(tags[:, None] == NAMES) + random.normal(size=(len(tags), 3)) for tags in y]
    return X, y


def scores(model, rows, labellings):
    """The scores of labellings by the weights of a model, without constraints."""
    unary = rows @ model.coef_.T + model.intercept_
    place = {tag: index for index, tag in enumerate(model.classes_)}
    codes = np.array([[place[tag] for tag in tags] for tags in labellings])
    steps = model.transition_[codes[:, :-1], codes[:, 1:]].sum(1)
    return unary[np.arange(len(rows)), codes].sum(1) + steps


def squares(model):
    return 0.5 * sum(float((w**2).sum()) for w in (model.coef_, model.intercept_, model.transition_))


def likelihood(model, X, agreeing):
    """½‖w‖² less the log-probabilities of the agreeing labellings among the allowed ones."""
    total = squares(model)
    for rows, some in zip(X, agreeing, strict=True):
        total += model.C * np.logaddexp.reduce(scores(model, rows, every(len(rows))))
        total -= model.C * np.logaddexp.reduce(scores(model, rows, some))
    return total


def assert_stationary(model, objective, size=1e-3):
    """No change of the weights lowers the objective by more than the second order of the change."""
    random = np.random.default_rng(0)
    best = objective(model)
    assert model.objective_ == pytest.approx(best, rel=1e-6)
    for name in ("coef_", "intercept_", "transition_"):
        kept = getattr(model, name)
        for _ in range(4):
            setattr(model, name, kept + size * random.normal(size=kept.shape))
            assert objective(model) > best - 1e-7
        setattr(model, name, kept)


@pytest.mark.parametrize("constraints", ["BIO", PAIRS], ids=["scheme", "pairs"])
@pytest.mark.parametrize("seed", range(2))
def test_a_crf_sums_over_allowed_sequences_alone(seed, constraints):
    X, y = sentences(seed)
    model = ChainCRF(2.0, constraints=constraints, tol=1e-8).fit(X, y)
    assert_stationary(model, lambda each: likelihood(each, X, [[tags] for tags in y]))
    other, _ = sentences(seed + 10)
    found, chances = model.predict(other), model.predict_proba(other)
    for rows, tags, chance in zip(other, found, chances, strict=True):
        labellings = every(len(rows))
        values = scores(model, rows, labellings)
        assert tuple(tags) == labellings[int(values.argmax())]
        weights = np.exp(values - np.logaddexp.reduce(values))
        expected = [
            [weights @ [t[i] == name for t in labellings] for name in NAMES] for i in range(len(rows))
        ]
        np.testing.assert_allclose(chance, expected, atol=1e-9)


def hinges(model, X, y):
    total = squares(model)
    for rows, tags in zip(X, y, strict=True):
        labellings = every(len(rows))
        loss = [(np.array(each) != tags).sum() for each in labellings]
        own = scores(model, rows, [tags])[0]
        total += model.C * max(scores(model, rows, labellings) + loss - own)
    return total


@pytest.mark.parametrize("solver", [frank_wolfe, smoothing, smo], ids=lambda each: each.__name__[-11:])
def test_a_large_margin_is_one_over_allowed_sequences_alone(solver, monkeypatch):
    X, y = sentences(3, 40)
    settings = {"kernel": lambda first, second: first @ second.T} if solver is smo else {}
    monkeypatch.setattr("lmbm_torch.estimators.chains.max_margin._MANY", 0 if solver is smoothing else 1e9)
    monkeypatch.setattr("lmbm_torch.estimators.chains.max_margin._ENOUGH", 1e9)
    model = ChainSVM(0.5, constraints="BIO", tol=1e-5, random_state=0, **settings).fit(X, y)
    if solver is smo:
        model.coef_ = model.dual_coef_ @ model.X_fit_
    best = hinges(model, X, y)
    assert model.objective_ == pytest.approx(best, rel=1e-6)
    free = ChainSVM(0.5, tol=1e-5, random_state=0).fit(X, y)
    assert best < hinges(free, X, y) - 1e-3
    # The certificate is of the same problem: no weights are better by more than the gap.
    assert model.duality_gap_ <= 1e-5
    for rows, tags in zip(X, model.predict(X), strict=True):
        labellings = every(len(rows))
        assert tuple(tags) == labellings[int(scores(model, rows, labellings).argmax())]


def test_all_solvers_reach_one_optimum_also_for_single_positions():
    X, y = sentences(5, 30, longest=1)
    linear = ChainSVM(0.5, constraints="BIO", tol=1e-6, random_state=0).fit(X, y)
    dual = ChainSVM(
        0.5, constraints="BIO", tol=1e-6, random_state=0, kernel=lambda first, second: first @ second.T
    ).fit(X, y)
    assert dual.objective_ == pytest.approx(linear.objective_, rel=1e-5)
    assert {tag for tags in dual.predict(X) for tag in tags} == {"B-a", "O"}


def test_solvers_of_all_steps_refuse_constraints():
    allowed = AllowedSteps(*(np.ones(shape, np.bool_) for shape in (2, (2, 2), 2)))
    problem = ChainKernelProblem(np.eye(2), np.array([0, 1]), np.array([0, 1, 2]), 2, allowed=allowed)
    for solver in (exponentiated_gradient, multi_class):
        with pytest.raises(ValueError, match="problem: expected that all steps are allowed"):
            run(solver, problem, tol=1e-3)


def test_labels_that_the_constraints_forbid_are_refused():
    X, y = sentences(0)
    y[4] = np.array(["I-a"] * len(y[4]))
    for model in (ChainCRF(constraints="BIO"), ChainSVM(constraints="BIO")):
        with pytest.raises(
            ValueError, match=r"y: expected tags that the constraints allow, .* in sequence 4"
        ):
            model.fit(X, y)
    with pytest.raises(ValueError, match="'constraints' parameter of ChainCRF must be"):
        ChainCRF(constraints="BILOU").fit(X, y)
    with pytest.raises(ValueError, match="got 'c'"):
        ChainCRF(constraints=[("O", "c")]).fit(*sentences(0))


def test_constraints_are_saved(tmp_path):
    X, y = sentences(1)
    for number, constraints in enumerate(("BIO", PAIRS)):
        model = ChainCRF(constraints=constraints).fit(X, y)
        model.save(tmp_path / f"{number}.safetensors")
        found = load(tmp_path / f"{number}.safetensors")
        assert torch.equal(found.energy(X).transition, model.energy(X).transition)
        assert bool((found.energy(X).transition == -torch.inf).any())


def hidden(y, seed):
    """Labels of which some are None, some NaN and some sets, and the labellings that agree."""
    random = np.random.default_rng(seed)
    given, agreeing = [], []
    for tags in y:
        kinds = random.integers(0, 5, len(tags))
        others = random.choice(NAMES, len(tags))
        each = [
            None if kind == 0 else float("nan") if kind == 1 else {tag, other} if kind == 2 else tag
            for kind, tag, other in zip(kinds, tags.tolist(), others.tolist(), strict=True)
        ]
        given.append(each)

        def agrees(labelling, each=each):
            return is_allowed(labelling) and all(
                entry is None
                or (isinstance(entry, float) or tag in (entry if isinstance(entry, set) else {entry}))
                for tag, entry in zip(labelling, each, strict=True)
            )

        agreeing.append(every(len(tags), agrees))
    return given, agreeing


@pytest.mark.parametrize("seed", range(3))
def test_partly_tagged_sequences_are_trained_on_by_their_marginal_likelihood(seed):
    X, y = sentences(seed)
    given, agreeing = hidden(y, seed)
    model = ChainCRF(2.0, constraints="BIO", tol=1e-7).fit(X, given)
    assert np.isnan(model.duality_gap_)
    assert_stationary(model, lambda each: likelihood(each, X, agreeing))


def test_unknown_whole_numbers_are_nan_and_classes_remain_whole():
    X, y = sentences(0)
    codes = [np.searchsorted(NAMES, tags).astype(float) for tags in y]
    codes[0][0] = np.nan
    model = ChainCRF().fit(X, codes)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.classes_.dtype == np.int64


@pytest.mark.parametrize(
    "model",
    [
        ChainCRF(constraints="BIO"),
        ChainSVM(constraints="BIO", random_state=0),
        MaximumEntropyMarkovClassifier(),
        HiddenMarkovClassifier(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_known_tags_are_completed(model):
    X, y = sentences(2)
    known, _ = hidden(y, 7)
    model = model.fit(X, y)
    found = model.predict(X, known=known)
    energy = model.energy(X)
    chances = model.predict_proba(X, known=known) if hasattr(model, "predict_proba") else None
    for row, each in enumerate(known):
        size = len(each)
        labellings = [
            tags
            for tags in product(range(3), repeat=size)
            if all(
                entry is None
                or isinstance(entry, float)
                or NAMES[tag] in (entry if isinstance(entry, set) else {entry})
                for tag, entry in zip(tags, each, strict=True)
            )
        ]
        alone = ChainEnergy(energy.unary[row : row + 1, :size], _of_row(energy, row, size))
        values = alone.score(torch.tensor(labellings)[:, None])[:, 0]
        assert found[row].tolist() == NAMES[list(labellings[int(values.argmax())])].tolist()
        if chances is not None:
            weights = values.softmax(0)
            expected = torch.zeros(size, 3, dtype=torch.float64)
            for tags, weight in zip(labellings, weights, strict=True):
                expected[range(size), list(tags)] += weight
            np.testing.assert_allclose(chances[row], expected, atol=1e-9)
    decoded = model.decode(X, known=known).labels
    assert [NAMES[row[row >= 0]].tolist() for row in decoded.numpy()] == [tags.tolist() for tags in found]


def _of_row(energy, row, size):
    return energy.transition if energy.is_shared else energy.transition[row : row + 1, : size - 1]


def test_known_tags_are_refused_by_name():
    X, y = sentences(0)
    model = ChainCRF(constraints="BIO").fit(X, y)
    none = [[None] * len(tags) for tags in y]
    assert [tags.tolist() for tags in model.predict(X, known=none)] == [
        tags.tolist() for tags in model.predict(X)
    ]
    for change, message in (
        (["x"], r"known: expected one of \['B-a', 'I-a', 'O'\], got 'x'"),
        ([set()], "known: expected a tag in each set of tags"),
        (["I-a"], "known: expected tags that the constraints allow, .* the first in sequence 2"),
    ):
        known = [*none]
        known[2] = change + known[2][1:]
        with pytest.raises(ValueError, match=message):
            model.predict(X, known=known)
    with pytest.raises(ValueError, match="known: expected 12 arrays of labels"):
        model.predict(X, known=none[1:])
    with pytest.raises(ValueError, match="y: expected a tag in each set"):
        ChainCRF().fit(X, [[set()] * len(tags) for tags in y])
