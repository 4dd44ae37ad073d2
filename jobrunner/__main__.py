"""`python -m jobrunner` is the `jobrunner` command."""

from jobrunner.cli import program

if __name__ == "__main__":
    program()
