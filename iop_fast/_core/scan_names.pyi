"""Names in request bodies, for compiled code: see scan_names.pxd."""
