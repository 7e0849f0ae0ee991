"""Commands beside the server: predict, admin, probe."""
