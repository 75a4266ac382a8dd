from penstock.spark.pipelines.progress import brief


def test_of_a_trace_the_line_that_says_why_is_kept() -> None:
    trace = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 3, in read
penstock.spark.errors.DataLost: topic t, partition 0: offsets 1 to 2 are gone

  at org.apache.spark.Somewhere
"""
    assert brief(trace) == "topic t, partition 0: offsets 1 to 2 are gone"
    assert brief("[COLUMN] no such column\n  at line 3") == "[COLUMN] no such column"
