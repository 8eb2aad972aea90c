"""Fine-tuning with the joint loss: a transformer of random weights, and a small convolutional network."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "fine_tuning"


@pytest.fixture
def example(monkeypatch):
    """Import a script of the folder."""
    monkeypatch.syspath_prepend(FOLDER)

    def imported(name: str):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return imported


pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_transformer_learns_label_sets(example, tmp_path):
    transformers = pytest.importorskip("transformers", reason='needs "lmbm-torch[text]"')
    pytest.importorskip("accelerate", reason="needs accelerate, for transformers.Trainer")
    trainer = example("trainer")
    words = sorted({word for text in trainer.TEXTS for word in text.split()})
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    transformers.BertTokenizerFast(vocab_file=str(vocabulary), vocab=str(vocabulary)).save_pretrained(
        tmp_path
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=5 + len(words), max_position_embeddings=8, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    options = {"max_steps": 200, "learning_rate": 0.01, "use_cpu": True, "disable_tqdm": True}
    learned, labels = trainer.train(str(tmp_path), str(tmp_path / "run"), logging_steps=20, **options)
    losses = [row["loss"] for row in learned.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] / 2
    assert labels.tolist() == trainer.LABELS
    assert (learned.model.head.count_weight != 0).any()


def test_a_convolutional_network_learns_label_sets(example):
    lightning = pytest.importorskip("lightning")
    lightning.seed_everything(0, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert example("lightning_module").train(max_epochs=2) > 0.6
