"""Rules mean what their words say: compared with predicates over all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lmbm_torch.constraints import (
    Constraints,
    Rule,
    at_least,
    at_most,
    exactly,
    hierarchy,
    implies,
    parse,
    read,
)
from lmbm_torch.constraints.implications import implied_pairs
from lmbm_torch.constraints.rules import parents_by_path

NAMES = ("a", "b", "c", "d")
LABELLINGS = np.array(list(product([0, 1], repeat=4)))


def allowed(rules):
    """The labellings that break none of the rules."""
    return ~Constraints.of(rules, NAMES).violated(LABELLINGS).any(1)


def meant(predicate):
    return np.array([bool(predicate(*map(bool, row))) for row in LABELLINGS])


TEXTS = {
    "a -> not b": lambda a, b, c, d: not a or not b,
    "a and b -> c or d": lambda a, b, c, d: not (a and b) or c or d,
    "a <-> b": lambda a, b, c, d: a == b,
    "a <-> b <-> c": lambda a, b, c, d: (a == b) == c,
    "not (a and (b or not c))": lambda a, b, c, d: not (a and (b or not c)),
    "a -> b -> c": lambda a, b, c, d: not a or not b or c,
    "(a -> b) -> c": lambda a, b, c, d: (a and not b) or c,
    "not (a <-> (b or c))": lambda a, b, c, d: a != (b or c),
    "a or not a": lambda a, b, c, d: True,
    "at_most_one(a, b, c)": lambda a, b, c, d: a + b + c <= 1,
    "at_least_one(a, not d)": lambda a, b, c, d: a or not d,
    "exactly_one(a, b, not c)": lambda a, b, c, d: a + b + (not c) == 1,
    "at_least(2, a, b, not c)": lambda a, b, c, d: a + b + (not c) >= 2,
    "exactly(0, a, b)": lambda a, b, c, d: not a and not b,
    "at_most(4, a, b)": lambda a, b, c, d: True,
    "a and not b -> exactly_one(c, d)": lambda a, b, c, d: not (a and not b) or c + d == 1,
    "not d -> at_least(2, a, b, c)": lambda a, b, c, d: d or a + b + c >= 2,
    "2 a + b - c <= 1": lambda a, b, c, d: 2 * a + b - c <= 1,
    "a + 1 >= 2 * b + c": lambda a, b, c, d: a + 1 >= 2 * b + c,
    "a + b = c + d": lambda a, b, c, d: a + b == c + d,
    "-0.5 a + b == 0.5": lambda a, b, c, d: -0.5 * a + b == 0.5,
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_means_what_it_says(text):
    np.testing.assert_array_equal(allowed(text), meant(TEXTS[text]))
    assert all(rule.text == text for rule in parse(text))


OBJECTS = [
    (implies(["a", "not b"], ["c"]), "a and not b -> c"),
    (implies([0, ~1], [2]), "a and not b -> c"),
    (at_most(1, ["a", 1, "c"]), "at_most_one(a, b, c)"),
    (at_least(2, [0, 1, ~2]), "at_least(2, a, b, not c)"),
    (exactly(1, ["c", "d"], when=["a", "not b"]), "a and not b -> exactly_one(c, d)"),
    (hierarchy({"a": "b", "c": ["b", "d"]}), ("a -> b", "c -> b and d")),
    ([Rule({"a": 2, "b": 1, 2: -1}, 1, "weights")], "2 a + b - c <= 1"),
    (at_least(5, [0, 1], when=[2]), "not c"),
]


@pytest.mark.parametrize(("rules", "text"), OBJECTS, ids=[str(text) for _, text in OBJECTS])
def test_objects_and_text_are_the_same(rules, text):
    np.testing.assert_array_equal(allowed(rules), allowed(text))


def test_a_path_is_below_the_longest_path_above_it_that_is_a_label():
    names = ["01", "01/02", "01/02/03/04", "02/01", "03"]
    assert parents_by_path(names) == {"01/02": "01", "01/02/03/04": "01/02"}
    assert parents_by_path(["x.y", "x"], ".") == {"x.y": "x"}


def test_names_of_any_characters_stand_in_quotes():
    rules = Constraints.of(
        "'fall foliage' -> not \"open water\" and 01/02", ("fall foliage", "open water", "01/02")
    )
    assert rules.violated(np.array([[1, 0, 1], [1, 1, 1], [1, 0, 0], [0, 1, 0]])).any(1).tolist() == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a -> bb", "expected names of labels, got 'bb' in 'a -> bb'; did you mean 'b'?"),
        ("a and", "expected a label, got 'the end' in 'a and'"),
        ("a b", "expected the end, got 'b' in 'a b'"),
        ("a ? b", "expected names, words or signs, got '\\? b'"),
        ("a => b", "expected '->' in place of '=>' in 'a => b'"),
        ("a ==> b", "expected '->' in place of '==>'"),
        ("a <=> b", "expected '<->' in place of '<=>'"),
        ("a → b", "expected '->' in place of '→'"),
        ("a && b", "expected 'and' in place of '&&'"),
        ("a|b", "expected 'or' in place of '\\|'"),
        ("!a", "expected 'not' in place of '!'"),
        ("at_most(a, b)", "expected a number, got 'a'"),
        ("at_most(1.5, a, b)", "expected a number, got '1.5'"),
        ("(a or b -> c", r"expected '\)', got 'the end'"),
        ("a <= b <= c", "expected the end, got '<='"),
        ("(" * 5000 + "a" + ")" * 5000, "less nested"),
        ("a" + " -> a" * 3000, "less nested"),
        (" or ".join(f"(x{pair} and y{pair})" for pair in range(11)), "at most 1000 clauses"),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(ValueError, match=f"constraints: .*{message}"):
        Constraints.of(text, NAMES)


@pytest.mark.parametrize(
    ("rules", "names", "message"),
    [
        (at_most(0, [4]), NAMES, "expected labels 0 to 3, got 4"),
        ([Rule({"a": np.nan}, 0, "x")], NAMES, "expected finite weights and bounds"),
        ("a", ("a", "a"), "names: expected distinct names"),
        ("b", ("b", "not b"), "names: expected names that do not begin with 'not '"),
    ],
)
def test_other_rules_are_refused(rules, names, message):
    with pytest.raises(ValueError, match=message):
        Constraints.of(rules, names)


def test_sums_that_meet_their_bound_up_to_rounding_obey():
    rules = Constraints.of("0.1 a + 0.2 b <= 0.3", ("a", "b"))
    assert 0.1 + 0.2 > 0.3
    assert not rules.violated(np.ones((1, 2))).any()
    assert Constraints.of("0.1 a + 0.2 b <= 0.2999999", ("a", "b")).violated(np.ones((1, 2))).all()


def test_a_sign_of_a_comment_within_quotes_is_part_of_a_name(tmp_path):
    path = tmp_path / "some.rules"
    path.write_text("# it's a comment\n'a # b' -> \"c#\"  # 'so'\nd -> e # isn't it\n\n#\n", encoding="utf-8")
    rules = read(path)
    assert [rule.text for rule in rules] == ["'a # b' -> \"c#\"", "d -> e"]
    assert rules[0].weights == parse("'a # b' -> 'c#'")[0].weights


def test_at_most_as_many_as_there_are_says_nothing():
    assert at_most(2, ["a", "b"]) == at_least(0, ["a", "b"]) == ()


def test_what_follows_by_several_rules_is_found_the_nearest_first():
    rules = Constraints.of(["a -> b", "b -> c", "c -> d", "a -> e", "e -> d"], tuple("abcde"))
    pairs = implied_pairs(rules.matrix, rules.bounds)
    assert {*pairs} == {((0, 1), (2, 0)), ((1, 1), (3, 0)), ((0, 1), (3, 0))}
    longer = Constraints.of(["a -> b", "b -> c", "c -> d", "d -> e"], tuple("abcde"))
    found = implied_pairs(longer.matrix, longer.bounds)
    assert [other[0] - one[0] for one, other in found] == [2, 2, 2, 3, 3, 4]


def test_a_contradiction_names_the_rules_that_make_it_and_no_other():
    rules = ["a or d", "a -> b", "b -> not a", "exactly_one(a, c)", "d", "not c", "b or c or d"]
    with pytest.raises(ValueError, match="contradiction") as refused:
        Constraints.of(rules, NAMES)
    named = str(refused.value).partition("contradiction: ")[2].split("; ")
    assert set(named) <= set(rules)
    assert not meant(lambda *labels: all(TRUE[rule](*labels) for rule in named)).any()
    for left_out in named:
        rest = [rule for rule in named if rule != left_out]
        assert meant(lambda *labels, rest=rest: all(TRUE[rule](*labels) for rule in rest)).any()


TRUE = {
    "a or d": lambda a, b, c, d: a or d,
    "a -> b": lambda a, b, c, d: not a or b,
    "b -> not a": lambda a, b, c, d: not b or not a,
    "exactly_one(a, c)": lambda a, b, c, d: a + c == 1,
    "d": lambda a, b, c, d: d,
    "not c": lambda a, b, c, d: not c,
    "b or c or d": lambda a, b, c, d: b or c or d,
}
