"""What the packages of parts import beside torch, which takes most of the time of `from drkit.losses import ..`."""

import ast
import subprocess
import sys

PROBE = """
import sys
import torch
before = {name.partition(".")[0] for name in sys.modules}
from drkit.maskers import *
from drkit.decoders import *
from drkit.losses import *
print({name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names)
"""


def test_parts_import_little_beside_torch():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert {"attr", "attrs", "drkit"} <= ast.literal_eval(done.stdout) <= {"attr", "attrs", "drkit", "pluggy"}
