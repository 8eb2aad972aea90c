"""Genuine certificates are accepted, forged ones are not, and what is accepted is true."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from forgeries import (
    CHECK,
    OF_PROBLEMS,
    OF_PROOFS,
    cliques,
    directed,
    pairwise,
    problem_of,
    read,
    replaced,
)

from lmbm_torch import certificates, inference
from lmbm_torch.certificates.lines import field
from lmbm_torch.constraints import Constraints
from lmbm_torch.data import load
from lmbm_torch.energies import ChainEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import lp_relaxation
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems

BATCH, LABELS = 4, 5
RULES = Constraints.of(["exactly_one(a, b, c)", "d -> e"], list("abcde"))


def kinds(seed: int):
    """An energy of each kind."""
    generator = torch.Generator().manual_seed(seed)
    return [
        directed(BATCH, LABELS, generator),
        directed(BATCH, LABELS, generator, torch.float32),
        pairwise(BATCH, LABELS, generator),
        pairwise(BATCH, LABELS, generator, shared=False),
        cliques(BATCH, LABELS, generator),
    ]


def known_some(energy, seed: int) -> torch.Tensor:
    """One label of each example given, the others free."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.full((energy.batch_size, energy.num_labels), torch.nan, dtype=energy.dtype)
    known[:, seed % energy.num_labels] = torch.randint(2, (energy.batch_size,), generator=generator).to(known)
    return known


def written(path, decoding, energy, **problem):
    """The lines of the certificate as records, and the problem's name."""
    name = certificates.write(decoding, path, energy, **problem, mode="w")
    return [json.loads(line) for line in path.read_text().splitlines()], name


def verdict(path, record, *arguments: str) -> int:
    path.write_text(json.dumps(record) + "\n")
    return CHECK.main([str(path), *arguments])


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("rule", ["likely", "hinge", "several", "known", "rules"])
def test_what_decoders_found_is_accepted(tmp_path, kind, rule, capsys):
    energy = kinds(kind)[kind]
    problem = {"known": known_some(energy, 1)} if rule == "known" else {}
    problem |= {"constraints": RULES} if rule == "rules" else {}
    top_k = 3 if rule == "several" else 1
    if rule in ("hinge", "known"):
        decoding, margin = inference.decode_hinge(energy, 0.8, top_k=top_k, **problem), {"margin": 0.8}
    else:
        decoding, margin = inference.decode(energy, top_k=top_k, **problem), {}
    path = tmp_path / "proof.jsonl"
    (record,), name = written(path, decoding, energy, **problem, **margin)
    assert CHECK.main([str(path), "--digest", name]) == 0
    assert name == certificates.digest(energy, **problem, **margin)
    assert capsys.readouterr().out.startswith(f"{BATCH} decodings proven\n")
    found = read(record["proof"]["values"]).reshape(decoding.objective.shape)
    assert found == pytest.approx(decoding.objective.double().numpy(), rel=1e-5, abs=1e-5)


def test_every_decoder_hands_over_the_same_certificate(tmp_path):
    generator = torch.Generator().manual_seed(3)
    half = torch.rand(6, 6, generator=generator).triu(1)
    energy = PairwiseEnergy(torch.randn(3, 6, generator=generator), half + half.mT)
    texts = set()
    for routine in (exact.decode, undirected_branch_and_bound.decode, lp_relaxation.decode):
        path = tmp_path / "proof.jsonl"
        decoding = routine(energy)
        if routine is lp_relaxation.decode:
            decoding = exact.decode(energy) if not decoding.status.exact.all() else decoding
        written(path, decoding, energy)
        texts.add(path.read_text())
    assert len(texts) == 1


def forged(seed: int):
    """A genuine certificate and problem for each of the forgeries to begin with."""
    energy = kinds(seed)[seed % 4]
    known = known_some(energy, seed)
    if seed % 3:
        return (
            inference.decode_hinge(energy, known=known, top_k=1 + seed % 2),
            energy,
            {"known": known, "margin": 1.0},
        )
    return inference.decode(energy, known=known, top_k=1 + seed % 2), energy, {"known": known}


def refusals(path, seeds: range) -> int:
    """How many forgeries were tried; all are to be refused."""
    count = 0
    for seed in seeds:
        (record,), name = written(path, *forged(seed)[:2], **forged(seed)[2])
        assert verdict(path, record, "--digest", name) == 0
        random = np.random.default_rng(seed)
        for what, forge in (OF_PROOFS | OF_PROBLEMS).items():
            arguments = ("--digest", name) if what in OF_PROBLEMS else ()
            assert verdict(path, forge(record, random), *arguments) == 1, (what, seed)
            count += 1
    return count


