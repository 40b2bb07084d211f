"""What every Python that a test starts does first: conftest.py puts this directory on their path.

At its end Python looks for garbage in all that it holds, which takes 0.4 s with torch. Nothing looks at what it finds.
"""

import atexit
import gc

atexit.register(gc.freeze)
