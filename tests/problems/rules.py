"""Random rules over labels."""

from __future__ import annotations

import numpy as np

from lmbm_torch.constraints import Constraints, Rule, at_least, at_most, exactly, implies


def random_rules(generator: np.random.Generator, num_labels: int) -> Constraints | None:
    """One to four rules of any kind, or None where they contradict each other."""
    rules: list[Rule] = []
    for _ in range(generator.integers(1, 5)):
        count = int(generator.integers(2, min(num_labels, 4) + 1))
        chosen = generator.choice(num_labels, count, replace=False)
        literals = [int(label) if generator.random() < 0.5 else ~int(label) for label in chosen]
        match generator.integers(5):
            case 0:
                rules += at_most(int(generator.integers(0, count)), literals)
            case 1:
                rules += at_least(int(generator.integers(1, count + 1)), literals)
            case 2:
                rules += exactly(int(generator.integers(0, count)), literals[1:], when=literals[:1])
            case 3:
                rules += implies(literals[:1], literals[1:])
            case _:
                weights = generator.normal(size=count)
                of_labels = dict(zip(chosen.tolist(), weights.tolist(), strict=True))
                rules.append(
                    Rule(of_labels, float(np.abs(weights).sum() * generator.uniform(-0.3, 0.7)), "sum")
                )
    try:
        return Constraints.of(rules, [f"label_{label}" for label in range(num_labels)])
    except ValueError:
        return None
