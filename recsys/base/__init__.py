"""What every room stands on: files, errors of files, versions, the machine."""
