"""Reading and inference of tables, timed."""
