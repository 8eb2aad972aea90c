"""
A layer for sequences
=====================

A convolution reads the images of a number, and a conditional random field as the last layer decides the
digits together: ten lines of Lightning, compared with the same convolution and a softmax for each digit.
"""

# %%
import logging
import warnings

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from lmbm_torch.data import digit_numbers
from lmbm_torch.nn import CRF
from lmbm_torch.viz.quality import bar_chart

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
L.seed_everything(0, verbose=False)


def padded(part):
    noise = np.random.default_rng(0)
    X = [torch.tensor(x + 0.3 * noise.standard_normal(x.shape), dtype=torch.float32) for x in part.features]
    y = [torch.tensor(labels) for labels in part.labels]
    return pad_sequence(X, True), pad_sequence(y, True), pad_sequence([row >= 0 for row in y], True)


# %%
class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder, self.crf = nn.Conv1d(64, 10, 3, padding=1), CRF(10, batch_first=True)

    def training_step(self, batch, _):
        images, digits, mask = batch
        return -self.crf(self.encoder(images.mT).mT, digits, mask, reduction="mean")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01, weight_decay=0.03)


class Apart(Tagger):
    def training_step(self, batch, _):
        images, digits, mask = batch
        return nn.functional.cross_entropy(self.encoder(images.mT).mT[mask], digits[mask])


# %%
data = digit_numbers(160)
train, test = padded(data.within(0)), padded(data.within(1))
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*train), batch_size=20, shuffle=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
right = {}
for name, tagger in {"softmax of each digit": Apart(), "conditional random field": Tagger()}.items():
    L.Trainer(max_epochs=25, enable_model_summary=False, **quiet).fit(tagger, batches)
    images, digits, mask = test
    with torch.no_grad():
        emissions = tagger.encoder(images.mT).mT
        tags = emissions.argmax(-1)
        if type(tagger) is Tagger:
            tags = pad_sequence([torch.tensor(row) for row in tagger.crf.decode(emissions, mask)], True)
    right[name] = ((tags == digits) & mask)[mask].float().mean().item(), ((tags == digits) | ~mask).all(1)

bar_chart(
    {
        "digits right": {name: digits for name, (digits, _) in right.items()},
        "numbers right": {name: whole.float().mean().item() for name, (_, whole) in right.items()},
    }
)
