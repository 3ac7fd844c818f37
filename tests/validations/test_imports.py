import subprocess
import sys


def test_the_expectations_library_is_imported_only_when_something_is_judged():
    program = "import sys, phasewise.validations.verdict, phasewise.tasks.report.html; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
