"""
Images: a kernel that compares patches
======================================

How can a Gaussian process learn from only a few hundred images? For a kernel of pixels, an image that has moved by one
pixel is quite a different image. A *convolutional* kernel compares small patches instead, wherever in the image they
are. Its *inducing points*, which summarise what the model has learnt, are patches as well. So you can look at them.
"""

# %%
# The data: handwritten digits
# ----------------------------
# The images have 8 × 8 pixels. The model learns from 500 of them, and the others are for testing.

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=500, stratify=y, random_state=0
)

# %%
# A function of patches
# ---------------------
# For each class, the model has a function of patches of 5 × 5 pixels. An image has 16 such patches. The function's
# values at these patches are added up, each with a weight, and the sum says how well the class suits the image.
# Training learns the weights as well; all classes share them.
#
# The argument ``base`` of ``Convolutional`` is the kernel that compares two patches. Its lengthscale is in the units of
# the pixels. (The estimators have a parameter of the same name, which is something else.) A second model has a kernel
# of whole images, for comparison.

from sklearn.gaussian_process.kernels import RBF

from skdgp import SOLVEGPClassifier
from skdgp.kernels import Convolutional

kernel = Convolutional(
    image_shape=(8, 8), patch_shape=(5, 5), base=10.0 * RBF(15.0)
)
options = {"n_orthogonal": 0, "beta": 0.1, "max_iter": 150, "random_state": 0}
patches = SOLVEGPClassifier(100, kernel=kernel, **options).fit(
    X_train, y_train
)
pixels = SOLVEGPClassifier(100, kernel=10.0 * RBF(22.0), **options).fit(
    X_train, y_train
)

# %%
# Share of errors, and log loss
# -----------------------------
# A stroke often means the same wherever it is in the image. The kernel of patches knows this, which can help if there
# are few images. But these digits are centred, so it also matters where a stroke is. Here both kernels make about the
# same share of errors, and the log loss of the patches is somewhat lower. If both matter, add the two kernels:
# ``kernel + 10.0 * RBF(22.0)``. Half of the inducing points are then patches, and the other half are images.

from sklearn.metrics import log_loss

errors, losses = {}, {}
for name, model in {"patches": patches, "pixels": pixels}.items():
    errors[name] = 1 - model.score(X_test, y_test)
    losses[name] = log_loss(y_test, model.predict_proba(X_test))
    print(f"{name:8s} error {errors[name]:.1%}, log loss {losses[name]:.3f}")
assert abs(errors["patches"] - errors["pixels"]) < 0.02
assert losses["patches"] < losses["pixels"]

# %%
# What the model has learnt
# -------------------------
# On the left are the first 36 inducing patches: strokes, bends and ends of lines. On the right are the weights of the
# 16 patches, at their places in the image. They come from ``kernel_``.

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
ax.set(title="weight of each patch", xticks=[], yticks=[])
right.colorbar(shown, ax=ax, shrink=0.7)
plt.show()

# %%
# Larger images
# -------------
# Colour images are rows of numbers as well. ``Convolutional((32, 32, 3), (5, 5), base)`` takes rows of 3072 numbers,
# pixel by pixel; the three colours of a pixel follow one another. Such an image has 784 patches. A minibatch of 32
# images has 25 000 patches, and the kernel compares each of them with each inducing patch. So larger images take much
# time and memory. This helps:
#
# * Take ``device="cuda"`` (:doc:`/scale`), and a ``batch_size`` for which the GPU has enough memory.
# * Take some hundred inducing patches.
# * Pass ``X`` to ``fit`` as float32.
#
# For more than one layer of patches, or for millions of images, a convolutional neural network is the better tool. The
# outputs of its last layer are good features for the estimators of this package.
