"""Parameters of earlier versions that are none any more, and what to write instead."""

#: What an error says after the name.
REMOVED = {
    "whiten": 'leave it out, or write covariance="diag_unwhitened" or "full_unwhitened" for whiten=False',
    "orthogonal_covariance": 'leave it out, or write covariance="odvgp" for orthogonal_covariance="prior"',
    "orthogonal_inducing": 'leave it out, or name the kinds of both sets, as in inducing="points+derivatives"',
    "network_depth": "leave it out, or give network_width a number for each hidden layer, as in (64, 64, 64)",
    "share_kernel": "leave it out, since the outputs of a layer of DSDGP share a kernel, and those of AVDGP do not",
    "tol": "leave it out, since every better score on held-out rows counts as an improvement",
}


def check_removed(names, kind: type, error: type[Exception]) -> None:
    """Raise an error if one of the names that a user wrote is that of a removed parameter."""
    for name in names:
        if name in REMOVED:
            raise error(f"{name} is no parameter of {kind.__name__} any more: {REMOVED[name]}.")
