"""Rules as text.

- ``"urban -> not beach"``, ``"a and b -> c or d"``, ``"a <-> b"``, ``"not (a and b)"``: formulas;
- ``"at_most_one(sunrise, noon, sunset)"``, ``"exactly_one(...)"``, ``"at_least(2, a, not b, c)"``, also
  after conditions: ``"day and outdoors -> exactly_one(morning, noon, evening)"``;
- ``"2 a + b - c <= 1"``, with <=, >= or =; a label has the value 0 or 1.

A name needs quotes if it has other characters than letters, digits, ``_``, ``.`` and ``/``, or equals a word
above: ``"'fall foliage' -> not 'open water'"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from os import PathLike
from typing import NamedTuple

from lmbm_torch.constraints.rules import NOT, Rule, at_least, at_most, exactly
from lmbm_torch.files import reading
from lmbm_torch.incoming import UNREADABLE, lines

__all__ = ["parse", "read"]

COUNTS: dict[str, Callable[..., tuple[Rule, ...]]] = {
    "at_most": at_most,
    "at_least": at_least,
    "exactly": exactly,
}
COMPARISONS = ("<=", ">=", "=", "==")
MAX_CLAUSES = 1000
TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w/]))|(?P<name>[^\W\d][\w./]*|\d[\w./]*)|(?P<quoted>"[^"]*"|'[^']*')"""
    r"""|(?P<sign><->|->|<=|>=|==?|[-+*(),]))"""
)

# Signs of programming languages and of logic; MEANT gives the sign or word with the same meaning in rules.
FOREIGN = re.compile(r"\s*(<=>|==?>|[→⇒↔⇔∧∨¬≤≥!~]|&&?|\|\|?)")
MEANT = {"<=>": "<->", "↔": "<->", "⇔": "<->", "=>": "->", "==>": "->", "→": "->", "⇒": "->"}
MEANT |= {"&": "and", "&&": "and", "∧": "and", "|": "or", "||": "or", "∨": "or"}
MEANT |= {"!": "not", "~": "not", "¬": "not", "≤": "<=", "≥": ">="}
# Matches a quoted text, in which # is kept, or a comment from # to the end of the line.
COMMENT = re.compile(r"""("[^"]*"|'[^']*')|\#.*""")


class Token(NamedTuple):
    """A part of a rule's text; the kind is name, number, sign, word, count or end."""

    kind: str
    text: str


def parse(text: str) -> tuple[Rule, ...]:
    """Parse a line of text, and return the rules.

    Raises:
        ValueError: the text is not a rule (the message tells where), or a formula has more than a thousand
            clauses or hundreds of nested formulas.

    Examples:
        >>> from lmbm_torch.constraints import parse
        >>> [rule.text for rule in parse("urban -> not beach")]
        ['urban -> not beach']
    """
    tokens = _tokens(text)
    if any(token.kind == "sign" and token.text in COMPARISONS for token in tokens):
        return _Reader(text, tokens).inequality()
    try:
        return _Reader(text, tokens).statement()
    except RecursionError:
        raise ValueError(f"constraints: expected a less nested formula, got {text[:40]!r}…") from None


def read(path: str | PathLike) -> tuple[Rule, ...]:
    """Return the rules of a text file with a rule on each line; skip empty lines and comments after ``#``.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is not a rule; the message names the line.

    Examples:
        >>> import pathlib, tempfile
        >>> from lmbm_torch.constraints import read
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rules.txt")
        ...     _ = path.write_text("a -> b  # a comment")
        ...     print([rule.text for rule in read(path)])
        ['a -> b']
    """
    rules: list[Rule] = []
    with reading(path, *UNREADABLE, argument="rules") as file, lines(file) as found:
        for line in found:
            text = COMMENT.sub(lambda part: part[1] or "", line.strip()).strip()
            try:
                rules += parse(text) if text else ()
            except ValueError as error:
                raise ValueError(f"line {found.number}: {error}") from error
    return tuple(rules)


def _tokens(text: str) -> list[Token]:
    found, place = [], 0
    while text[place:].strip():
        if foreign := FOREIGN.match(text, place):
            sign = foreign[1]
            raise ValueError(f"constraints: expected {MEANT[sign]!r} in place of {sign!r} in {text!r}")
        match = TOKEN.match(text, place)
        if match is None:
            raise ValueError(
                f"constraints: expected names, words or signs, got {text[place:].strip()!r} in {text!r}"
            )
        kind = str(match.lastgroup)
        word = match.group(kind)
        found.append(Token("name", word[1:-1]) if kind == "quoted" else Token(_kind(kind, word), word))
        place = match.end()
    return found


def _kind(kind: str, word: str) -> str:
    if kind != "name":
        return kind
    is_count = word in COUNTS or word.removesuffix("_one") in COUNTS
    return "count" if is_count else "word" if word in ("and", "or", "not") else "name"


# A formula in conjunctive normal form: a set of clauses, each a set of literals joined by "or".
Clauses = frozenset[frozenset[str]]


