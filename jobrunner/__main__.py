"""`python -m jobrunner` is the `jobrunner` command."""

from jobrunner.cli import main

if __name__ == "__main__":
    main()