def test_forged_certificates_are_refused(tmp_path):
    assert refusals(tmp_path / "forged.jsonl", range(4)) == 4 * 16


@pytest.mark.slow
def test_a_thousand_forged_certificates_are_refused(tmp_path):
    assert refusals(tmp_path / "forged.jsonl", range(100, 163)) >= 1000


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("name", "rules"), [("scene", 2), ("yeast", 2), ("rcv1_subset1", 1)])
def test_test_parts_are_proven(tmp_path, data_folder, name, rules):
    assert data_folder
    data = load(name)
    model = LMSBNClassifier(C=0.1, random_state=0).fit(data.features[data.train], data.labels[data.train])
    energy = model.energy(data.features[data.test])
    for decode, problem in [(branch_and_bound.decode_hinge, {"margin": 1.0}), (branch_and_bound.decode, {})][
        :rules
    ]:
        own = certificates.write(decode(energy), tmp_path / "proof.jsonl", energy, **problem, mode="w")
        assert CHECK.main([str(tmp_path / "proof.jsonl"), "--digest", own]) == 0


def is_true(record) -> bool:
    """Whether the answers of a hinge certificate are the best, by enumeration of the record's own problem."""
    problem = problem_of(record)
    batch, width = problem.known.shape
    spins = 2 * ((np.arange(2**width)[:, None] >> np.arange(width)) & 1).astype(np.int8) - 1
    for row in range(batch):
        allowed = spins[((problem.known[row] == 0) | (spins == problem.known[row])).all(1)]
        losses = problem.losses(np.full(len(allowed), row), allowed).mean(0)
        answers = read(record["proof"]["labels"])[row]
        own = problem.losses(np.full(len(answers), row), 2 * answers - 1).mean(0)
        if own[-1] > np.sort(losses)[len(answers) - 1] + 1e-9:
            return False
    return True


def test_what_is_accepted_of_a_changed_problem_is_true(tmp_path):
    path, accepted = tmp_path / "changed.jsonl", 0
    for seed in range(4):
        (record,), _ = written(path, *forged(seed)[:2], **forged(seed)[2])
        random = np.random.default_rng(seed)
        for forge in [*OF_PROBLEMS.values()] * 5:
            other = forge(record, random)
            if verdict(path, other) == 0:
                accepted += 1
                assert is_true(other)
    assert accepted


def test_ties_are_proven(tmp_path, capsys):
    couplings = torch.tensor([[0.0, 1, 1, -1], [1, 0, -1, 1], [1, -1, 0, 1], [-1, 1, 1, 0]])
    for scale in (1.0, 0.1):
        energy = PairwiseEnergy(torch.zeros(2, 4), scale * couplings)
        for decoding, problem in (
            (exact.decode(energy), {}),
            (exact.decode_hinge(energy), {"margin": 1.0}),
            (exact.decode_hinge(energy, 0.1), {"margin": 0.1}),
        ):
            written(tmp_path / "ties.jsonl", decoding, energy, **problem)
            assert CHECK.main([str(tmp_path / "ties.jsonl")]) == 0
            assert "within" not in capsys.readouterr().out
    network = DirectedEnergy(torch.zeros(2, 4), torch.zeros(4, 4), torch.arange(4))
    written(tmp_path / "ties.jsonl", branch_and_bound.decode(network), network)
    assert CHECK.main([str(tmp_path / "ties.jsonl")]) == 0


def test_labellings_that_another_beats_are_not_written(tmp_path):
    energy = kinds(0)[0]
    decoding = exact.decode_hinge(energy)
    worse = torch.cat([1 - decoding.labels[:1], decoding.labels[1:]])
    lie = type(decoding)(worse, decoding.objective, decoding.bound, decoding.status)
    with pytest.raises(ValueError, match="decoding: expected the best labelling of example 0"):
        certificates.write(lie, tmp_path / "lie.jsonl", energy, margin=1.0)
    assert not (tmp_path / "lie.jsonl").exists()


