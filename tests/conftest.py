"""Settings of all tests: hypothesis asserts no times."""

import hypothesis

hypothesis.settings.register_profile("drkit", deadline=None)
hypothesis.settings.load_profile("drkit")
