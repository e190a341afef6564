"""Print one line of so many bytes."""

import sys

sys.stdout.write("x" * int(sys.argv[1]) + "\n")
