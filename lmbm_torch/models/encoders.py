"""Networks that may stand before any model: inputs → features, trained end to end by the model's loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_shape
from lmbm_torch.shapes import Float


class ConvolutionalEncoder(nn.Module):
    """Images, row after row as data sets hold them → features, by convolutions of 3 × 3 and rectified units.

    Each convolution keeps the image's size and is followed by max-pooling over ``pooling`` × ``pooling``
    pixels, where incomplete patches at the right and lower edge count too. Weights start as torch draws them.

    Args:
        height, width: of the images, of one channel.
        channels: of each convolution's result, one entry a convolution.
        pooling: 1 keeps every pixel's place, as features of pixel labels should.

    Attributes:
        num_features: width of what is returned, the last channels' pixels one channel after another.

    Raises:
        ValueError: counts below one, or no convolution.
    """

    def __init__(self, height: int, width: int, channels: Sequence[int], pooling: int = 2) -> None:
        super().__init__()
        check_counts(height=height, width=width, pooling=pooling)
        if not channels:
            raise ValueError(f"channels: expected at least one convolution, got {list(channels)}")
        self.height, self.width = height, width
        layers: list[nn.Module] = []
        given = 1
        for count in channels:
            check_counts(channels=count)
            layers += [nn.Conv2d(given, count, 3, padding=1), nn.ReLU()]
            if pooling > 1:
                layers.append(nn.MaxPool2d(pooling, ceil_mode=True))
                height, width = -(-height // pooling), -(-width // pooling)
            given = count
        self.layers = nn.Sequential(*layers)
        self.num_features = given * height * width

    def forward(self, x: Float[Tensor, "batch pixels"]) -> Float[Tensor, "batch features"]:
        """The features of a batch; refuses images of another size, and sparse ones."""
        check_shape("x", x, None, self.height * self.width)
        if x.layout != torch.strided:
            raise ValueError(f"x: expected dense images, got {x.layout}")
        return self.layers(x.unflatten(1, (1, self.height, self.width))).flatten(1)


class PixelwiseEncoder(ConvolutionalEncoder):
    """Images → one number a pixel, by convolutions of 3 × 3 with rectified units between them.

    The last convolution is linear, so that its result may serve as the log-odds of pixel labels, found alike
    wherever a pixel lies, for :meth:`~lmbm_torch.models.ConditionalRBM.of_log_odds`.

    Args:
        height, width: of the images, of one channel.
        channels: of each convolution's result before the last one's, which is one channel.

    Raises:
        ValueError: counts below one, or no channels.
    """

    def __init__(self, height: int, width: int, channels: Sequence[int]) -> None:
        super().__init__(height, width, channels, pooling=1)
        self.layers.append(nn.Conv2d(channels[-1], 1, 3, padding=1))
        self.num_features = height * width
