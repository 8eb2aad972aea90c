"""A transformer with the joint head as last layer, by transformers.Trainer: trainer.py NAME."""

from __future__ import annotations

import sys

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, Trainer, TrainingArguments

from lmbm_torch.nn import JointHeadLayer

TEXTS = ["dry red wine", "sweet red port", "dry white wine", "sweet white wine"] * 8
# Red, dry.
LABELS = [[1, 1], [1, 0], [0, 1], [0, 0]] * 8


class JointTransformer(nn.Module):
    def __init__(self, name: str, num_labels: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(name)
        self.logits = nn.Linear(self.encoder.config.hidden_size, num_labels)
        self.head = JointHeadLayer(num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.logits(self.encoder(input_ids, attention_mask).last_hidden_state[:, 0])
        return {"logits": logits} if labels is None else {"loss": self.head(logits, labels), "logits": logits}


def train(name: str, folder: str, **options) -> tuple[Trainer, torch.Tensor]:
    """Return the trainer, and the labels that the trained model gives the texts."""
    tokens = AutoTokenizer.from_pretrained(name)(TEXTS, padding=True, return_tensors="pt")
    rows = [
        {**{key: each[row] for key, each in tokens.items()}, "labels": torch.tensor(labels)}
        for row, labels in enumerate(LABELS)
    ]
    model = JointTransformer(name, 2)
    settings = TrainingArguments(folder, report_to=[], save_strategy="no", seed=0, **options)
    trainer = Trainer(model=model, args=settings, train_dataset=rows)
    trainer.train()
    tokens = tokens.to(model.logits.weight.device)
    with torch.no_grad():
        logits = model.eval()(tokens["input_ids"], tokens["attention_mask"])["logits"]
    return trainer, model.head.decode(logits)


if __name__ == "__main__":
    _, found = train(sys.argv[1], "trained", num_train_epochs=3)
    print((found.cpu() == torch.tensor(LABELS)).all(1).float().mean())
