"""Arguments of the commands for a trained model and a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmbm_torch.extras import uncollected
from lmbm_torch.files import CONFIG, MODEL, RULES
from lmbm_torch.persistence.trusted import SavedConfiguration

if TYPE_CHECKING:
    from lmbm_torch.constraints import Constraints
    from lmbm_torch.data import MultilabelData
    from lmbm_torch.data.features import Features
    from lmbm_torch.prediction.predictor import Predictor
    from lmbm_torch.prediction.trained import Decoder

UNKNOWN = ("warn", "refuse", "zeros")
PARTS = ("train", "test", "all")
MOST_PROBABLE, LEAST_HINGE = "most probable", "least hinge"


def file_parser(command: str, description: str | None, nargs: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for a command that applies a trained model to a file, without the option --output.

    Args:
        command: name of the command.
        nargs: see argparse; "?" for an optional file.
    """
    parser = argparse.ArgumentParser(
        prog=f"lmbm {command}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model",
        type=Path,
        help="a run directory of lmbm train, a checkpoint of a run, or a saved model or estimator",
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs=nargs,
        help="a file: .csv, .tsv, .arff, .npz, svmlight, columns of tokens or, only to predict, Parquet",
    )
    parser.add_argument(
        "--delimiter",
        help="character between the values of a CSV file; by default found from its first rows",
    )
    parser.add_argument(
        "--unknown",
        choices=UNKNOWN,
        help="effect of texts in a table that no training row had: a warning, an error, or no effect; by "
        "default as in training",
    )
    parser.add_argument(
        "--part", choices=PARTS, help="rows to use; by default the test part or, without one, all"
    )
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument(
        "--most-probable",
        dest="rule",
        action="store_const",
        const=MOST_PROBABLE,
        help="decode the most probable labels; by default `inference` of the run's configuration decodes",
    )
    rule.add_argument(
        "--least-hinge",
        dest="rule",
        action="store_const",
        const=LEAST_HINGE,
        help="decode the labels of least hinge loss instead of by `inference` of the run's configuration",
    )
    parser.add_argument(
        "--node-limit",
        dest="limit",
        type=_limit,
        default={},
        help="end the search for a row's labels after this number of nodes; `none` for no limit; by default "
        "the limit of the run or the estimator, or about one second",
    )
    parser.add_argument(
        "--rules",
        type=Path,
        help="a file of rules for all answers, one in each line (a -> not b); by default the run's rules",
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="name of your own class or function, such as mine.Encoder, that the files may import and call; "
        "repeat the option for several names. Without it, only parts of lmbm_torch and torch are called",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse options; without ``--force``, refuse an existing output unless input and output are folders."""
    options = with_rules_of_run(parser.parse_args(arguments))
    file = getattr(options, "file", None)
    is_of_folders = all(path is not None and path.is_dir() for path in (options.output, file))
    if options.output is not None and options.output.exists() and not (options.force or is_of_folders):
        parser.error(f"--output: {options.output} exists; use another name, or --force to overwrite it")
    return options


def check_files(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with an error that lists all named files that do not exist."""
    named = {"model": options.model, "file": options.file, "--rules": options.rules}
    absent = [name for name, path in named.items() if path is not None and not path.exists()]
    found = [f"{name}: expected a file or a folder, found none at {named[name]}" for name in absent]
    if options.model.is_dir() and not (options.model / MODEL).is_file():
        found.append(f"model: expected a run directory with {MODEL}, found none in {options.model}")
    if found:
        parser.error("; ".join(found))


def with_rules_of_run(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options; if no rules are named, add the rules in the run directory of the model."""
    folder = options.model if options.model.is_dir() else options.model.parent
    if options.rules is None and (folder / CONFIG).is_file() and (folder / RULES).is_file():
        options.rules = folder / RULES
    return options


def opened_model(options: argparse.Namespace) -> Predictor:
    """Return the model that the options name, with the option ``--unknown``; see :meth:`Predictor.load`.

    Raises:
        ValueError: ``--unknown`` is given for a model that was trained without a table.
    """
    with uncollected():
        from lmbm_torch.data.tables.schema import Schema
        from lmbm_torch.prediction.predictor import Predictor

        saved = Predictor.load(options.model, options.trust)
    if options.unknown is None:
        return saved
    if not isinstance(saved.schema, Schema):
        raise ValueError("--unknown: expected no value for a model trained without a table; leave it out")
    encoding = replace(saved.schema.encoding, unknown=options.unknown)
    return replace(saved, schema=replace(saved.schema, encoding=encoding))


def chosen(options: argparse.Namespace, saved: Predictor, top_k: int = 1) -> tuple[Predictor, Decoder | None]:
    """Return the model with the given rules, and the decoder; None for the decoder of the model.

    Raises:
        FileNotFoundError: the file of rules does not exist.
        ValueError: see :func:`_all_rules`; also if the decoder of the model takes no rules, no node limit, or
            no number of labellings.
    """
    if options.limit and options.rule is None:
        saved = saved.limited(**options.limit)
    if options.rules is not None:
        saved = saved.obeying(_all_rules(options.rules, saved))
    return saved, _decoder(options, saved, **({"top_k": top_k} if top_k > 1 else {}))


def _all_rules(file: Path, saved: Predictor) -> Constraints:
    """Return the rules of the model and of a file, without duplicates.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is no rule, a label of a rule is unknown, or rules contradict each other.
    """
    from lmbm_torch.constraints import Constraints, read

    given = Constraints.of(read(file), saved.label_names)
    own = () if saved.rules is None else saved.rules.rules
    known = {rule.text for rule in own}
    return Constraints((*own, *(rule for rule in given.rules if rule.text not in known)), given.names)


def binding(options: argparse.Namespace, saved: Predictor, features: Features) -> list[list[str]] | None:
    """Return as texts, for each row, the rules that change the answer; None for a model without rules."""
    from lmbm_torch.prediction import answers

    if saved.rules is None:
        return None
    free = saved.obeying(None)
    broken = answers.binding(free, features, saved.rules, _decoder(options, free))
    return [list(dict.fromkeys(texts)) for texts in broken]


def _decoder(options: argparse.Namespace, saved: Predictor, **settings: Any) -> Decoder | None:
    """Return the decoder that the options and settings name; None for the model's decoder without changes."""
    from lmbm_torch.inference import decode, decode_hinge

    if options.rule is None:
        return saved.deciding(**settings) if settings else None
    settings |= options.limit if saved.rules is None else {"constraints": saved.rules, **options.limit}
    if options.rule == LEAST_HINGE:
        return partial(decode_hinge, margin=saved.margin, **settings)
    return partial(decode, **settings)


def labelled_rows(options: argparse.Namespace, saved: Predictor) -> MultilabelData:
    """Read the rows of the file, or else of the run's data, which the configuration of the run describes.

    Raises:
        ValueError: there is neither a file nor a run; or a training file is given without ``--part``.
    """
    from lmbm_torch.prediction.reading import read

    configuration = options.model / CONFIG
    if not configuration.is_file():
        if options.file is None:
            raise ValueError(f"file: expected a file, got none, and {options.model} is no run directory")
        return read(options.file, saved, options.delimiter)
    configured = SavedConfiguration.read(options.model, options.trust)
    if options.file is None:
        # Imported here, because only data of a run need Lightning.
        from lmbm_torch.data.datamodule import MultilabelDataModule

        served = configured.make("data")
        if not isinstance(served, MultilabelDataModule):
            raise ValueError(
                f"data: expected label vectors, got {type(served).__name__} from {configuration}"
            )
        return served.data
    trained = configured.get("data", "train")
    if options.part is None and trained is not None and Path(trained).resolve() == options.file.resolve():
        raise ValueError(
            f"file: expected other rows than the training rows, got {options.file}, on which the run was "
            "trained; leave it out to use the held-out rows, or add --part all"
        )
    return read(options.file, saved, options.delimiter)


def title(options: argparse.Namespace, data: MultilabelData, num_rows: int) -> str:
    """Return a title for the measured rows: a file, or a part of the run's data."""
    if options.file is not None:
        return f"{options.model} on {num_rows} rows of {options.file.name}"
    part = options.part or ("test" if len(data.test) else "all")
    if part == "all":
        why = "" if options.part or len(data.test) else ": there is no test part"
        return f"{options.model} on all {num_rows} rows that it was trained on ({data.name}{why})"
    name = data.name if part != "test" else test_file(options) or data.name
    return f"{options.model} on the {num_rows} {part} rows of {name}"


def test_file(options: argparse.Namespace) -> str | None:
    """Return the name of the run's separate test file if test rows are measured, else None."""
    if options.file is not None or options.part not in (None, "test"):
        return None
    test = SavedConfiguration.read(options.model).get("data", "test")
    return None if test is None else Path(test).name


def _limit(text: str) -> dict[str, int | None]:
    if text == "none":
        return {"node_limit": None}
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, or the word none, got {text!r}")
    return {"node_limit": int(text)}
