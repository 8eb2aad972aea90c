"""A convolutional network with the joint head as last layer, in Lightning, on the segments of digits."""

from __future__ import annotations

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lmbm_torch.data import SevenSegment
from lmbm_torch.models import ConvolutionalEncoder
from lmbm_torch.nn import JointHeadLayer


class JointNetwork(L.LightningModule):
    def __init__(self, encoder: nn.Module, num_features: int, num_labels: int) -> None:
        super().__init__()
        self.logits = nn.Sequential(encoder, nn.Linear(num_features, num_labels))
        self.head = JointHeadLayer(num_labels)

    def training_step(self, batch, _):
        images, labels = batch
        return self.head(self.logits(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def train(max_epochs: int) -> float:
    """Return the exact match of the test part."""
    data = SevenSegment()
    images, labels = (torch.tensor(each, dtype=torch.float32) for each in (data.features, data.labels))
    encoder = ConvolutionalEncoder(8, 8, channels=[16])
    network = JointNetwork(encoder, encoder.num_features, data.num_labels)
    batches = DataLoader(TensorDataset(images[data.train], labels[data.train]), batch_size=50, shuffle=True)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(max_epochs=max_epochs, accelerator="cpu", logger=False, **quiet).fit(network, batches)
    with torch.no_grad():
        found = network.head.decode(network.logits(images[data.test]))
    return (found == labels[data.test]).all(1).float().mean().item()


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    print(train(max_epochs=10))
