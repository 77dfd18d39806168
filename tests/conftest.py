"""Settings of all tests: hypothesis asserts no times; test processes side by side (`-n auto`) have a thread each."""

import os

import hypothesis

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is there; processes that a test starts take it over
    os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("drkit", deadline=None)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drkit"))
