"""All parameters of the estimators: what each may be, what it does, and to which group it belongs."""

from .option import GROUPS, Option, options_of, parameter

__all__ = ["GROUPS", "Option", "options_of", "parameter"]
