"""
Why this answer
===============

A hierarchy, a rule, and an answer with its explanation: the contributions of the features and of the other
labels to a label, whose sum is the label's field (half the log-odds), and the labels that would change with
the label.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lmbm_torch.estimators import ConstrainedClassifier, LMSBNClassifier

photos = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=["light", "sand", "steel"])
outdoors = photos.light + photos.sand > -0.5
beach = outdoors & (photos.sand > 0.3)
urban = outdoors & ~beach & (photos.steel > 0)
tags = pd.DataFrame({"outdoors": outdoors, "outdoors/beach": beach, "outdoors/urban": urban}).astype(int)

rule = "outdoors/urban -> not outdoors/beach"
model = ConstrainedClassifier(LMSBNClassifier(random_state=0), rule, hierarchy="/").fit(photos, tags)

# %%
# One of the few photos whose answer the hierarchy changes: much sand in the dark. Without the hierarchy, the
# belief network answers "beach" but not "outdoors".
photo = next(photos[row : row + 1] for row in range(300) if model.binding_rules(photos[row : row + 1])[0])
why = model.explain(photo)
print(photo.round(2).to_string())
print(why)

# %%
# In a notebook an explanation is shown as a table; ``why["outdoors"]`` has the numbers.
parts = {name: {"rest": label.intercept, **label.features, **label.labels} for name, label in why.items()}
table = pd.DataFrame(parts).fillna(0.0).T[::-1]
axes = table.plot.barh(stacked=True, figsize=(6.5, 2.8), colormap="tab10")
axes.axvline(0, color="black", linewidth=0.8)
axes.set(xlabel="contribution to the field: right says yes, left says no")
axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
axes.figure.set_layout_engine("constrained")
plt.show()
