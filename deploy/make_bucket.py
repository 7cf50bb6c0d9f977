"""Make the bucket that MLflow keeps files in, where it is not there yet: the address is MLflow's own variable."""

from __future__ import annotations

import os
import time
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import ClientError, HTTPClientError

PATIENCE = 120.0
"""Seconds to wait for a store that is only being started."""


def make_bucket(patience: float = PATIENCE) -> str:
    """The name of the bucket of MLFLOW_ARTIFACTS_DESTINATION, which is there afterwards.

    Args:
        patience: seconds to wait for a store that does not answer yet.

    Raises:
        ClientError: the store refuses the keys, or the bucket is another's. HTTPClientError: it does not answer.
    """
    name = urlsplit(os.environ["MLFLOW_ARTIFACTS_DESTINATION"]).netloc
    store = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None)
    deadline = time.monotonic() + patience
    while True:
        try:
            if not is_there(store, name):
                # Of the first region the name must not be given.
                region = store.meta.region_name
                other = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
                store.create_bucket(Bucket=name, **other)
            return name
        except (ClientError, HTTPClientError) as error:
            answered = isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500
            if answered or time.monotonic() > deadline:
                raise
            time.sleep(1)


def is_there(store: object, name: str) -> bool:
    """Whether a bucket is there, and may be used."""
    try:
        store.head_bucket(Bucket=name)  # type: ignore[attr-defined]
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return False
        raise
    return True


if __name__ == "__main__":
    print(f"bucket {make_bucket()} is there")
