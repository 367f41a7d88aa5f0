"""`python -m sharpmax` is the command `sharpmax`."""

from sharpmax.cli import main

if __name__ == "__main__":
    main()
