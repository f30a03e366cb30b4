"""Management API: the two forms in which RabbitMQ accepts definitions, JSON and an uploaded file.

Owns: the content type of ``POST /api/definitions``. Must not touch: what the document says.
"""

import asyncio
from typing import Final

from holtmq.http.engine.endpoints import Call
from holtmq.http.engine.errors import Refusal

_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"


async def uploaded(call: Call) -> bytes:
    """The document of a request; raises 415 for another content type, as RabbitMQ does."""
    given = call.request.header(b"content-type") or ""
    match given.partition(";")[0].strip().lower():
        case "application/json":
            return call.body
        case "multipart/form-data":  # a web form with a file, or ``curl --form``
            return await asyncio.to_thread(_file_of_form, given, call.body)
    was = f"not '{given}'" if given else "the request has none"
    raise Refusal(415, f"the content-type of definitions is {_JSON}, or {_FORM} with a part 'file': {was}")


def _file_of_form(content_type: str, body: bytes) -> bytes:
    # Slow to load, and only such a form needs them.
    from email import policy
    from email.message import Message
    from email.parser import BytesParser

    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=policy.HTTP).parsebytes(head + body)
    parts = form.get_payload()
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Message) and part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            return content if isinstance(content, bytes) else b""
    raise Refusal(400, f"no part 'file' in this {_FORM}: curl --form file=@definitions.json sends one")
