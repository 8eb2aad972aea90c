"""The commands ``lmbm predict``, ``evaluate`` and ``report`` for estimators of sequences."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import islice

import numpy as np

from lmbm_torch.cli.showing import Certificates, counted, print_line, print_metrics, print_rows
from lmbm_torch.data import SequenceData
from lmbm_torch.data.sequences.conll import TEST, TRAIN, Tokens, read_columns, write_columns
from lmbm_torch.files import CONFIG, write_metrics
from lmbm_torch.persistence.trusted import SavedConfiguration
from lmbm_torch.prediction import answers, tables
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.reports import sequences as reports

SHOWN = 20
SHOWN_LINES = 5
FOLDS = {"train": TRAIN, "test": TEST}
# Options that are only for models of label vectors, as typed in the shell.
OF_LABELS = {
    "rule": "--most-probable, --least-hinge",
    "limit": "--node-limit",
    "rules": "--rules",
    "delimiter": "--delimiter",
    "card": "--card",
}


def predict(options: Namespace, saved: Predictor) -> None:
    """Read and decode sequences, and write or print the tags; .csv files get a row for each token.

    Raises:
        ValueError, OSError: the input is unreadable, the output not writable, or an option is for label
            vectors.
    """
    _check_options(options)
    tokens = read_columns(options.file)
    data = saved.schema.data(tokens, options.file.stem)
    certificates = Certificates()
    decoder = saved.deciding(top_k=options.top_k) if options.top_k > 1 else None
    predictions = answers.predict(saved, data.within(TRAIN).features, decoder)
    found = certificates.counting(predictions)
    mode = "w" if options.force else "x"
    if options.output is None:
        names = tables.token_columns(saved, tokens, options.top_k)
        rows = list(islice(tables.token_rows(saved, tokens, found), SHOWN + 1))
        left_out = (
            "objective",
            "bound",
            "bound_of_unlisted",
            "exact",
            *(["rank"] if options.top_k == 1 else []),
        )
        kept = [place for place, name in enumerate(names) if name not in left_out]
        shown = [[row[place] for place in kept] for row in rows[:SHOWN]]
        names = [names[place] for place in kept]
        print_rows(names, shown, names, is_all=len(rows) <= SHOWN)
    elif options.output.suffix == ".csv":
        names = tables.token_columns(saved, tokens, options.top_k)
        tables.write_table(options.output, names, tables.token_rows(saved, tokens, found), mode)
    elif options.top_k > 1:
        raise ValueError(f"--top-k: expected 1 unless --output ends in .csv, got {options.top_k}")
    else:
        write_columns(options.output, tokens, [[tag] for tag in tables.tags(saved, found)], mode)
    for sentence in _unknown_values(saved, tokens):
        print_line(sentence)
    if options.output is not None:
        of_all = counted(certificates.rows, "sequence")
        print_line(f"{of_all}, {certificates.proven} proven optimal, by dynamic programming")


def evaluate(options: Namespace, saved: Predictor) -> None:
    """Read and decode sequences, and print the metrics.

    Raises:
        ValueError, OSError: see :func:`predict`.
    """
    _check_options(options)
    data, chosen, said = _labelled(options, saved)
    metrics = answers.evaluate(saved, data, chosen)
    if options.output is not None:
        write_metrics(options.output, metrics)
    for sentence in said:
        print_line(sentence)
    print_metrics(_title(options, data, chosen), metrics)


def report(options: Namespace, saved: Predictor, write: Callable[..., None]) -> None:
    """Read and decode sequences, compare the tags, and write a page.

    Raises:
        ValueError, OSError: see :func:`predict`.
    """
    _check_options(options)
    data, chosen, said = _labelled(options, saved)
    found = reports.findings(saved, data, chosen)
    page = reports.report(_title(options, data, chosen), saved, found, said)
    write(page, options.output, "w" if options.force else "x")
    for sentence in said:
        print_line(sentence)
    print_line(f"wrote {options.output}")


def described(data: SequenceData) -> str:
    """Return a sentence that describes the sequences of a data set."""
    lengths = np.diff(data.start)
    parts = []
    for fold, words in ((TRAIN, "to train"), (TEST, "to test")):
        if (own := data.fold == fold).any():
            parts.append(f"{own.sum()} sequences of {lengths[own].sum()} tokens {words}")
    of_model = data.label_names if data.schema is None else data.schema.label_names
    return f"{data.name}: {', '.join(parts)}; {len(data.feature_names)} features, {len(of_model)} tags"


def _check_options(options: Namespace) -> None:
    """Raise ValueError if an option is only for label vectors."""
    asked = [words for name, words in OF_LABELS.items() if getattr(options, name, None)]
    if asked:
        raise ValueError(f"{', '.join(asked)}: expected no such option for a model of sequences")


def _labelled(options: Namespace, saved: Predictor) -> tuple[SequenceData, np.ndarray, list[str]]:
    """Return sequences of the file or the run's data, a mask of the chosen sequences, and a description."""
    if options.file is not None:
        if options.part not in (None, "all"):
            raise ValueError(f"--part: expected all, because a file has no parts, got {options.part}")
        tokens = read_columns(options.file)
        if not saved.schema.has_tags(tokens):
            raise ValueError(f"file: expected a column of tags to compare, got none in {options.file}")
        data = saved.schema.data(tokens, options.file.stem)
        said = [*_unknown_tags(saved, tokens), *_unknown_values(saved, tokens)]
        return data, data.fold == TRAIN, said
    if not (options.model / CONFIG).is_file():
        raise ValueError(f"file: expected a file, got none, and {options.model} is no run directory")
    data = SavedConfiguration.read(options.model, options.trust).make("data")
    if not isinstance(data, SequenceData):
        raise ValueError(f"data: expected sequences, got {type(data).__name__} from {options.model / CONFIG}")
    part = options.part or ("test" if data.num_folds > 1 else "all")
    chosen = np.full(data.num_sequences, True) if part == "all" else data.fold == FOLDS[part]
    if not chosen.any():
        raise ValueError(f"--part: expected a part with sequences, got {part}, which is empty in {data.name}")
    return data, chosen, [described(data)]


def _title(options: Namespace, data: SequenceData, chosen: np.ndarray) -> str:
    count = int(chosen.sum())
    if options.file is not None:
        return f"{options.model} on {count} sequences of {options.file.name}"
    part = options.part or ("test" if data.num_folds > 1 else "all")
    return f"{options.model} on the {count} {part} sequences of {data.name}"


def _unknown_values(saved: Predictor, tokens: Tokens) -> list[str]:
    found = [f"{count} of {name}" for name, count in saved.schema.unknown(tokens).items() if count]
    words = f"values that training has not seen, of {len(tokens.rows)} tokens: {', '.join(found)}"
    return [words] if found else []


def _unknown_tags(saved: Predictor, tokens: Tokens) -> list[str]:
    found = []
    for tag, lines in saved.schema.unknown_tags(tokens).items():
        first = ", ".join(map(str, lines[:SHOWN_LINES])) + ", …" * (len(lines) > SHOWN_LINES)
        found.append(f"{tag}: training has not seen this tag, so that no answer has it; in line {first}")
    return found
