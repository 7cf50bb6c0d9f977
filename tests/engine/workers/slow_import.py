"""A module whose import takes a while."""

import time

time.sleep(3.0)
