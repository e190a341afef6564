"""The grammar of a JSON body, for the body scan; see scan_machine.pxd. Nothing of it is for Python."""
