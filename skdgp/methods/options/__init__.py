"""All parameters of the estimators: what each may be, what it does, and to which group it belongs."""

from .option import GROUPS, Option, options_of, parameter
from .removed import REMOVED, check_removed

__all__ = ["GROUPS", "REMOVED", "Option", "check_removed", "options_of", "parameter"]
