"""Sequences of tokens as dictionaries, elastic nets, and columns of data frames in sequence classifiers."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

from lmbm_torch import load
from lmbm_torch.estimators import ChainCRF, ChainSVM, HiddenMarkovClassifier, MaximumEntropyMarkovClassifier
from lmbm_torch.estimators.chains.token_features import TokenFeatures, attributes

WORDS = [["the", "dog", "runs"], ["a", "cat", "sleeps", "well"], ["dogs", "run"], ["the", "cat"]]
TAGS = [["D", "N", "V"], ["D", "N", "V", "A"], ["N", "V"], ["D", "N"]]


def tokens(words):
    return [
        {
            "word": word,
            "length": len(word),
            "last": {"two": word[-2:], "s": word.endswith("s")},
            "parts": [*word],
        }
        for word in words
    ]


SENTENCES = [tokens(words) for words in WORDS]


def test_attributes_are_named_as_by_python_crfsuite():
    token = {"word": "Oslo", "upper": True, "n": 2.5, "next": {"word": "is"}, "bag": ["a", "b"]}
    assert dict(attributes(token)) == {
        "word:Oslo": 1, "upper": 1, "n": 2.5, "next:word:is": 1, "bag:a": 1, "bag:b": 1,
    }  # fmt: skip
    assert dict(attributes("Oslo")) == {"Oslo": 1}
    assert dict(attributes(["b", "a"])) == {"b": 1, "a": 1}


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ({"w": None}, "feature 'w', got NoneType"),
        ({"w": np.nan}, "finite number for the feature 'w'"),
        ({"w": [1]}, "list of features, got int"),
    ],
)
def test_odd_attributes_are_refused_by_name(token, message):
    with pytest.raises(ValueError, match=message):
        ChainCRF().fit([[token]], [["a"]])


ODD = [
    {"a:b": "c", "a": {"b": ["c", "d:e"], "f": True, "g": False}, "n": 0, "m": 2.5, 3: "x", "u:": ""},
    {"a": "b:c", "a:b:c": True, "3": np.str_("x"), "t": ("p", "q"), "s": {"z", "y"}, 3: True, "": "e"},
    {"a": {"b": {"d": "e"}}, "u": ":", ":e": 1.0},
]


@pytest.mark.parametrize("held", [(), ("a:b:c", "3:x", "t:q")])
def test_rows_hold_the_attributes_of_odd_tokens(held):
    tokens = [*ODD, "a:b:c", ["m", "new"], ("n", "3"), {"new": "x", "a": {"new": ["b"]}}]
    names = sorted({name for token in ODD for name, _ in attributes(token)} - {*held})
    features = TokenFeatures(tuple(reversed(names)))
    for _ in range(2):
        rows, _, unknown = features.rows([tokens, tokens[:1]])
        expected, left_out = np.zeros((len(tokens) + 1, len(names))), 0
        for row, token in enumerate([*tokens, tokens[0]]):
            for name, value in attributes(token):
                if name in names:
                    expected[row, features.names.index(name)] += value
                else:
                    left_out += value != 0
        np.testing.assert_array_equal(rows.toarray(), expected)
        assert unknown == left_out
        features = pickle.loads(pickle.dumps(features))


@pytest.mark.parametrize("odd", [["a", 1], ["a", ["b"]], [None]])
@pytest.mark.parametrize("within", [lambda odd: odd, lambda odd: {"w": odd}, lambda odd: {"v": {"w": odd}}])
def test_odd_texts_are_refused_at_prediction(odd, within):
    model = ChainCRF().fit(SENTENCES, TAGS)
    with pytest.raises(ValueError, match="expected texts in a list of features"):
        model.predict([[{"word": "the"}, within(odd)]])


@pytest.mark.parametrize("kind", [ChainCRF, ChainSVM, MaximumEntropyMarkovClassifier])
def test_tokens_equal_the_matrices_of_their_features(kind):
    settings = {"random_state": 0} if kind is ChainSVM else {}
    model = kind(**settings).fit(SENTENCES, TAGS)
    features = TokenFeatures.of(SENTENCES, 1)
    rows, start, unknown = features.rows(SENTENCES)
    matrices = [rows[first:end] for first, end in itertools.pairwise(start)]
    assert unknown == 0
    by_matrix = kind(**settings).fit(matrices, TAGS)
    np.testing.assert_array_equal(model.coef_, by_matrix.coef_)
    assert [*model.feature_names_in_] == [*features.names]
    assert model.predict(SENTENCES) == [row.tolist() for row in by_matrix.predict(matrices)]


@pytest.mark.parametrize("emission", ["gaussian", "multinomial"])
def test_a_hidden_markov_model_takes_tokens(emission):
    model = HiddenMarkovClassifier(emission).fit(SENTENCES, TAGS)
    rows, start, _ = TokenFeatures.of(SENTENCES, 1).rows(SENTENCES)
    matrices = [rows.toarray()[first:end] for first, end in itertools.pairwise(start)]
    by_matrix = HiddenMarkovClassifier(emission).fit(matrices, TAGS)
    assert model.predict(SENTENCES) == [row.tolist() for row in by_matrix.predict(matrices)]


def test_lists_of_texts_and_texts_are_tokens():
    by_lists = ChainCRF().fit([[[word] for word in words] for words in WORDS], TAGS)
    by_words = ChainCRF().fit(WORDS, TAGS)
    np.testing.assert_array_equal(by_lists.coef_, by_words.coef_)
    assert ("dog", "N") in by_words.state_features_


def test_answers_about_tokens_have_the_form_of_sklearn_crfsuite():
    model = ChainCRF(c2=0.1).fit(SENTENCES, TAGS)
    assert model.predict(SENTENCES) == TAGS
    assert all(type(tag) is str for tag in model.predict(SENTENCES)[0])
    assert all(type(tag) is str for _, tag in model.state_features_)
    found, proba = model.predict_marginals(SENTENCES), model.predict_proba(SENTENCES)
    assert [len(each) for each in found] == [len(each) for each in TAGS]
    assert found[1][2] == dict(zip(model.classes_.tolist(), proba[1][2].tolist(), strict=True))


@pytest.mark.parametrize("c1", [0.0, 0.1])
def test_only_transitions_between_neighbours_are_learned(c1):
    model = ChainCRF(c1=c1, c2=0.1, all_possible_transitions=False, tol=1e-7, max_iter=5000).fit(WORDS, TAGS)
    assert {*model.transition_features_} == {("D", "N"), ("N", "V"), ("V", "A")}
    best, seen = objective(model, WORDS, TAGS, c1, 0.1), model.transition_ != 0
    generator, kept = np.random.default_rng(0), model.transition_
    for _ in range(5):
        model.transition_ = kept + 1e-3 * generator.normal(size=(4, 4)) * seen
        assert objective(model, WORDS, TAGS, c1, 0.1) > best


@pytest.mark.parametrize(
    ("settings", "y", "message"),
    [
        ({"kernel": "rbf"}, TAGS, "expected True with a kernel"),
        ({}, [["D", "N", None], *TAGS[1:]], "expected True with partly known classes"),
    ],
)
def test_transitions_of_neighbours_alone_are_refused(settings, y, message):
    with pytest.raises(ValueError, match=f"all_possible_transitions: {message}"):
        ChainCRF(all_possible_transitions=False, **settings).fit(WORDS, y)


def test_rare_features_are_left_out():
    model = ChainCRF(min_freq=2).fit(WORDS, TAGS)
    assert {*model.feature_names_in_} == {"the", "cat"}
    with pytest.raises(ValueError, match="min_freq"):
        ChainCRF(min_freq=9).fit(WORDS, TAGS)


def test_unknown_features_are_counted():
    model = ChainCRF().fit(WORDS, TAGS)
    with pytest.warns(UserWarning, match="2 features of tokens were unknown"):
        (found,) = model.predict([["the", "elephant", "trumpets"]])
    assert len(found) == 3


def test_arrays_and_tokens_are_not_mixed():
    with pytest.raises(ValueError, match="lists of tokens as in fit"):
        ChainCRF().fit(WORDS, TAGS).predict([np.zeros((2, 3))])
    with pytest.raises(ValueError, match=r"arrays .* as in fit"):
        ChainCRF().fit([np.eye(2)], [["a", "b"]]).predict(WORDS)


def test_a_vocabulary_is_saved(tmp_path):
    model = ChainCRF().fit(SENTENCES, TAGS)
    model.save(tmp_path / "tags.safetensors")
    found = load(tmp_path / "tags.safetensors")
    assert found.token_features_ == model.token_features_
    assert found.predict(SENTENCES) == model.predict(SENTENCES)


def objective(model, X, y, c1, c2):
    """CRFsuite's objective, by enumeration over all tag sequences."""
    rows, start, _ = model.token_features_.rows(X)
    matrices = [rows[first:end] for first, end in itertools.pairwise(start)]
    total, classes = 0.0, len(model.classes_)
    for matrix, tags in zip(matrices, y, strict=True):
        scores = matrix @ model.coef_.T + model.intercept_
        truth = [int(np.flatnonzero(model.classes_ == tag)[0]) for tag in tags]
        every = [
            sum(scores[t, tag] for t, tag in enumerate(each))
            + sum(model.transition_[a, b] for a, b in itertools.pairwise(each))
            for each in itertools.product(range(classes), repeat=len(tags))
        ]
        own = sum(scores[t, tag] for t, tag in enumerate(truth)) + sum(
            model.transition_[a, b] for a, b in itertools.pairwise(truth)
        )
        total += np.logaddexp.reduce(every) - own
    weights = np.concatenate([model.coef_.ravel(), model.intercept_, model.transition_.ravel()])
    return total + c1 * np.abs(weights).sum() + c2 * (weights**2).sum()


