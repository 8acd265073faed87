"""JSON, Avro and Protobuf bodies as columns, by functions that Spark has itself.

    python examples/bodies_on_spark.py [NAMESERVER] [--format json] [--format avro] [--format protobuf]

Sends orders in each of the formats (default: json), and reads them as a table. JSON needs nothing more. Avro
and Protobuf are modules of Spark that its package on PyPI leaves out: `spark.jars.packages` fetches them from
Maven Central once, as `spark-submit --packages` does.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys

import pyspark
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, from_json

from ledgermq.client import Message
from ledgermq.client.sync import Admin, Producer
from ledgermq.spark_jobs import register

#: Module of a format. Its version is that of Spark.
MODULE = "org.apache.spark:spark-{format}_2.13:{version}"
AVRO_SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "amount", "type": "double"}]}"""
#: What `protoc --include_imports --descriptor_set_out=FILE order.proto` writes for
#: message Order { int64 id = 1; double amount = 2; }
FIELD = descriptor_pb2.FieldDescriptorProto
ORDER = descriptor_pb2.DescriptorProto(
    name="Order",
    field=[
        FIELD(name="id", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL),
        FIELD(name="amount", number=2, type=FIELD.TYPE_DOUBLE, label=FIELD.LABEL_OPTIONAL),
    ],
)
ORDER_FILE = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3", message_type=[ORDER])
DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[ORDER_FILE]).SerializeToString()


def json_body(number: int, amount: float) -> bytes:
    return b'{"id": %d, "amount": %.1f}' % (number, amount)


def avro_body(number: int, amount: float) -> bytes:
    """Encode one plain datum (no container file), for 0 <= number < 64: a varint of one byte, eight bytes."""
    return struct.pack("<Bd", number * 2, amount)


def protobuf_body(number: int, amount: float) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(ORDER_FILE)
    order = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("Order")
    )  # protoc generates such a class
    return bytes(order(id=number, amount=amount).SerializeToString())


def json_column() -> Column:
    """Fields of bodies that are something else are null."""
    return from_json(col("body").cast("string"), "id BIGINT, amount DOUBLE")


def avro_column() -> Column:
    from pyspark.sql.avro.functions import from_avro

    return from_avro("body", AVRO_SCHEMA)


def protobuf_column() -> Column:
    from pyspark.sql.protobuf.functions import from_protobuf

    return from_protobuf("body", "Order", binaryDescriptorSet=DESCRIPTORS)  # or descFilePath=FILE


FORMATS = {
    "json": (json_body, json_column),
    "avro": (avro_body, avro_column),
    "protobuf": (protobuf_body, protobuf_column),
}


def send(nameserver: str, name: str) -> str:
    """Send orders in a format to a topic of their own; return its name."""
    topic, encode = f"{name}-orders", FORMATS[name][0]
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic(topic, queues=1, if_not_exists=True)
        producer.send_batch([Message(topic, encode(number, number * 1.5)) for number in range(3)])
    return topic


def main(nameserver: str, formats: list[str], version: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this interpreter
    builder = SparkSession.builder.master("local[1]")
    modules = [MODULE.format(format=name, version=version) for name in formats if name != "json"]
    if modules:
        builder = builder.config("spark.jars.packages", ",".join(modules))
    spark = builder.getOrCreate()
    register(spark)
    for name in formats:
        options = {"nameservers": nameserver, "subscribe": send(nameserver, name)}
        messages = spark.read.format("ledgermq").options(**options).load()
        orders = messages.select("offset", FORMATS[name][1]().alias("order")).select("offset", "order.*")
        orders.show()
        assert {(row.id, row.amount) for row in orders.collect()} == {(0, 0.0), (1, 1.5), (2, 3.0)}
        print(f"{name}: as they were sent")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nameserver", nargs="?", default="127.0.0.1:9876")
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument("--modules-version", default=pyspark.__version__)
    given = parser.parse_args()
    main(given.nameserver, given.format or ["json"], given.modules_version)
