"""Say standard input back as JSON lines, a word each with a pause before it, and count the words at the end.

Arguments: milliseconds of a pause, and a file: while it exists, nothing is said.
"""

import json
import os
import re
import sys
import time

told = sys.stdin.read()
while os.path.exists(sys.argv[2]):
    time.sleep(0.005)
words = re.findall(r"\S+\s*", told)
for word in words:
    time.sleep(int(sys.argv[1]) / 1000)
    print(json.dumps({"text": word}), flush=True)
print(json.dumps({"done": "stop", "in": len(words), "out": len(words)}), flush=True)
