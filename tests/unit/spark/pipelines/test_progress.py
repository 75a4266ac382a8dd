from penstock.spark.pipelines.progress import cause


def test_the_cause_of_a_stack_trace_is_found() -> None:
    trace = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 3, in read
penstock.spark.errors.DataLost: topic t, partition 0: offsets 1 to 2 are gone

  at org.apache.spark.Somewhere
"""
    assert cause(trace) == "topic t, partition 0: offsets 1 to 2 are gone"
    assert cause("[COLUMN] no such column\n  at line 3") == "[COLUMN] no such column"
