"""The browser that tests look at pages with, where this machine has one."""

import shutil

import pytest

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium, chromium-browser or google-chrome")
