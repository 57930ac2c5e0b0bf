"""Fetch the jars with which Spark 4.2 opens a store on S3 (690 MB): `python tests/audit/s3_jars.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from txcore_conformance.brokers import maven

# Of one release: pyspark 4.2 contains Hadoop 3.5.0, whose project names the other three.
JARS = (
    ("org.apache.hadoop", "hadoop-aws", "3.5.0"),
    ("software.amazon.awssdk", "bundle", "2.35.4"),
    ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
    ("org.wildfly.openssl", "wildfly-openssl", "2.2.5.Final"),
)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    maven.fetch_alone(folder, *JARS)
