"""Run drkit as one process of torchrun's with a fault: arguments ROOT RANK AT ERROR, then drkit's.

The process of this rank counts its file operations below ROOT, and the one with the number AT fails with ERROR (an
errno; 0: the process is killed). With AT 0 nothing fails. Each process that lives to its end writes its number of
operations to ROOT.RANK.
"""

import ctypes
import os
import sys
from pathlib import Path

from drkit_cli.main import _status


def main():
    root, rank, at, error, *arguments = sys.argv[1:]
    sys.argv = ["drkit", *arguments]
    faults, own = ctypes.CDLL(None), os.environ["RANK"]
    faults.faults_arm(root.encode(), ctypes.c_long(int(at) if own == rank else 0), int(error))
    code = _status()
    count = faults.faults_count()
    faults.faults_arm(b"", ctypes.c_long(0), 0)
    Path(f"{root}.{own}").write_text(str(count))
    sys.exit(code)


if __name__ == "__main__":
    main()
