"""Entry script for spark-submit, which runs a file, not a module.

spark-submit --py-files ledgermq-spark.zip submit.py DUMPS --out DIR
"""

import sys

from ledgermq.spark_jobs.verify import main

if __name__ == "__main__":
    sys.exit(main())
