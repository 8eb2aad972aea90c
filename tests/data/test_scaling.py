from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.preprocessing import Normalizer, StandardScaler

from lmbm_torch.data.scaling import Scaling, standardise, unit_norm, unscaled
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.persistence.archives import pack, unpack

# Below 1e-14 scikit-learn takes a row's norm for zero.
SIZES = st.floats(1e-6, 1e6)
ROWS = arrays(np.float64, (6, 4), elements=st.just(0.0) | SIZES | SIZES.map(lambda size: -size))


@given(ROWS)
def test_standardise_agrees_with_scikit_learn(rows):
    expected = StandardScaler().fit_transform(rows)
    scaled = standardise(rows).transform(torch.from_numpy(rows))
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-9, atol=1e-9)


@given(ROWS)
def test_unit_norm_agrees_with_scikit_learn_dense_and_sparse(rows):
    expected = Normalizer().fit_transform(rows)
    np.testing.assert_allclose(unit_norm(rows).transform(torch.from_numpy(rows)), expected, rtol=1e-12)
    sparse = csr_array(rows)
    scaled = unit_norm(sparse).transform(to_tensor(sparse))
    assert scaled.layout == torch.sparse_csr
    np.testing.assert_allclose(scaled.to_dense(), expected, rtol=1e-12)


@given(ROWS)
def test_sparse_rows_scale_like_dense_ones(rows):
    scaling = Scaling(torch.zeros(4, dtype=torch.float64), torch.arange(1.0, 5.0).double(), unit_rows=True)
    dense = scaling.transform(torch.from_numpy(rows))
    np.testing.assert_allclose(scaling.transform(to_tensor(csr_array(rows))).to_dense(), dense, rtol=1e-12)


def test_single_precision_rows_are_scaled_in_double_precision():
    rows = (1e4 + np.random.default_rng(0).normal(size=(50, 2))).astype(np.float32)
    expected = StandardScaler().fit_transform(rows.astype(np.float64))
    scaled = standardise(rows).transform(torch.from_numpy(rows))
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6)


def test_unscaled_changes_nothing_and_arguments_stay():
    rows = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    assert unscaled(rows.numpy()).transform(rows) is rows
    unit_norm(rows.numpy()).transform(rows)
    assert torch.equal(rows, before)


def test_state_survives_a_safe_checkpoint():
    fitted = standardise(np.random.default_rng(0).normal(size=(9, 3)))
    buffer = io.BytesIO()
    torch.save(pack(fitted), buffer)
    buffer.seek(0)
    again = unpack(torch.load(buffer, weights_only=True))
    assert again.agrees(fitted)
    assert torch.equal(again.mean, fitted.mean)
    assert torch.equal(again.scale, fitted.scale)


def test_agreement_sees_every_part():
    fitted = standardise(np.random.default_rng(0).normal(size=(9, 3)))
    close = Scaling(fitted.mean + 1e-14, fitted.scale * (1 + 1e-14), False)
    assert fitted.agrees(close)
    for other in (
        Scaling(fitted.mean + 1e-6, fitted.scale, False),
        Scaling(fitted.mean, fitted.scale * 1.001, False),
        Scaling(fitted.mean, fitted.scale, True),
        Scaling(fitted.mean[:2], fitted.scale[:2], False),
    ):
        assert not fitted.agrees(other)


@pytest.mark.usefixtures("no_shape_checks")
def test_bad_input_is_refused():
    ones = torch.ones(2)
    with pytest.raises(ValueError, match="features: expected dense features to standardise"):
        standardise(csr_array(np.eye(2)))
    for mean, scale, message in (
        (ones, torch.ones(3), "scale: expected shape"),
        (torch.ones(2, 2), ones, "mean: expected shape"),
        (ones * torch.nan, ones, "mean: expected finite values"),
        (ones, ones * torch.inf, "scale: expected finite values"),
        (ones, torch.tensor([1.0, 0.0]), "scale: expected entries above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Scaling(mean, scale, False)
    centred = Scaling(ones, ones, False)
    with pytest.raises(ValueError, match="rows: expected dense rows"):
        centred.transform(to_tensor(csr_array(np.eye(2))))
    for rows in (torch.ones(1, 3), torch.ones(2)):
        with pytest.raises(ValueError, match="rows: expected shape"):
            centred.transform(rows)
