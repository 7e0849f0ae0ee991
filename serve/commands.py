"""The commands of clients: recsys-predict, recsys-admin and recsys-bench.

Their modules are imported when they run: numpy and gRPC may not fit into the memory that a process may have.
"""

from recsys.base.cli import command

predict = command("recsys-predict", "serve.tools.predict", needs_torch=False)
admin = command("recsys-admin", "serve.tools.admin", needs_torch=False)
bench = command("recsys-bench", "serve.bench.cli", needs_torch=False)
