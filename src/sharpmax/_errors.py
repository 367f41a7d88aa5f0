"""The base class of the errors that sharpmax defines."""


class SharpmaxError(Exception):
    """The base class of all errors that sharpmax defines."""
