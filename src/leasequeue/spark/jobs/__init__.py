"""Pipeline jobs. Each is a function here and a command of `leasequeue pipeline`.

from leasequeue.spark.jobs.load import load

load(spark, "emails", "letters.csv", format="csv", id="address")
"""
