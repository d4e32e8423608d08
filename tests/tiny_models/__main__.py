"""Writes tiny models to a folder: `python -m tests.tiny_models FOLDER [NAME ...]`."""

import sys
from pathlib import Path

from . import MAKERS, make

for name in sys.argv[2:] or MAKERS:
    make(name, Path(sys.argv[1], name))
    print(Path(sys.argv[1], name))
