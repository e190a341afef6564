"""Keys of a body, for the body scan; see scan_keys.pxd. Nothing of it is for Python."""
