"""Parquet files of answers, written page by page.

PyArrow's writer takes more than twice as long for them: it goes through the levels of lists one by one, and most lists
of an answer log have one element. Files are read with PyArrow.
"""
