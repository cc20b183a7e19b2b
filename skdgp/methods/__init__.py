"""The methods: how their models are built and trained.

A method turns parameters into models and plans for their training. An estimator is a method with scikit-learn's
interface. You can also use a method without an estimator. You then build and train a model by hand, from standardised
arrays:

>>> import torch
>>> from skdgp.datasets import make_waves
>>> from skdgp.gp.likelihoods import Gaussian
>>> from skdgp.inference import Batch, Member, Part
>>> from skdgp.methods import AVDGP
>>> X, y = make_waves(100, random_state=0)
>>> data, generator = Batch.of(X, y), torch.Generator().manual_seed(0)
>>> method = AVDGP(hidden_dims=(3,), max_iter=2)
>>> model = method.build(data.X, Gaussian(1), generator)
>>> plan = method.plan(len(data))
>>> [history] = plan.trainer(
...     [Member(model, Part(data), generator)], plan.settings
... )
>>> len(history.loss), model(data.X).mean.shape
(2, torch.Size([8, 100, 1]))
"""

from .avdgp import AVDGP
from .dsdgp import DSDGP, LatentDSDGP
from .solvegp import SOLVEGP, SOLVEGPRegression

__all__ = ["AVDGP", "DSDGP", "SOLVEGP", "LatentDSDGP", "SOLVEGPRegression"]
