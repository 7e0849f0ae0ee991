"""The values of columns: Arrow types, texts, numbers, IDs, lists, moments."""
