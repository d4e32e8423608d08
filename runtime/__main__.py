"""`python -m runtime`: the command line, where the command `cotenant` is not installed."""

from runtime.cli import main

if __name__ == "__main__":
    main()
