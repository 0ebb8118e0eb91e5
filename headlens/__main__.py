"""`python -m headlens` is the `headlens` command."""

from headlens.cli import main

if __name__ == "__main__":
    main()
