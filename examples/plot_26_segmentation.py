"""
Segmentation behind convolutions
================================

Two convolutions read an image, and a graph of neighbouring cells behind the convolutions makes the answer
consistent. The graph's likelihood trains both: in a plain loop, and in Lightning.
"""

# %%
import logging
import warnings

import lightning as L
import torch
from torch import nn

from lmbm_torch import decode, log_partition
from lmbm_torch.models import FactorGraph
from lmbm_torch.viz.images import image_grid

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
SIDE, CLASSES = 6, 3
generator = torch.Generator().manual_seed(0)
cells = torch.arange(SIDE**2).view(SIDE, SIDE)
pairs = ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:]))
edges = torch.cat([torch.stack([one.flatten(), other.flatten()], 1) for one, other in pairs])


def images(count):
    """Two rectangles of two classes on the ground, in noise."""
    labels = torch.zeros(count, SIDE, SIDE, dtype=torch.long)
    for row in range(count):
        for kind in (1, 2):
            top, left = torch.randint(SIDE - 2, (2,), generator=generator).tolist()
            labels[row, top : top + 3, left : left + 3] = kind
    return (labels + 0.6 * torch.randn(labels.shape, generator=generator))[:, None], labels.flatten(1)


# %%
class Cells(nn.Sequential):
    """Convolutions, with one row of features for each cell."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(2)
        )

    def forward(self, x):
        return super().forward(x).mT


def loss_of(model, x, y):
    energy = model(x, edges)
    return (log_partition(energy) - energy.score(y)).mean()


(x, y), (test_x, test_y) = images(80), images(40)
plain = FactorGraph(num_features=8, num_states=CLASSES, encoder=Cells())
optimizer = torch.optim.Adam(plain.parameters(), 0.05)
for _ in range(25):
    optimizer.zero_grad()
    loss_of(plain, x, y).backward()
    optimizer.step()


# %%
class Segmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = FactorGraph(num_features=8, num_states=CLASSES, encoder=Cells())

    def training_step(self, batch, _):
        return loss_of(self.model, *batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


segmenter = Segmenter()
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=80)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
L.Trainer(max_epochs=25, enable_model_summary=False, **quiet).fit(segmenter, batches)

# %%
for name, model in {"plain loop": plain, "Lightning": segmenter.model}.items():
    with torch.no_grad():
        energy = model(test_x, edges)
    found = decode(energy).labels
    print(f"{name}: {(found == test_y).float().mean():.1%} of the cells are right")

image_grid(torch.cat([each[:4].view(-1, SIDE, SIDE) / 2 for each in (test_y, found)]))
