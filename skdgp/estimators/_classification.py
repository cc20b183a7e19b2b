"""What all classifiers share: they take labels of any kind, and predict probabilities of classes."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from .._sklearn import fit_context
from ..gp.classes import Bernoulli, Classification, RobustMax
from ..inference.threads import threads_for
from ..methods.options import computing, parameter, tabular, training
from ..tables.targets import Labels, check_labels
from . import _predicting, _training
from ._fitted import learnt, query
from ._shell import Shell, nameless


@nameless
@dataclass(eq=False, repr=False)
class DeepGPClassifier(Shell, ClassifierMixin, BaseEstimator):
    """The public face of a classifier. Estimators derive from it and from a method of :mod:`skdgp.methods`."""

    _: KW_ONLY
    base: str | None = parameter(training.BASE, "auto")
    class_weight: dict | Literal["balanced"] | None = parameter(tabular.CLASS_WEIGHT, None)
    validation_fraction: float = parameter(tabular.VALIDATION_FRACTION, 0.1)
    categorical_features: Any = parameter(tabular.CATEGORICAL_FEATURES, "from_dtype")
    normalize_X: bool = parameter(tabular.NORMALIZE_X, True)
    device: str = parameter(computing.DEVICE, "auto")
    warm_start: bool = parameter(training.WARM_START, False)
    random_state: int | np.random.RandomState | None = parameter(computing.RANDOM_STATE, None)
    max_time: float | None = parameter(training.MAX_TIME, None)
    verbose: int = parameter(computing.VERBOSE, 0)

    def _kind_of_targets(self) -> Labels:
        """What kind the targets are of."""
        return Labels()

    def _make_likelihood(self, targets: Labels, n_outputs: int) -> Classification:
        """The likelihood of such targets: probit or robust max."""
        n_classes = len(targets.classes)
        return Bernoulli() if n_classes == 2 else RobustMax(n_classes)

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, X_val=None, y_val=None):
        """Fit the model to training rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features of the training rows, in any units: an array or a data frame. Cells may be missing (NaN, None, NA),
            but not infinite.
        y : array-like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows. A row of weight 2 counts as if the table contained it twice. So weights
            matter even if they are all the same: large ones make probabilities more certain. Rows of weight zero are
            left out.
        X_val : array-like of shape (n_val, n_features), default=None
            Rows that choose the best epoch, instead of a part of ``X`` and ``y``. They also set the weight of the base.
            So the model scores better on them than on new rows. ``fit`` uses them even with ``early_stopping=False``.
        y_val : array-like of shape (n_val,), default=None
            Labels of ``X_val``: give both or neither. ``class_weight`` weighs them as it weighs the rows of ``y``.

        Returns
        -------
        self : object
            The fitted estimator. If fitting fails, the estimator stays as it was before.

        Raises
        ------
        TypeError, ValueError
            If parameters or data are not valid.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers still become infinite or NaN after the learning rate has been halved ten times.
        KeyboardInterrupt
            If the user interrupts training (Ctrl-C) before the end of its first epoch.

        Warns
        -----
        UserWarning
            If the user interrupts training after its first epoch. The estimator is then fitted, with the best
            parameters so far.
        UserWarning
            If there are fewer distinct rows than the inducing points that you asked for.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from skdgp import AVDGPClassifier
        >>> X, y = make_moons(100, random_state=0)
        >>> model = AVDGPClassifier(max_iter=2, n_estimators=1, random_state=0)
        >>> model.fit(
        ...     X[:80], y[:80], X_val=X[80:], y_val=y[80:]
        ... ).validation_scores_.shape
        (2,)
        """
        return _training.fit(self, X, y, sample_weight, X_val, y_val)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None, total_size=None):
        """Learn from one chunk of rows. Call it again with the next chunk.

        The first chunk decides how features are scaled and where inducing points start. So the first chunk should be a
        random sample of the data, of a few thousand rows. Each row should come once, since a chunk judges the model
        before the model learns from it. The learning rate climbs in the first hundred steps and then falls slowly.
        Predictions come from an average of the parameters in recent steps. No rows are held out, and
        ``early_stopping`` has no effect.

        From the second chunk on, predictions are blended with a base if ``base`` is not None. The base learns from each
        chunk in closed form, and every chunk decides its weight, ``base_weight_``, before anything learns from it. A
        chunk of fewer than 50 rows cannot, and members predict alone after it. See :doc:`/scale`.

        Over each chunk there are as many passes as ``fit`` would take for ``total_size`` rows, but at most ten, and at
        most ``max_iter``. A small chunk would be too few steps even so. So the estimator keeps a random sample of up to
        4000 earlier rows, and learns from some of these again with each small chunk. If it is more work than the passes
        above, the first chunk is as much work as up to 25 passes over it, but no more than 100 000 rows. A later chunk
        is as much work as up to 25 passes over it, but no more than 10 000 rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features of the rows, in any units: an array or a data frame. Cells may be missing, but not infinite.
        y : array-like of shape (n_samples,)
            Labels of any kind.
        classes : array-like of shape (n_classes,), default=None
            All labels that occur in any chunk. The first call needs them.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows. A row of weight 2 counts as if it came twice, among the rows of all
            chunks. ``class_weight="balanced"`` balances each chunk by itself.
        total_size : int, default=None
            Number of rows of all chunks together. It decides how much the penalty on the inducing variables counts
            beside the rows. Without it the number of rows seen so far takes its place.

        Returns
        -------
        self : object
            The fitted estimator, without ``lower_bound_``. If learning fails, the estimator stays as it was before.

        Raises
        ------
        TypeError, ValueError
            If ``classes`` is missing in the first call, or differs from it in a later call; if ``total_size`` is less
            than the number of rows in the chunk; if the data are not valid; or if a parameter that shapes the model has
            changed since the first chunk.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers still become infinite or NaN after the learning rate has been halved ten times.

        Warns
        -----
        UserWarning
            If the first chunk has fewer distinct rows than the inducing points that you asked for, or if a parameter
            has changed that later chunks do not follow, such as ``n_estimators``.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from skdgp import DSDGPClassifier
        >>> X, y = make_moons(200, random_state=0)
        >>> model = DSDGPClassifier(n_inducing=5, random_state=0)
        >>> for rows in (slice(0, 100), slice(100, 200)):
        ...     model = model.partial_fit(
        ...         X[rows], y[rows], classes=[0, 1], total_size=200
        ...     )
        >>> model.loss_curve_.shape  # a number for each chunk
        (2,)
        """
        if "_learnt" not in vars(self):
            if classes is None or np.size(classes) == 0:
                raise ValueError("The first call of partial_fit needs the labels of all chunks: pass classes.")
            classes = check_labels(classes, "classes")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={np.unique(classes)} differ from those of the first call, {self.classes_}: leave them out, "
                "or start anew with a clone."
            )
        return _training.learn(self, X, y, sample_weight, total_size, classes)

    @threads_for()
    def predict_log_proba(self, X):
        """Logarithms of the class probabilities, which are always finite.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from skdgp import AVDGPClassifier
        >>> X, y = make_moons(60, random_state=0)
        >>> model = AVDGPClassifier(max_iter=2, n_estimators=1, random_state=0).fit(
        ...     X, y
        ... )
        >>> model.predict_log_proba(X[:3]).shape
        (3, 2)
        """
        return self._log_proba(query(self, X))

    def _means(self, X: np.ndarray) -> np.ndarray:
        """Class probabilities (n, n_classes) at checked rows."""
        return np.exp(self._log_proba(X))

    def _log_proba(self, X: np.ndarray) -> np.ndarray:
        """Logarithms of class probabilities (n, n_classes) at checked rows."""

        def mixture(likelihoods, marginals) -> np.ndarray:
            components = [
                likelihood.log_probabilities(member.mean, member.variance) + member.log_weight[..., None]
                for likelihood, member in zip(likelihoods, marginals, strict=True)
            ]
            return torch.logsumexp(torch.cat(components), dim=0).double().log_softmax(-1).cpu().numpy()  # (B, K)

        log_proba = np.empty((len(X), len(self.classes_)))
        for rows, values in _predicting.predict(learnt(self), X, mixture, exact=self.dtype == "float64"):
            log_proba[rows] = values
        return log_proba

    def predict_proba(self, X):
        """Class probabilities, averaged over the members of the ensemble and their samples or quadrature points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``; rows sum to one.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from skdgp import AVDGPClassifier
        >>> X, y = make_moons(60, random_state=0)
        >>> model = AVDGPClassifier(max_iter=2, n_estimators=1, random_state=0).fit(
        ...     X, y
        ... )
        >>> model.predict_proba(X[:3]).sum(axis=1).round(6)
        array([1., 1., 1.])
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X):
        """The most probable class of every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels, of the type given to ``fit``.

        Examples
        --------
        >>> from sklearn.datasets import make_moons
        >>> from skdgp import AVDGPClassifier
        >>> X, y = make_moons(60, random_state=0)
        >>> labels = ["below" if number else "above" for number in y]
        >>> model = AVDGPClassifier(max_iter=2, n_estimators=1, random_state=0).fit(
        ...     X, labels
        ... )
        >>> model.predict(X).shape, model.classes_.tolist()
        ((60,), ['above', 'below'])
        """
        columns = self.predict_proba(X).argmax(axis=1)
        return self.classes_[columns]
