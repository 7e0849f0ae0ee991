"""Reading the files of a table as pieces, which are consecutive rows."""
