"""``python -m serve.probe``: see ``serve.tools.probe``."""

import sys

from serve.tools.probe import main

if __name__ == "__main__":
    sys.exit(main())
