"""Found as ``torchrec`` by the processes that a script starts: puts the hook's module into its own place."""

import importlib
import sys

if __name__ == "torchrec":
    from recsys.as_torchrec import install

    del sys.modules["torchrec"]
    install()
    importlib.import_module("torchrec")