def test_strange_arguments_are_refused(tmp_path):
    energy, path = directed(40, 6, torch.Generator().manual_seed(0)), tmp_path / "proof.jsonl"
    limited = branch_and_bound.decode_hinge(energy, node_limit=1)
    with pytest.raises(ValueError, match=r"decoding: expected status\.exact for every example, got \d+"):
        certificates.write(limited, path, energy, margin=1.0)
    decoding = branch_and_bound.decode_hinge(energy)
    with pytest.raises(ValueError, match="node_limit: expected at most 50 nodes in the proofs"):
        certificates.write(decoding, path, energy, margin=1.0, node_limit=50)
    with pytest.raises(ValueError, match="margin: expected"):
        certificates.write(decoding, path, energy, margin=-1.0)
    with pytest.raises(TypeError, match="energy: expected a DirectedEnergy, PairwiseEnergy or CliqueEnergy"):
        certificates.digest(ChainEnergy(torch.zeros(1, 2, 2), torch.zeros(2, 2), torch.tensor([2])))
    with pytest.raises(ValueError, match=r"decoding.labels"):
        certificates.write(decoding, path, energy.select(slice(0, 3)), margin=1.0)
    path.write_text("")
    with pytest.raises(FileExistsError):
        certificates.write(decoding, path, energy, margin=1.0)


def said(field: str, value):
    """Something else in a field of the certificate's JSON."""

    def change(record):
        *parts, last = field.split(".")
        inside = record
        for part in parts:
            inside = inside[part]
        inside[last] = value

    return change


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (0, said("format", "lmbm certificate 2"), "another format"),
        (0, said("claim", "weather"), "weather"),
        (0, said("problem.known.dtype", "int16"), "expected int8, got int16"),
        (0, said("problem.objective", "score"), "directed: a strange objective"),
        (2, said("problem.objective", "log_prob"), "pairwise: a strange objective"),
        (0, said("problem.margin", -1.0), "margin: expected one above 0"),
        (0, said("problem.margin", float("inf")), "margin: expected one above 0"),
        (0, said("problem.energy.ordering", [0, 0, 1, 2, 3]), "the ordering is no permutation"),
        (0, said("problem.energy.ordering", [4, 3, 2, 1, 0]), "a parent comes after its child"),
        (0, said("problem.energy.cliques", [[0, 1, 9], [0, 1, 2]]), "a strange clique"),
        (0, said("problem.energy.cliques", [[0, 1, 1], [0, 1, 2]]), "a strange clique"),
        (0, said("problem.energy.cliques", [[0, 1, 2], []]), "a strange clique"),
    ],
)
def test_malformed_certificates_are_refused_for_what_is_wrong(tmp_path, capsys, kind, change, message):
    energy = kinds(9)[kind]
    (record,), _ = written(tmp_path / "a.jsonl", exact.decode_hinge(energy), energy, margin=1.0)
    change(record)
    capsys.readouterr()
    assert verdict(tmp_path / "a.jsonl", record) == 1
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "x", "[" * 10**5, '{"format": "lmbm certificate 1"}'])
def test_what_is_no_certificate_is_refused(tmp_path, text, capsys):
    path = tmp_path / "none.jsonl"
    path.write_text(text)
    assert CHECK.main([str(path)]) == 1
    assert capsys.readouterr().out.startswith("rejected: ")


@pytest.mark.parametrize(
    ("kind", "name", "values", "message"),
    [
        (0, "values", np.full((BATCH, 1), np.nan), "expected finite numbers"),
        (0, "values", np.zeros(BATCH), "expected finite numbers"),
        (0, "tree", np.zeros(0), "the tree is too short"),
        (0, "tree", np.full(4, 9), "the tree has a strange entry"),
        (0, "tree", np.full(4, -5), "the tree has a strange entry"),
        (0, "labels", np.full((BATCH, 1, LABELS), 2), "labels: expected 0 or 1"),
        (0, "labels", np.zeros((BATCH, 0, LABELS)), ""),
        (0, "known", np.full((BATCH, LABELS), 3), "known: expected 0, 1 or -1"),
        (0, "unary", np.full((BATCH, LABELS), np.nan), "expected finite numbers"),
        (0, "unary", np.full((BATCH, LABELS), 1e200), "enormous weights"),
        (0, "pair", np.ones((LABELS, LABELS)), "a parent comes after its child"),
        (2, "pair", np.ones((LABELS, LABELS)), "a label is coupled with itself"),
        (2, "pair", np.tri(LABELS, k=-1), "couplings are not symmetric"),
    ],
)
def test_strange_arrays_are_refused(tmp_path, capsys, kind, name, values, message):
    energy = kinds(0)[kind]
    (record,), _ = written(tmp_path / "a.jsonl", exact.decode_hinge(energy), energy, margin=1.0)
    capsys.readouterr()
    assert verdict(tmp_path / "a.jsonl", replaced(record, name, values)) == 1
    assert message in capsys.readouterr().out


