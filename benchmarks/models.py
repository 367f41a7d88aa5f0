"""The benchmark of models, as a script: the same as `sharpmax bench models`."""

import sys

from sharpmax.cli import main

if __name__ == "__main__":
    main(["bench", "models", *sys.argv[1:]])
