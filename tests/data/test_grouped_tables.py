"""Rows of one group of a table, such as a patient's, are held out together or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.data.datamodule import serve_table
from lmbm_torch.data.tables.reading import read_table


@pytest.fixture
def visits(tmp_path):
    """Thirty patients of four visits, named by texts; the first patient's first label is missing once."""
    random = np.random.default_rng(0)
    lines = ["patient,pulse,sick,tired"]
    for visit in range(120):
        sick = "" if visit == 0 else int(random.random() < 0.4)
        lines.append(f"p{visit % 30},{random.random():.3f},{sick},{int(random.random() < 0.3)}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    return path


def patients(rows):
    return {int(row) % 30 for row in rows}


def test_no_group_is_in_two_parts(visits):
    served = serve_table(
        visits, ["sick", "tired"], groups="patient", test_fraction=0.3, validation_fraction=0.3, seed=1
    )
    parts = [patients(rows) for rows in (served.train_rows, served.validation_rows, served.data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30
    assert all(parts)
    # Nothing could be measured on a label that is missing.
    assert 0 in parts[0]
    assert served.data.feature_names == ("pulse",)


def test_without_groups_a_patient_is_in_several(visits):
    data = read_table(visits, ["sick", "tired"], ignore="patient", test_fraction=0.3, seed=1)
    assert patients(data.train) & patients(data.test)


def test_groups_are_no_feature_beside_a_test_table_and_other_ignored_columns(visits):
    data = read_table(visits, ["sick"], test=visits, groups="patient", ignore=["tired"])
    assert data.feature_names == ("pulse",)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("doctor", "groups: expected a column, found none named 'doctor'"),
        ("sick", "groups: expected a group"),
    ],
)
def test_what_names_no_groups_is_refused(visits, groups, message):
    with pytest.raises(ValueError, match=message):
        read_table(visits, ["tired"], groups=groups, test_fraction=0.3)
