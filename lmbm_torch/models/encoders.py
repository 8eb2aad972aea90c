"""Neural networks that map inputs to a model's features, trained end to end by the loss of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_shape
from lmbm_torch.shapes import Float


class ConvolutionalEncoder(nn.Module):
    """A convolutional encoder of images given as flat rows: 3 × 3 convolutions and rectified units.

    Each convolution keeps the size of the image and is followed by max-pooling over ``pooling`` × ``pooling``
    pixels; incomplete patches at the edges are pooled, too. Weights start with torch's defaults.

    Args:
        height, width: the size of the images.
        channels: the number of channels of each convolution.
        pooling: the width of the patches; 1 keeps one feature for each pixel, as labels of pixels need.
        colours: the number of channels of the images; 3 for the pixels of
            :class:`~lmbm_torch.data.ImageEncoder`.

    Attributes:
        num_features: the number of features, the pixels of the last convolution, channel after channel.

    Raises:
        ValueError: a number is below one, or there is no convolution.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import ConvolutionalEncoder
        >>> encoder = ConvolutionalEncoder(8, 8, channels=[4], pooling=2)
        >>> encoder(torch.zeros(3, 64)).shape
        torch.Size([3, 64])
    """

    def __init__(
        self, height: int, width: int, channels: Sequence[int], pooling: int = 2, colours: int = 1
    ) -> None:
        super().__init__()
        check_counts(height=height, width=width, pooling=pooling, colours=colours)
        if not channels:
            raise ValueError(f"channels: expected at least one convolution, got {list(channels)}")
        self.height, self.width, self.colours = height, width, colours
        layers: list[nn.Module] = []
        given = colours
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
        """Return the features of a batch; raise ValueError for sparse images or images of another size."""
        check_shape("x", x, None, self.colours * self.height * self.width)
        if x.layout != torch.strided:
            raise ValueError(f"x: expected dense images, got {x.layout}")
        return self.layers(x.unflatten(1, (self.colours, self.height, self.width))).flatten(1)


class PixelwiseEncoder(ConvolutionalEncoder):
    """An encoder that returns one number for each pixel, by 3 × 3 convolutions with rectified units between.

    The last convolution is linear. The result may serve as the logits of pixel labels for
    :meth:`~lmbm_torch.models.ConditionalRBM.of_log_odds`.

    Args:
        height, width: the size of the images, which have one channel.
        channels: the numbers of channels of all convolutions but the last, which has one channel.

    Raises:
        ValueError: a number is below one, or there are no channels.
    """

    def __init__(self, height: int, width: int, channels: Sequence[int]) -> None:
        super().__init__(height, width, channels, pooling=1)
        self.layers.append(nn.Conv2d(channels[-1], 1, 3, padding=1))
        self.num_features = height * width
