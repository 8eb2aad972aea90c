"""Data sets: an immutable record of features and {0, 1} labels, read from files, services or the package.

Each name is imported at first use. All readers need scipy, and some need scikit-learn. Batches for training
are in :mod:`lmbm_torch.data.datamodule`, which needs Lightning and is therefore not imported here.
``read_uai`` and ``write_uai`` exchange energies with other solvers.
"""

from typing import TYPE_CHECKING

from lmbm_torch.extras import late, naming_extras

with naming_extras():
    # All modules of this package need scipy; if scipy is missing, the message tells which extra to install.
    import scipy as scipy

if TYPE_CHECKING:
    from lmbm_torch.data.dataset import MultilabelData
    from lmbm_torch.data.formats.arff import fetch_openml, read_arff
    from lmbm_torch.data.formats.npz import read_npz
    from lmbm_torch.data.formats.svmlight import read_svmlight
    from lmbm_torch.data.formats.table import read_table
    from lmbm_torch.data.formats.uai import read_evidence, read_uai, write_evidence, write_uai
    from lmbm_torch.data.mapped import open_mapped, write_mapped
    from lmbm_torch.data.named import load, load_conll2000, load_ocr_letters
    from lmbm_torch.data.sequences.conll import read_conll
    from lmbm_torch.data.sequences.records import SequenceData, digit_numbers
    from lmbm_torch.data.seven_segment import SevenSegment
    from lmbm_torch.data.splits import IterativeStratifiedKFold
    from lmbm_torch.data.tables.encoder import TableEncoder
    from lmbm_torch.data.tables.schema import Schema
    from lmbm_torch.data.tables.single import ImageEncoder, TextEncoder

__all__ = [
    "ImageEncoder",
    "IterativeStratifiedKFold",
    "MultilabelData",
    "Schema",
    "SequenceData",
    "SevenSegment",
    "TableEncoder",
    "TextEncoder",
    "digit_numbers",
    "fetch_openml",
    "load",
    "load_conll2000",
    "load_ocr_letters",
    "open_mapped",
    "read_arff",
    "read_conll",
    "read_evidence",
    "read_npz",
    "read_svmlight",
    "read_table",
    "read_uai",
    "write_evidence",
    "write_mapped",
    "write_uai",
]

__getattr__, __dir__ = late(__name__, __file__)
