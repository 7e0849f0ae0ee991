"""MLPerf's recommendation models under MLPerf's load generator."""
