"""Convolutions in front of a model: what they return, what they refuse, and that the loss reaches them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.losses import local_hinge, negative_log_likelihood
from lmbm_torch.models import ConditionalRBM, SigmoidBeliefNetwork
from lmbm_torch.models.encoders import ConvolutionalEncoder, PixelwiseEncoder


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    pooling=st.integers(1, 3),
)
def test_the_width_is_known_before_the_first_image(height, width, channels, pooling):
    encoder = ConvolutionalEncoder(height, width, channels, pooling)
    assert encoder(torch.rand(2, height * width)).shape == (2, encoder.num_features)


def test_without_pooling_features_keep_their_places():
    torch.manual_seed(0)
    encoder = ConvolutionalEncoder(6, 7, [3, 2], pooling=1)
    image = torch.zeros(6, 7)
    image[2, 3] = 1.0
    dark = encoder(torch.zeros(1, 42))
    changed = (encoder(image.reshape(1, 42)) != dark).unflatten(1, (2, 6, 7)).any(1)[0]
    rows, columns = changed.nonzero().T
    # Two convolutions of 3 × 3 see two pixels far.
    assert len(rows)
    assert rows.min() >= 0
    assert rows.max() <= 4
    assert columns.min() >= 1
    assert columns.max() <= 5


def test_pixels_are_told_alike_wherever_they_lie():
    torch.manual_seed(0)
    encoder = PixelwiseEncoder(12, 13, [3, 2])
    assert encoder.num_features == 12 * 13
    images = torch.zeros(2, 12, 13)
    images[0, 4, 3:5] = images[1, 6, 8:10] = 1.0
    first, second = encoder(images.flatten(1)).unflatten(1, (12, 13))
    # Three convolutions see three pixels far, those at the edges a frame of zeros.
    torch.testing.assert_close(first[3:7, 3:5], second[5:9, 8:10])
    with torch.no_grad():
        for value in encoder.layers[-1].parameters():
            value.neg_()
    torch.testing.assert_close(encoder(images.flatten(1)).unflatten(1, (12, 13))[0], -first)


def test_a_conditional_machine_takes_the_log_odds_of_pixels():
    torch.manual_seed(0)
    encoder = PixelwiseEncoder(5, 5, [4])
    model = ConditionalRBM.of_log_odds(25, 3, encoder)
    images = (torch.rand(6, 25) < 0.5).float()
    energy = model(images)
    torch.testing.assert_close(energy.visible, encoder(images))
    energy.free_energy(images).mean().backward()
    assert all(bool(weight.grad.any()) for weight in (*encoder.parameters(), model.hidden_weight))
    assert {name for name, value in model.named_parameters() if not value.requires_grad} == {"visible_weight"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, [4]), "height"),
        ((8, 8, []), "channels: expected at least one convolution"),
        ((8, 8, [4, 0]), "channels"),
        ((8, 8, [4], 0), "pooling"),
    ],
)
def test_what_is_no_encoder_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ConvolutionalEncoder(*arguments)


def test_images_of_another_size_and_sparse_ones_are_refused():
    encoder = ConvolutionalEncoder(4, 4, [2])
    with pytest.raises(ValueError, match=r"x: expected shape \(at least 1, 16\), got \(3, 15\)"):
        encoder(torch.ones(3, 15))
    with pytest.raises(ValueError, match="x: expected dense images"):
        encoder(torch.eye(16).to_sparse())


def test_every_weight_learns_under_a_network():
    torch.manual_seed(0)
    encoder = ConvolutionalEncoder(8, 8, [4, 8])
    model = SigmoidBeliefNetwork(encoder.num_features, 3, encoder=encoder)
    images, labels = torch.rand(16, 64), (torch.rand(16, 3) < 0.5).float()
    # Its own weights start at zero, where no loss depends on the encoder.
    torch.nn.init.normal_(model.feature_weight)
    for loss in (local_hinge, negative_log_likelihood):
        model.zero_grad()
        loss(model(images), labels).mean().backward()
        assert all(bool(weight.grad.any()) for weight in encoder.parameters())
    assert branch_and_bound.decode_hinge(model(images)).status.exact.all()


def test_a_few_steps_fit_labels_that_no_linear_model_can():
    """Whether two bright pixels are neighbours, wherever they are."""
    torch.manual_seed(0)
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    first, second = pairs[pairs[:, 0] < pairs[:, 1]].T
    images = torch.zeros(len(first), 16)
    images[torch.arange(len(first)), first] = images[torch.arange(len(first)), second] = 1.0
    distance = (first // 4 - second // 4).abs() + (first % 4 - second % 4).abs()
    labels = torch.stack([distance == 1, distance > 1], 1).float()
    encoder = ConvolutionalEncoder(4, 4, [8, 8], pooling=1)
    errors = {}
    for name, model in {
        "pixels": SigmoidBeliefNetwork(16, 2),
        "convolutions": SigmoidBeliefNetwork(encoder.num_features, 2, encoder=encoder),
    }.items():
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            local_hinge(model(images), labels).mean().backward()
            optimizer.step()
        errors[name] = float((branch_and_bound.decode_hinge(model(images)).labels != labels).float().mean())
    assert errors["convolutions"] == 0
    assert errors["pixels"] > 0.1


def test_a_conditional_machine_takes_one_too():
    encoder = ConvolutionalEncoder(4, 4, [2], pooling=1)
    model = ConditionalRBM(encoder.num_features, 16, 3, encoder=encoder)
    energy = model(torch.rand(5, 16))
    assert energy.visible.shape == (5, 16)
    assert energy.hidden.shape == (5, 3)
