"""TorchRec's import paths, answered by this library: code that imports ``torchrec`` runs as it is.

``names/*.toml`` is the one table of TorchRec's public names: each is defined here, or left out for a reason. It is used
in three ways, always on request:

* ``recsys.as_torchrec.install()`` before the first ``import torchrec``;
* ``python -m recsys.as_torchrec script.py …`` runs a script;
* ``python -m recsys.as_torchrec --rewrite path/`` rewrites the imports in files.
"""

from recsys.as_torchrec.hook import install, uninstall

__all__ = ["install", "uninstall"]
