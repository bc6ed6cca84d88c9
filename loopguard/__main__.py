"""``python -m loopguard``."""

import sys

from loopguard.cli import main

sys.exit(main())
