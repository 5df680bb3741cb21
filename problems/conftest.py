"""`pytest problems/<slug>` grades work/<slug>/solution.py if it is there, else the starter."""

from infra_lab.practice.pytest_plugin import (  # noqa: F401
    pytest_runtest_call,
    pytest_runtest_makereport,
    solution,
    use_profile,
)

use_profile(derandomize=True)
