"""Run commands in a folder: `python -m tests.runs.read_only SCRATCH`, the commands as JSON on standard input.

Prints for each command its exit code and what it printed, as JSON.
"""

import json
import os
import sys
from pathlib import Path

from drkit.core.registry import installed
from drkit_cli.main import main
from tests.warm import WARM, import_modules


def call(arguments, scratch):
    """Exit code, and standard output and error together, of a command in a child."""
    log = scratch / "log"
    child = os.fork()
    if not child:
        os.chdir(scratch)
        handle = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.argv = ["drkit", *arguments]
        code = 1
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, log.read_text()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    import_modules(WARM.split())  # once, and not in each child
    assert installed()
    print(json.dumps([call(arguments, folder) for arguments in json.load(sys.stdin)]))
