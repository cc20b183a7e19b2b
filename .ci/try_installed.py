"""Run the README's Python examples with the package of a folder, to see that a wheel is complete."""

import re
import sys
from pathlib import Path

import skdgp

installed, readme = map(Path, sys.argv[1:])
assert Path(skdgp.__file__).is_relative_to(installed), f"{skdgp.__file__} is not the installed package."
assert (installed / "skdgp/py.typed").exists(), "The wheel has no py.typed."
blocks = re.findall(r"\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", readme.read_text(encoding="utf-8"))
assert blocks, "README.rst has no example in Python."
for block in blocks:
    exec(re.sub(r"^    ", "", block, flags=re.MULTILINE), {})
print(f"{len(blocks)} examples of the README run with skdgp {skdgp.__version__} as installed.")
