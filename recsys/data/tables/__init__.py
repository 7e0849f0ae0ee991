"""Tables of examples: CSV, TSV and Parquet files, folders of them, and data frames."""
