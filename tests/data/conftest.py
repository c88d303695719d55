"""Lets the tests of the data layer import their data sets by name, also in worker processes that are not forked."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
