"""For training loops of any kind: which rows a training changes, and servers that follow it."""

from recsys.training.publisher import Publisher as Publisher
from recsys.training.publisher_process import PublishStatus as PublishStatus
from recsys.training.touched import TouchedRows as TouchedRows
