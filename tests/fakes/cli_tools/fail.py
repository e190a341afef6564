"""Exit with a code after saying so: code, text for standard error, text for standard output."""

import sys

if len(sys.argv) > 3:
    print(sys.argv[3], flush=True)
sys.stderr.write(sys.argv[2])
sys.stderr.flush()
sys.exit(int(sys.argv[1]))
