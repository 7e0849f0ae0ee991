"""Options of all commands: each is declared once, and given by flag, environment or TOML file."""