def own_arrays(energy, **others) -> dict[str, np.ndarray]:
    """What a reader knows of an energy, by the names of ``--energy``."""
    names = {name: name for name in ("unary", "weight", "constant", "ordering")}
    names |= {"pairwise": "pair", "parents": "pair", "clique_weight": "weight"}
    found = {new: getattr(energy, old).numpy() for old, new in names.items() if hasattr(energy, old)}
    if getattr(energy, "cliques", ()):
        most = max(map(len, energy.cliques))
        found["cliques"] = np.array([[*clique, *[-1] * (most - len(clique))] for clique in energy.cliques])
    return found | {name: np.asarray(value) for name, value in others.items()}


def against(path, own: dict[str, np.ndarray]) -> int:
    """The checker's verdict of a certificate of the reader's own problem."""
    np.savez(path.with_suffix(".npz"), **own)
    return CHECK.main([str(path), "--energy", str(path.with_suffix(".npz"))])


def test_the_readers_own_energy_is_compared(tmp_path, capsys):
    energy, path = kinds(0)[0], tmp_path / "a.jsonl"
    written(path, exact.decode_hinge(energy), energy, margin=1.0)
    own = own_arrays(energy, margin=1.0)
    assert against(path, own) == 0
    assert against(path, own | {"unary": own["unary"] + 1e-12}) == 1
    assert "the certificate has another unary" in capsys.readouterr().out
    assert against(path, own | {"weights": own["pair"]}) == 1
    assert "--energy: expected unary, pair, weight" in capsys.readouterr().out
    assert against(path, {"unary": own["unary"], "cliques": own["cliques"]}) == 1
    assert "--energy: expected ordering beside cliques" in capsys.readouterr().out


