"""Check certificates without the library: ``python scripts/certificate_checker FILE``.

docs/certificates.md describes the format. A proof is worth as much as the problem that the proof is about:
--energy and --digest tie a certificate to the problem of the reader. Text of a file is printed escaped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from certificate_checker import decodings, training
from certificate_checker.fields import array, require

MOST_SAID = 300  # characters of a refusal
# What the reader's own file may name, and how many axes one example's have; of rules, all examples' together.
OWN = {"unary": 1, "pair": 2, "weight": 1, "constant": 0, "known": 1}
OWN_ALONE = {"ordering", "cliques", "margin", "matrix", "bounds"}
# Claim → its check of (problem, proof).
CHECKS = {"decoding": decodings.check, "training": training.check}


def require_own(problems, own):
    """Require that a file's problems are the reader's; a table that the reader does not give is zero.

    Without ``unary`` and ``pair`` the energy is one of cliques; with ``ordering`` or asymmetric couplings, a
    belief network. Without ``margin`` the decoding is the MAP decoding. ``cliques`` are rows of labels, short
    rows filled with -1; ``known`` is 0, 1, or -1 or NaN where a label is free.
    """
    strange = sorted({*own} - {*OWN} - OWN_ALONE)
    named = ", ".join([*OWN, *sorted(OWN_ALONE)])
    require(not strange, f"--energy: expected {named}, got {', '.join(strange)}")
    own = own | ({"known": np.nan_to_num(own["known"], nan=-1)} if "known" in own else {})
    pair = own.get("pair", np.zeros((1, 1)))
    is_network = "ordering" in own or not np.array_equal(pair, pair.swapaxes(-1, -2))
    kind = "clique" if not {"unary", "pair"} & {*own} else "directed" if is_network else "pairwise"
    cliques = [
        [label for label in row if label >= 0] for row in own.get("cliques", np.zeros((0, 0))).tolist()
    ]
    require(
        not cliques or "ordering" in own or kind == "clique", "--energy: expected ordering beside cliques"
    )
    ends = np.cumsum([0, *(problem["known"]["shape"][0] for problem in problems)])
    for problem, start, end in zip(problems, ends, ends[1:], strict=False):
        energy, rules = problem["energy"], problem.get("rules", {})
        require(energy["kind"] == kind, f"the certificate is of another kind of energy than {kind}")
        same = {"margin": np.array_equal(own.get("margin"), problem.get("margin"))}
        same["objective"] = ("margin" in own) == (problem["objective"] == "hinge")
        same["ordering"] = "ordering" not in own or np.array_equal(own["ordering"], energy["ordering"])
        same["cliques"] = cliques == energy.get("cliques", []) or not (cliques or "weight" in own)
        for name, axes in OWN.items():
            mine, its = own.get(name), (problem if name == "known" else energy).get(name)
            if mine is not None and mine.ndim > axes:
                require(
                    len(mine) == ends[-1], f"the certificate is not about {len(mine)} examples, as {name} is"
                )
                mine = mine[start:end]
            same[name] = equal(mine, its, axes, -1 if name == "known" else 0)
        same |= {name: equal(own.get(name), rules.get(name), None, None) for name in ("matrix", "bounds")}
        for name, is_same in same.items():
            require(is_same, f"the certificate has another {name}")


def equal(mine, field, axes, neutral):
    """Return whether two tables agree, shared or per example; None stands for a neutral or empty table."""
    its = None if field is None else array(field, field["dtype"], *[None] * len(field["shape"]))
    if mine is None or its is None:
        return all(table is None or (table == neutral).all() for table in (mine, its))
    if axes is None:
        return np.array_equal(mine, its)
    mine, its = (table if table.ndim > axes else table[None] for table in (mine, its))
    return mine.shape[1:] == its.shape[1:] and (mine == its).all()


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Check a certificate; exits with 0 if it holds.")
    parser.add_argument("file")
    parser.add_argument("--digest", help="of the problem that the certificate must be about")
    parser.add_argument("--energy", help="a .npz file with all of the problem, such as unary, pair and known")
    options = parser.parse_args(arguments)
    records, found, names = [], {"decoding": [], "training": []}, []
    try:
        with open(options.file, encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                require(record["format"] == "lmbm certificate 1", "another format")
                text = json.dumps(record["problem"], sort_keys=True, separators=(",", ":"))
                names.append(hashlib.sha256(text.encode()).hexdigest())
                check = CHECKS[record["claim"]]
                found[record["claim"]].append(check(record["problem"], record["proof"]))
                records.append(record["problem"])
        require(len(names) > 0, "nothing is proven")
        name = hashlib.sha256("".join(names).encode()).hexdigest()
        require(options.digest in (None, name), f"the certificate is about another problem, {name}")
        if options.energy:
            require(not found["training"], "a training has no energy to be compared")
            with np.load(options.energy) as own:
                require_own(records, dict(own))
    except Exception as error:  # whatever goes wrong, nothing has been proven
        # Escaped, lest text of the file moves the cursor, wipes a line, or cannot be printed.
        said = str(error) or type(error).__name__
        print("rejected:", said.encode("unicode_escape").decode()[:MOST_SAID])
        return 1
    for batch, largest, almost in found["decoding"]:
        print(f"{batch} decodings proven" + f", {almost} to within {float(largest):.1e}" * (almost > 0))
    for batch, gap in found["training"]:
        print(f"training on {batch} instances proven to within {gap:.1e} of its optimum")
    print(f"digest {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
