"""The server process: command line, start and stop, settings check, admin port."""
