"""``python -m bitproof``."""

from bitproof.cli import main

main()
