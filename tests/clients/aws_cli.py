"""Calls of the aws command line through its entry point, since each start of the program takes a second."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from awscli.clidriver import create_clidriver
from expecting import PREFIX, URL

driver = create_clidriver()
done: set[str] = set()


def aws(operation: str, *arguments: str) -> Any:
    """Run `aws sqs OPERATION`, as the shell would."""
    done.add(operation)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = driver.main(["sqs", operation, *arguments, "--endpoint-url", URL, "--output", "json"])
    if code:
        sys.exit(f"aws sqs {operation} {arguments} ended with {code}: {err.getvalue()}")
    return json.loads(out.getvalue() or "{}")


def create(name: str, **attributes: str) -> str:
    return str(aws("create-queue", "--queue-name", f"{PREFIX}{name}", "--attributes", json.dumps(attributes))["QueueUrl"])


def attribute(url: str, name: str) -> str:
    found = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", name)["Attributes"]
    return str(found[name])
