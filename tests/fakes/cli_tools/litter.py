"""Leave files in its directory, some below one that cannot be written to, and a link that leads out of it."""

import os
import sys

os.makedirs("a/b")
for name in ("one", "a/two", "a/b/three"):
    with open(name, "w") as file:
        file.write("x")
os.symlink(sys.argv[1], "outside")
os.chmod("a/b", 0o500)
os.chmod("a", 0o500)
print(os.getcwd(), end="")
