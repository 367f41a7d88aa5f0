"""The base class of the errors that sharpmax defines."""


class SharpmaxError(Exception):
    """An error that sharpmax itself defines; catch it to catch all of them."""