@pytest.mark.parametrize("kind", range(5))
def test_a_certificate_of_more_than_a_block_is_the_readers(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("lmbm_torch.certificates.decodings.BLOCK", 3)
    energy, path = kinds(kind)[kind], tmp_path / "a.jsonl"
    known = known_some(energy, 1)
    problem = {"known": known, "constraints": RULES}
    records, _ = written(path, inference.decode(energy, **problem), energy, **problem)
    assert len(records) == 2
    own = own_arrays(energy, known=known, matrix=RULES.matrix, bounds=RULES.bounds)
    assert against(path, own) == 0
    path.write_text(json.dumps(records[0]) + "\n")
    assert against(path, own) == 1
    for name, table in own.items():
        if table.ndim and len(table) == BATCH and name not in ("matrix", "bounds"):
            path.write_text("".join(json.dumps(record) + "\n" for record in records[::-1]))
            assert against(path, own) == 1, name


@pytest.mark.parametrize("kind", range(5))
def test_what_the_reader_does_not_name_is_nothing(tmp_path, kind, capsys):
    """A file with the reader's fields and couplings, but labels, cliques, rules or a margin of its own."""
    energy, path = kinds(kind)[kind], tmp_path / "a.jsonl"
    problem = {"known": known_some(energy, 1), "constraints": RULES, "margin": 0.8}
    decoding = inference.decode_hinge(energy, 0.8, known=problem["known"], constraints=RULES)
    written(path, decoding, energy, **problem)
    own = own_arrays(energy, known=problem["known"], margin=0.8, matrix=RULES.matrix, bounds=RULES.bounds)
    assert against(path, own) == 0
    needless = {"ordering"} | ({"constant"} if isinstance(energy, CliqueEnergy) else set())
    for name in own.keys() - needless:
        assert against(path, {key: table for key, table in own.items() if key != name}) == 1, name
    capsys.readouterr()
    for name in own.keys() - {"cliques", "ordering"}:
        assert against(path, own | {name: own[name] * 2 + 1}) == 1, name
    assert against(path, own | {"margin": np.array(0.9)}) == 1
    assert "the certificate has another margin" in capsys.readouterr().out


def test_what_is_neutral_need_not_be_named(tmp_path):
    energy, path = kinds(2)[2], tmp_path / "a.jsonl"
    plain = PairwiseEnergy(energy.unary, energy.pairwise)
    written(path, exact.decode(plain), plain)
    own = own_arrays(plain)
    assert against(path, {name: own[name] for name in ("unary", "pair")}) == 0
    full = {"known": np.full((BATCH, LABELS), -1), "matrix": np.zeros((0, LABELS)), "bounds": np.zeros(0)}
    assert against(path, own | full) == 0
    shared = own["pair"].repeat(BATCH).reshape(LABELS, LABELS, BATCH).transpose(2, 0, 1)
    assert against(path, own | {"pair": shared}) == 0


@pytest.mark.parametrize("kind", ["directed", "clique"])
def test_an_energy_of_another_kind_is_not_the_readers(tmp_path, kind, capsys):
    """Where couplings are zero, fields and cliques alone say nothing of what they are of."""
    random, path = torch.Generator().manual_seed(0), tmp_path / "a.jsonl"
    unary = torch.randn(BATCH, LABELS, generator=random, dtype=torch.float64)
    energy = cliques(BATCH, LABELS, random)
    if kind == "directed":
        energy = DirectedEnergy(unary, torch.zeros(LABELS, LABELS, dtype=torch.float64), torch.arange(LABELS))
    (record,), _ = written(path, exact.decode_hinge(energy), energy, margin=1.0)
    if kind == "clique":
        unary = torch.zeros_like(unary)
    assert against(path, {"unary": unary.numpy(), "margin": np.array(1.0)}) == 1
    assert "the certificate is of another kind of energy than pairwise" in capsys.readouterr().out
    assert record["problem"]["energy"]["kind"] == kind


def test_a_training_has_no_energy_to_be_compared(tmp_path, capsys):
    features = np.random.default_rng(0).normal(size=(6, 2))
    problem = LabelProblems.from_labels(features, np.tile([0.0, 1.0], (6, 1)))
    certificates.write_training(problem, dual_coordinate.init(problem), tmp_path / "a.jsonl")
    assert against(tmp_path / "a.jsonl", {"unary": np.zeros((1, 1))}) == 1
    assert "a training has no energy to be compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("claim", "\x1b[2K\x1b[1Adecodings proven\n"),
        ("claim", "\ud800"),
        ("problem.known.dtype", "\u202eevil\r\x07\u2028\x9b2J"),
        ("problem.energy.kind", "\x00\x7f\U000e0041"),
        ("problem.energy.ordering", "\ufeff\x1b]0;title\x07"),
        ("proof.labels.dtype", "\x1b" * 10**4),
    ],
)
def test_text_of_a_file_is_said_in_plain_letters(tmp_path, capsys, where, text):
    energy = kinds(0)[0]
    (record,), _ = written(tmp_path / "a.jsonl", exact.decode_hinge(energy), energy, margin=1.0)
    said(where, text)(record)
    capsys.readouterr()
    assert verdict(tmp_path / "a.jsonl", record) == 1
    out, error = capsys.readouterr()
    assert out.startswith("rejected: ")
    assert error == ""
    assert len(out) < 400
    assert all(" " <= letter <= "~" for letter in out.removesuffix("\n"))


def zeros(*shape: int, dtype=np.float64) -> dict:
    """A field of zeros."""
    return field(np.zeros(shape, dtype), dtype)


def of_cliques(labels: int, examples: int = 1) -> dict:
    """A certificate of an energy without cliques, whose one labelling is closed by its bound."""
    energy = {"kind": "clique", "cliques": [], "weight": zeros(0), "constant": zeros(examples)}
    known = field(np.full((examples, labels), -1), np.int8)
    problem = {"energy": energy, "objective": "score", "known": known}
    proof = {"labels": zeros(examples, 1, labels, dtype=np.int8), "values": zeros(examples, 1)}
    proof |= {"tree": field(np.full(examples, -1), np.int16), "bounds": zeros(examples)}
    return {"format": "lmbm certificate 1", "claim": "decoding", "problem": problem, "proof": proof}


def many_nodes() -> dict:
    """A tree of many nodes over many labels."""
    record = of_cliques(2000)
    record["proof"]["tree"] = field(np.full(200_000, 0), np.int16)
    return record


def many_answers() -> dict:
    """Leaves that are all to be compared with all answers."""
    record = of_cliques(16)
    answers = ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)[None]
    levels = [np.full(2**depth, depth) for depth in range(16)] + [np.full(2**16, -3)]
    record["proof"] |= {"labels": field(answers[:, :300], np.int8), "values": zeros(1, 300)}
    record["proof"] |= {"tree": field(np.concatenate(levels), np.int16), "bounds": zeros(2**16)}
    return record


