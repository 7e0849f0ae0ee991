"""recsys-train beside public trainers, each in a process of its own."""
