"""The folder that ``python -m recsys.as_torchrec`` puts into ``sys.path`` and ``PYTHONPATH``.

The processes that a script starts find ``torchrec`` here, and with it the hook.
"""