@dataclass
class _Reader:
    """A recursive-descent parser of a rule's tokens."""

    text: str
    tokens: list[Token]
    place: int = 0

    def statement(self) -> tuple[Rule, ...]:
        """Read a formula, or a count such as ``at_most_one(…)``, also after conditions."""
        if self._peek().kind == "count":
            return self._whole(self._count(()))
        arrow = next((place for place in range(1, len(self.tokens) - 1) if self._is_count_after(place)), None)
        if arrow is not None:
            conditions = self._conditions(arrow)
            return self._whole(self._count(conditions))
        holds, _ = self._equivalence()
        rules = [
            Rule(rule.weights, rule.bound, self.text)
            for clause in sorted(map(sorted, holds))
            for rule in at_least(1, clause)
        ]
        return self._whole(tuple(rules))

    def inequality(self) -> tuple[Rule, ...]:
        """Read an inequality: terms, a comparison, and terms."""
        left, below = self._terms()
        sign = self._take("sign", COMPARISONS)
        right, above = self._terms()
        weights: dict[str | int, float] = {**left}
        for name, weight in right.items():
            weights[name] = weights.get(name, 0.0) - weight
        bound = above - below
        rules = []
        if sign != ">=":
            rules.append(Rule(weights, bound, self.text))
        if sign != "<=":
            rules.append(Rule({name: -weight for name, weight in weights.items()}, -bound, self.text))
        return self._whole(tuple(rules))

    def _is_count_after(self, arrow: int) -> bool:
        return self.tokens[arrow] == Token("sign", "->") and self.tokens[arrow + 1].kind == "count"

    def _conditions(self, arrow: int) -> list[str]:
        """Read literals, joined by "and", up to an arrow."""
        found = [self._literal()]
        while self.place < arrow:
            self._take("word", ("and",))
            found.append(self._literal())
        self._take("sign", ("->",))
        return found

    def _count(self, when: list[str] | tuple[str, ...]) -> tuple[Rule, ...]:
        word = self._take("count")
        self._take("sign", ("(",))
        if word.endswith("_one"):
            word, count = word.removesuffix("_one"), 1
        else:
            count = int(self._take("number", whole=True))
            self._take("sign", (",",))
        literals = [self._literal()]
        while self._peek() == Token("sign", ","):
            self._take("sign")
            literals.append(self._literal())
        self._take("sign", (")",))
        return tuple(
            Rule(rule.weights, rule.bound, self.text) for rule in COUNTS[word](count, literals, when=when)
        )

    def _literal(self) -> str:
        if self._peek() == Token("word", "not"):
            self._take("word")
            return NOT + self._take("name")
        return self._take("name")

    def _equivalence(self) -> tuple[Clauses, Clauses]:
        """Read a formula; return the clauses, and the clauses of the negation."""
        holds, fails = self._implication()
        while self._peek() == Token("sign", "<->"):
            self._take("sign")
            right, wrong = self._implication()
            both = self._any(fails, right) | self._any(wrong, holds)
            fails = self._any(holds, right) | self._any(fails, wrong)
            holds = both
        return holds, fails

    def _implication(self) -> tuple[Clauses, Clauses]:
        holds, fails = self._alternatives()
        if self._peek() == Token("sign", "->"):
            self._take("sign")
            right, wrong = self._implication()
            return self._any(fails, right), holds | wrong
        return holds, fails

    def _alternatives(self) -> tuple[Clauses, Clauses]:
        holds, fails = self._conjunction()
        while self._peek() == Token("word", "or"):
            self._take("word")
            right, wrong = self._conjunction()
            holds, fails = self._any(holds, right), fails | wrong
        return holds, fails

    def _conjunction(self) -> tuple[Clauses, Clauses]:
        holds, fails = self._negation()
        while self._peek() == Token("word", "and"):
            self._take("word")
            right, wrong = self._negation()
            holds, fails = holds | right, self._any(fails, wrong)
        return holds, fails

    def _negation(self) -> tuple[Clauses, Clauses]:
        if self._peek() == Token("word", "not"):
            self._take("word")
            holds, fails = self._negation()
            return fails, holds
        if self._peek() == Token("sign", "("):
            self._take("sign")
            found = self._equivalence()
            self._take("sign", (")",))
            return found
        name = self._take("name")
        return frozenset([frozenset([name])]), frozenset([frozenset([NOT + name])])

    def _any(self, first: Clauses, second: Clauses) -> Clauses:
        """Return the clauses of the formula "first or second"; leave out always true clauses."""
        if len(first) * len(second) > MAX_CLAUSES:
            raise ValueError(
                f"constraints: expected at most {MAX_CLAUSES} clauses, got more in {self.text!r}"
            )
        joined = (one | other for one, other in product(first, second))
        return frozenset(
            clause for clause in joined if not any(NOT + literal in clause for literal in clause)
        )

    def _terms(self) -> tuple[dict[str, float], float]:
        """Read weights of labels, and a constant."""
        weights: dict[str, float] = {}
        constant, sign = 0.0, 1.0
        if self._peek() in (Token("sign", "-"), Token("sign", "+")):
            sign = -1.0 if self._take("sign") == "-" else 1.0
        while True:
            factor = sign
            is_number = self._peek().kind == "number"
            if is_number:
                factor *= float(self._take("number"))
                if self._peek() == Token("sign", "*"):
                    self._take("sign")
                    is_number = False
            if self._peek().kind == "name" or not is_number:
                name = self._take("name")
                weights[name] = weights.get(name, 0.0) + factor
            else:
                constant += factor
            if self._peek() not in (Token("sign", "-"), Token("sign", "+")):
                return weights, constant
            sign = -1.0 if self._take("sign") == "-" else 1.0

    def _peek(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else Token("end", "the end")

    def _take(self, kind: str, texts: tuple[str, ...] = (), *, whole: bool = False) -> str:
        token = self._peek()
        if token.kind != kind or (texts and token.text not in texts) or (whole and "." in token.text):
            wanted = " or ".join(map(repr, texts)) if texts else {"name": "a label"}.get(kind, f"a {kind}")
            raise ValueError(f"constraints: expected {wanted}, got {token.text!r} in {self.text!r}")
        self.place += 1
        return token.text

    def _whole(self, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        if self.place < len(self.tokens):
            raise ValueError(f"constraints: expected the end, got {self._peek().text!r} in {self.text!r}")
        return rules
