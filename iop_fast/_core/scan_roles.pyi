"""Roles of what stands in a body, for the body scan; see scan_roles.pxd. Nothing of it is for Python."""
