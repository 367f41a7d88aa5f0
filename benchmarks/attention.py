"""The attention benchmark, as a script: the same as `sharpmax bench attention`."""

import sys

from sharpmax.cli import main

if __name__ == "__main__":
    main(["bench", "attention", *sys.argv[1:]])
