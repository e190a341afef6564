"""Fill both pipes, so many bytes each, turn by turn: whoever reads only one of them waits for ever."""

import os
import sys

left = int(sys.argv[1])
while left > 0:
    for fd in (1, 2):
        piece = b"o" * min(left, 65536)
        while piece:
            piece = piece[os.write(fd, piece) :]
    left -= 65536
