"""Pipeline jobs. Each is a function here and a command of `leasehold pipeline`.

from leasehold.spark.jobs.load import load

load(spark, "emails", "letters.csv", format="csv", id="address")
"""
