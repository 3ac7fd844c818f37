"""`python -m phasewise.trainer.preflight SPEC.json RESULT.json`: compile one step for a TPU slice on a machine without TPUs.

Requires `JAX_PLATFORMS=cpu` and the wheel `libtpu`. Exit code 0: the result is written, also if the compiler refused the step for its
memory. 1: the compiler failed. 2: wrong usage, or a step that does not fit its mesh. Standard error has the reason in one line.
"""

import os
import sys
import tempfile
from pathlib import Path

from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, print_refusal, refused_by_system
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.preflight.spec import Spec


def main(arguments: list[str]) -> int:
    """Read the specification, compile, write the result, and return the exit code."""
    paths = [argument for argument in arguments if argument != "--with-parent"]
    if len(paths) != 2:
        print("usage: python -m phasewise.trainer.preflight SPEC.json RESULT.json [--with-parent]", file=sys.stderr)
        return ExitCode.USAGE
    if "--with-parent" in arguments:
        from phasewise.trainer.process.child_process import end_with_parent

        end_with_parent(ExitCode.REFUSED)
    from phasewise.trainer.preflight.compiler import examine

    try:
        spec = Spec.model_validate(read_json(Path(paths[0])))
        with refused_by_system(tempfile.gettempdir()), tempfile.TemporaryDirectory(prefix="phasewise-preflight-") as dump:
            write_json(Path(paths[1]), examine(spec, Path(dump)).model_dump(mode="json"))
    except PhasewiseError as error:
        print_refusal(f"preflight: {error}")
        return error.exit_code
    except (OSError, ValueError) as error:
        print(f"preflight: {ConfigError(error)}", file=sys.stderr)
        return ExitCode.USAGE
    return ExitCode.DONE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # do not wait for an abandoned compiler
