"""Run the README's Python example with the package of a folder, to see that a wheel is complete."""

import re
import sys
from pathlib import Path

import skdgp

installed, readme = map(Path, sys.argv[1:])
assert Path(skdgp.__file__).is_relative_to(installed), f"{skdgp.__file__} is not the installed package."
assert (installed / "skdgp/py.typed").exists(), "The wheel has no py.typed."
(block,) = re.findall(r"\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", readme.read_text(encoding="utf-8"))
exec(re.sub(r"^    ", "", block, flags=re.MULTILINE), {})
print(f"The README's example runs with skdgp {skdgp.__version__} as installed.")