@pytest.mark.parametrize(("c1", "c2"), [(0.0, 0.5), (0.1, 0.5), (0.3, 0.05)])
def test_the_elastic_net_is_at_its_optimum(c1, c2):
    model = ChainCRF(c1=c1, c2=c2, tol=1e-7, max_iter=5000).fit(WORDS, TAGS)
    best = objective(model, WORDS, TAGS, c1, c2)
    assert model.objective_ == pytest.approx(best / (2 * c2), rel=1e-6)
    generator = np.random.default_rng(0)
    for name in ("coef_", "intercept_", "transition_"):
        kept = getattr(model, name)
        for size in (1e-3, 1e-2):
            setattr(model, name, kept + size * generator.normal(size=kept.shape))
            assert objective(model, WORDS, TAGS, c1, c2) > best
        setattr(model, name, kept)


def test_absolute_values_make_weights_zero():
    dense, sparse = ChainCRF(c2=0.1).fit(WORDS, TAGS), ChainCRF(c1=0.5, c2=0.1).fit(WORDS, TAGS)
    assert np.count_nonzero(sparse.coef_) < 0.7 * np.count_nonzero(dense.coef_)
    assert len(sparse.state_features_) == np.count_nonzero(sparse.coef_)
    assert all(weight != 0 for weight in sparse.transition_features_.values())


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("kind", [ChainCRF, ChainSVM, MaximumEntropyMarkovClassifier, HiddenMarkovClassifier])
def test_columns_of_data_frames_are_put_in_order(kind, frame):
    generator = np.random.default_rng(0)
    X = [frame({"b": generator.normal(size=5), "a": 9.0 + np.arange(5)}) for _ in range(4)]
    y = [(np.asarray(each["b"]) > 0).astype(int) for each in X]
    model = kind().fit(X, y)
    assert [*model.feature_names_in_] == ["b", "a"]
    turned = model.predict([each[["a", "b"]] for each in X])
    assert [row.tolist() for row in turned] == [row.tolist() for row in model.predict(X)]
    with pytest.raises(ValueError, match=r"columns \['b', 'a'\], got \['b', 'c'\]"):
        model.predict(
            [
                each.rename({"a": "c"}) if frame is pl.DataFrame else each.rename(columns={"a": "c"})
                for each in X
            ]
        )
