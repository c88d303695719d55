"""``python -m bitproof``."""

from bitproof.cli import main

if __name__ == "__main__":
    main()
