"""Heads of a form's parts, for the scan of forms; compiled code cimports form_heads.pxd."""

class BadPart(Exception):
    """The head of a part is refused; the text says why. It never leaves the scan."""
