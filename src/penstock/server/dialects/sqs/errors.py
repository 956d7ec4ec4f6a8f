"""SQS's errors: the one table of their names, codes and statuses, and what our own errors are called in SQS."""

from __future__ import annotations

from penstock.errors import (
    BadInput,
    BadMessage,
    BadName,
    BadSetting,
    PenstockError,
    QueueExists,
    QueueNotFound,
    StoreBusy,
    StoreError,
    Unsupported,
)
from penstock.server.http.request_response import Grant, Refused

_SIMPLE = "AWS.SimpleQueueService."
_OF_SQS = (
    "QueueDeletedRecently",
    "MessageNotInflight",
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidBatchEntryId",
    "TooManyEntriesInBatchRequest",
    "UnsupportedOperation",
)

ACCESS = {
    "AccessDeniedException": ("AccessDenied", 403),
    "MissingAuthenticationTokenException": ("MissingAuthenticationToken", 403),
    "IncompleteSignatureException": ("IncompleteSignature", 400),
    "UnrecognizedClientException": ("InvalidClientTokenId", 403),
    "InvalidSignatureException": ("SignatureDoesNotMatch", 403),
    "ExpiredTokenException": ("ExpiredToken", 403),
}
"""Errors that AWS finds before a request reaches SQS."""

CODES: dict[str, tuple[str, int]] = {
    **{shape: (_SIMPLE + shape, 400) for shape in _OF_SQS},
    "QueueDoesNotExist": (_SIMPLE + "NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "PurgeQueueInProgress": (_SIMPLE + "PurgeQueueInProgress", 403),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 404),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidIdFormat": ("InvalidIdFormat", 400),
    "OverLimit": ("OverLimit", 403),
    "RequestThrottled": ("RequestThrottled", 403),
    "InvalidSecurity": ("InvalidSecurity", 403),
    "InvalidAddress": ("InvalidAddress", 404),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
    "InvalidParameterValueException": ("InvalidParameterValue", 400),
    "MissingRequiredParameterException": ("MissingParameter", 400),
    "UnknownOperationException": ("InvalidAction", 400),
    "InvalidAction": ("InvalidAction", 400),
    "SerializationException": ("MalformedInput", 400),
    **ACCESS,
    "InternalFailure": ("InternalFailure", 500),
    "ServiceUnavailable": ("ServiceUnavailable", 503),
}
"""Of each kind of error: the code of the Query protocol, which the header x-amzn-query-error has too, and the status."""

STATUSES = {
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "InvalidAddress",
    429: "RequestThrottled",
    500: "InternalFailure",
    503: "ServiceUnavailable",
}
"""What a refusal by another part of the server is called, by its status."""


class SqsError(Refused):
    """An error of SQS. ``shape`` is its name in the JSON protocol; ``query_text`` what the Query protocol says in place of
    ``text``."""

    def __init__(self, shape: str, text: str, query_text: str | None = None, status: int | None = None) -> None:
        self.code, usual = CODES.get(shape, (shape, 400))
        """Its name in the Query protocol, and in a batch's failed entries."""
        super().__init__(usual if status is None else status, text)
        self.shape = shape
        self.text = text
        self.query_text = text if query_text is None else query_text


def no_queue() -> SqsError:
    return SqsError(
        "QueueDoesNotExist",
        "The specified queue does not exist.",
        "The specified queue does not exist for this wsdl version.",
    )


MOST_SHOWN = 4096
"""Characters of a client's value in an error. AWS shows all of it."""


def invalid(name: str, value: object, reason: str) -> SqsError:
    """The value of a parameter is not allowed."""
    text = f"Value {str(value)[:MOST_SHOWN]} for parameter {name} is invalid. Reason: {reason}"
    return SqsError("InvalidParameterValueException", text)


def missing(name: str) -> SqsError:
    return SqsError("MissingRequiredParameterException", f"The request must contain the parameter {name}.")


def denied(grant: Grant, account: str, operation: str, arn: str) -> SqsError:
    action = f"sqs:{operation.lower().removesuffix('batch')}"
    user = f"arn:aws:iam::{grant.account or account}:user/{grant.name}"
    text = f"User: {user} is not authorized to perform: {action} on resource: {arn}"
    return SqsError("AccessDeniedException", f"{text} because no identity-based policy allows the {action} action")


def translate(error: PenstockError) -> SqsError:
    """One of our own errors in the words of SQS."""
    if isinstance(error, QueueNotFound):
        return no_queue()
    for kind, shape in _OURS:
        if isinstance(error, kind):
            return SqsError(shape, str(error))
    return SqsError("InternalFailure", str(error))


def of_refusal(refusal: Refused) -> SqsError:
    """A refusal by another part of the server. It keeps its status."""
    if isinstance(refusal, SqsError):
        return refusal
    return SqsError(STATUSES.get(refusal.status, "InvalidParameterValueException"), str(refusal), status=refusal.status)


_OURS: tuple[tuple[type[PenstockError], str], ...] = (
    (QueueExists, "QueueNameExists"),
    (Unsupported, "UnsupportedOperation"),
    (BadMessage, "InvalidMessageContents"),
    (BadName, "InvalidParameterValueException"),
    (BadSetting, "InvalidAttributeValue"),
    (BadInput, "InvalidParameterValueException"),
    (StoreBusy, "ServiceUnavailable"),
    (StoreError, "InternalFailure"),
)
