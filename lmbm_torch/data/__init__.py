"""Data sets: an immutable record of features and {0, 1} labels, from files, services or the package itself.

The readers need scipy; scikit-learn and liac-arff are imported by the ones that use them. Batches for
training are in :mod:`lmbm_torch.data.datamodule`, which needs Lightning and is therefore not imported here.
``read_uai`` and ``write_uai`` exchange models, energies themselves, with other solvers.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lmbm_torch.data.dataset import MultilabelData, join
    from lmbm_torch.data.formats.arff import by_meka_option, by_mulan_xml, by_name, first, last, read_arff
    from lmbm_torch.data.formats.npz import read_npz
    from lmbm_torch.data.formats.openml import fetch_openml
    from lmbm_torch.data.formats.svmlight import read_svmlight
    from lmbm_torch.data.formats.uai import read_evidence, read_uai, write_evidence, write_uai
    from lmbm_torch.data.mapped.arrays import MappedData, open_mapped, write_mapped
    from lmbm_torch.data.multiclass import MULTICLASS_SETS, MulticlassData, load_multiclass
    from lmbm_torch.data.named import NAMED_SETS, data_folder, load
    from lmbm_torch.data.sequences.conll import read_conll
    from lmbm_torch.data.sequences.faq import read_faq
    from lmbm_torch.data.sequences.named import load_conll2000, load_ocr_letters
    from lmbm_torch.data.sequences.records import SequenceData, Sequences, digit_numbers
    from lmbm_torch.data.seven_segment import SEGMENTS, SevenSegment, digit_codes
    from lmbm_torch.data.stratification import IterativeStratifiedKFold
    from lmbm_torch.data.tables.reading import new_rows, read_table
    from lmbm_torch.data.tables.schema import Schema

__all__ = [
    "MULTICLASS_SETS",
    "NAMED_SETS",
    "SEGMENTS",
    "IterativeStratifiedKFold",
    "MappedData",
    "MulticlassData",
    "MultilabelData",
    "Schema",
    "SequenceData",
    "Sequences",
    "SevenSegment",
    "by_meka_option",
    "by_mulan_xml",
    "by_name",
    "data_folder",
    "digit_codes",
    "digit_numbers",
    "fetch_openml",
    "first",
    "join",
    "last",
    "load",
    "load_conll2000",
    "load_multiclass",
    "load_ocr_letters",
    "new_rows",
    "open_mapped",
    "read_arff",
    "read_conll",
    "read_evidence",
    "read_faq",
    "read_npz",
    "read_svmlight",
    "read_table",
    "read_uai",
    "write_evidence",
    "write_mapped",
    "write_uai",
]