@pytest.mark.parametrize(
    "record",
    [of_cliques(30_000), of_cliques(0, 10**6), of_cliques(10**6, 0), many_nodes(), many_answers()],
    ids=["labels", "no labels", "no examples", "nodes", "answers"],
)
def test_small_files_get_little_memory(tmp_path, record, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    tracemalloc.start()
    try:
        assert CHECK.main([str(path)]) == 1
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
    assert capsys.readouterr().out.startswith("rejected: ")


def test_many_leaves_are_held_to_many_rules_in_parts():
    rules = {"matrix": field(np.ones((1000, 12))), "bounds": field(np.full(1000, 11.0))}
    spins = np.ones((2**12, 12), np.int8)
    spins[1:, 0] = -1
    tracemalloc.start()
    try:
        broken, kept = CHECK.decodings.excess(rules, spins)
        assert tracemalloc.get_traced_memory()[1] < 2**24  # all at once takes 62 MiB
    finally:
        tracemalloc.stop()
    assert (broken > 0).tolist() == [True] + [False] * (2**12 - 1)
    assert (kept > 0).all()  # by rounding, where the sum meets the bound


def test_several_answers_are_different_and_sorted(tmp_path, capsys):
    energy = kinds(0)[0]
    (record,), _ = written(tmp_path / "a.jsonl", exact.decode_hinge(energy, top_k=2), energy, margin=1.0)
    labels, values = read(record["proof"]["labels"]), read(record["proof"]["values"])
    for order, message in (([1, 0], "answers are not sorted"), ([0, 0], "an answer comes twice")):
        other = replaced(replaced(record, "labels", labels[:, order]), "values", values[:, order])
        assert verdict(tmp_path / "a.jsonl", other) == 1
        assert message in capsys.readouterr().out


def test_answers_obey_the_rules(tmp_path, capsys):
    energy = kinds(0)[0]
    decoding = inference.decode_hinge(energy, constraints=RULES)
    (record,), _ = written(tmp_path / "a.jsonl", decoding, energy, margin=1.0, constraints=RULES)
    free = exact.decode_hinge(energy)
    (other,), _ = written(tmp_path / "a.jsonl", free, energy, margin=1.0)
    other["problem"]["rules"] = record["problem"]["rules"]
    assert RULES.violated(free.labels.numpy()).any()
    assert verdict(tmp_path / "a.jsonl", other) == 1
    assert "an answer breaks a rule" in capsys.readouterr().out


def test_leaves_are_closed_by_rules_that_they_break(tmp_path, capsys):
    energy = kinds(0)[0]
    decoding = inference.decode_hinge(energy, constraints=RULES)
    (record,), _ = written(tmp_path / "a.jsonl", decoding, energy, margin=1.0, constraints=RULES)
    nodes, bounds = read(record["proof"]["tree"]), read(record["proof"]["bounds"])
    leaf = np.flatnonzero(nodes[nodes < 0] == -1)[0]
    nodes[np.flatnonzero(nodes < 0)[leaf]] = -2
    other = replaced(record, "tree", nodes)
    bounds[leaf] = np.inf
    for forged in (other, replaced(other, "bounds", bounds)):
        assert verdict(tmp_path / "a.jsonl", forged) == 1
    assert "a leaf obeys the rules" in capsys.readouterr().out
    right = np.flatnonzero(nodes[nodes < 0] == -2)
    bounds = read(record["proof"]["bounds"])
    bounds[right[right != leaf][0]] = 9.0
    assert verdict(tmp_path / "a.jsonl", replaced(record, "bounds", bounds)) == 1


def test_trees_branch_on_labels_that_are_free(tmp_path, capsys):
    energy = kinds(0)[0]
    known = known_some(energy, 1)
    decoding = exact.decode_hinge(energy, known=known)
    (record,), _ = written(tmp_path / "a.jsonl", decoding, energy, margin=1.0, known=known)
    nodes = read(record["proof"]["tree"])
    nodes[np.flatnonzero(nodes >= 0)[0]] = 1
    assert verdict(tmp_path / "a.jsonl", replaced(record, "tree", nodes)) == 1
    assert "the tree branches on a label that is decided" in capsys.readouterr().out
