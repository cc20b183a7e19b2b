"""
Images and their patches
========================

To a kernel on pixels an image that is moved by one pixel is another image. A convolutional kernel looks at small
patches instead, wherever they are, and its inducing points are patches that can be looked at.
"""

# %%
# Handwritten digits
# ------------------
# Images of 8 × 8 pixels. A part of them is enough here.

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=500, stratify=y, random_state=0)

# %%
# A function of patches
# ---------------------
# Each class has a function of patches of 5 × 5 pixels. Its values at the 16 patches of an image are added up, with
# weights that are learnt as well. ``base`` is the kernel of patches, in units of the pixels.

from sklearn.gaussian_process.kernels import RBF

from skdgp import SOLVEGPClassifier
from skdgp.kernels import Convolutional

kernel = Convolutional(image_shape=(8, 8), patch_shape=(5, 5), base=10.0 * RBF(15.0))
options = {"n_orthogonal": 0, "beta": 0.1, "max_iter": 150, "random_state": 0}
patches = SOLVEGPClassifier(100, kernel=kernel, **options).fit(X_train, y_train)
pixels = SOLVEGPClassifier(100, kernel=10.0 * RBF(22.0), **options).fit(X_train, y_train)

# %%
# Right, and sure of it
# ---------------------
# With few images it helps to know that a stroke is a stroke in any place. Digits are centred, so that whole images say
# much as well: a sum of both, ``kernel + 10.0 * RBF(22.0)``, is possible too, and half of its inducing variables are
# then images.

from sklearn.metrics import log_loss

for name, model in {"patches": patches, "pixels": pixels}.items():
    proba = model.predict_proba(X_test)
    print(f"{name:8s} error {1 - model.score(X_test, y_test):.1%}, log loss {log_loss(y_test, proba):.3f}")

# %%
# What it has learnt
# ------------------
# On the left the first inducing patches: strokes, bends and ends of lines. On the right how much the patch at each
# place counts, from ``kernel_``, for the digit 0.

import matplotlib.pyplot as plt
import numpy as np

inducing = patches.inducing_points_[0].reshape(-1, 5, 5)
figure = plt.figure(figsize=(9, 3.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(2.2, 1))
for ax, patch in zip(left.subplots(4, 9).flat, inducing, strict=False):
    ax.imshow(patch, cmap="gray_r")
    ax.set_axis_off()
ax = right.subplots()
shown = ax.imshow(np.reshape(patches.kernel_.weights_, (4, 4)), cmap="viridis")
ax.set(title="weight of places", xticks=[], yticks=[])
right.colorbar(shown, ax=ax, shrink=0.7)
plt.show()

# %%
# Larger images
# -------------
# Colour images are rows of numbers as well: ``Convolutional((32, 32, 3), (5, 5), base)`` takes rows of 3072 numbers,
# pixel by pixel and within a pixel colour by colour. Such an image has 784 patches, and a minibatch of 32 images 25 000
# of them beside each inducing patch: take ``device="cuda"``, a ``batch_size`` that the device has room for, some
# hundreds of inducing patches, and give ``fit`` floats of 32 bits. For more than one layer of patches or millions of
# images a convolutional network is the better tool; its last layer's outputs make good features for the estimators
# here.
