"""
A program without this library
==============================

A trained model and its inference as one exported program: an encoder's scores go through ten iterations of
belief propagation. The program holds PyTorch's own operators alone, and runs where this library is missing.
"""

# %%
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lmbm_torch.data.corruptions import Flip
from lmbm_torch.data.images import digits, restoration
from lmbm_torch.estimators import ConditionalRBMClassifier
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.viz.images import image_rows

data = restoration(digits(), Flip(0.1))
estimator = ConditionalRBMClassifier(
    C=30.0, num_hidden=24, objective="mle_bp", max_iter=6, learning_rate=0.05, random_state=0
)
estimator.fit(data.train_features[:400], data.train_labels[:400])


class Restorer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return matrix_bp.marginals(self.model(images), num_iters=10).visible


# %%
# The number of images is fixed with the program.
noisy = torch.as_tensor(data.test_features[:10], dtype=torch.float32)
restorer = Restorer(estimator.model_.float()).eval()
with torch.no_grad():
    program = torch.export.export(restorer, (noisy,))

# %%
# Another process, in which an import of this library fails.
ALONE = """
import sys
import torch

sys.modules["lmbm_torch"] = None
program = torch.export.load("restorer.pt2").module()
torch.save(program(torch.load("noisy.pt", weights_only=True)), "restored.pt")
"""
with TemporaryDirectory() as folder:
    torch.export.save(program, Path(folder, "restorer.pt2"))
    torch.save(noisy, Path(folder, "noisy.pt"))
    subprocess.run([sys.executable, "-c", ALONE], cwd=folder, check=True)
    restored = torch.load(Path(folder, "restored.pt"), weights_only=True)
with torch.no_grad():
    print(f"largest difference: {abs(restored - restorer(noisy)).max():.0e}")

# %%
clean = torch.as_tensor(data.test_labels[:10])
images = {"noisy": noisy, "restored elsewhere": restored, "clean": clean}
image_rows({name: each.reshape(-1, 8, 8) for name, each in images.items()})
