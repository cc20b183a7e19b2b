"""How wide layers are and how many inducing points they have: one number for all, or one for each."""

from numbers import Integral

from sklearn.utils._param_validation import Interval, StrOptions

#: What ``hidden_dims`` and ``n_inducing`` may be, for scikit-learn's checks.
HIDDEN_DIMS = ["array-like", tuple]
N_INDUCING = [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"}), "array-like", tuple]


def positive_ints(name: str, values) -> tuple[int, ...]:
    """``values`` as a tuple of positive integers, or a ValueError that names the parameter."""
    for value in values:
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={values!r} holds {value!r}: every value must be an integer of at least 1.")
    return tuple(int(value) for value in values)


def inducing_per_layer(n_inducing, hidden_dims, auto: tuple[int, int]) -> tuple[int, ...]:
    """Inducing points of every layer; ``auto`` is what "auto" means for the first and for later ones."""
    n_layers = len(hidden_dims) + 1
    if isinstance(n_inducing, str):
        first, later = auto
        return (first,) + (n_layers - 1) * (later,)
    if isinstance(n_inducing, Integral):
        return n_layers * (int(n_inducing),)
    numbers = positive_ints("n_inducing", n_inducing)
    if len(numbers) != n_layers:
        raise ValueError(
            f"n_inducing={n_inducing!r} has {len(numbers)} values for {n_layers} layers "
            f"(hidden_dims={hidden_dims!r} and the output): give one value for all layers, one for each, or 'auto'."
        )
    return numbers
