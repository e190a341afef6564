"""Reads frames and their bodies for compiled code; see frame_reader.pxd. Nothing of it is for Python."""
