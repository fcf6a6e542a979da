"""Submitting DICOM objects over HTTP: one file, or several as STOW-RS sends them (PS3.18 10.5).

Each object takes the way of one that came by C-STORE, with the same checks, and is synced before the answer. An object
is stored when its part is complete: if the request fails after it, its sender sends it again, and it is kept once.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
from fastapi import APIRouter, Query
from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.responses import Response

from node.dicom.file_head import FileMeta
from node.errors import Refused
from node.receive.intake import IncomingFile, Intake, TooLong, tell_refused
from node.store.received import Instance
from node.web import request_body
from node.web.dependencies import Parts
from node.web.problems import Problem, responses
from node.web.request_body import MIB, RelatedParts
from node.web.users import audit

MOST_BYTES: Final = 512 * MIB
"""Of one request; a longer study is sent in several."""
_MOST_FILES: Final = 1000
_DICOM, _RELATED, _JSON = "application/dicom", "multipart/related", "application/dicom+json"
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
_BODY: Final[dict[str, object]] = {
    "requestBody": {
        "required": True,
        "description": f"DICOM files (PS3.10), at most {MOST_BYTES // MIB} MiB and {_MOST_FILES} in one request",
        "content": {_DICOM: _BINARY, _RELATED: _BINARY},
    }
}
_ANSWERS: Final[dict[int | str, dict[str, object]]] = {
    status: {"description": text, "content": {_JSON: {"schema": {"type": "object"}}}}
    for status, text in ((200, "all are stored"), (202, "some are stored"), (409, "none is stored"))
}

_DESCRIBED: Final[dict[str, Any]] = {
    "response_class": Response,
    "openapi_extra": _BODY,
    "responses": {**responses(403, 415, 422, 503), **_ANSWERS},
}


class _Submission:
    """Stores the files of one request while its body arrives; for one thread at a time.

    kept: the objects on the spool
    """

    def __init__(self, intake: Intake, content_type: str, *, is_stat: bool) -> None:
        self.kept: list[Instance] = []
        self._stored: list[FileMeta] = []
        self._failed: list[tuple[FileMeta | None, int]] = []  # with the reason (PS3.18 I.2.2); None if unknown
        self._reasons: list[str] = []  # of the failed ones, for the log
        self._intake, self._is_stat = intake, is_stat
        self._file: IncomingFile | None = None
        self._count = 0
        self._parser: RelatedParts | None = None
        kind, options = parse_options_header(content_type)
        if kind == _DICOM.encode():
            self._begin()
            return
        if kind != _RELATED.encode() or options.get(b"type", b"").lower() != _DICOM.encode():
            raise Problem(415, f'send {_DICOM}, or {_RELATED}; type="{_DICOM}"')
        self._parser = RelatedParts(options.get(b"boundary", b""), begin=self._begin, add=self._add, keep=self._keep)

    def write(self, part: bytes) -> None:
        """Take a part of the body. Raises Problem."""
        try:
            if self._parser is None:
                self._add(part)
            else:
                self._parser.write(part)
        except TooLong as error:
            raise Problem(413, str(error)) from error

    def end(self) -> None:
        """Finish at the end of the body. Raises Problem if that is not the end of a part."""
        if self._parser is None:
            self._keep()
            return
        self._parser.end()
        if not self._count:
            raise Problem(400, f"the body is not {_RELATED} with this boundary, or has no part (RFC 2387)")

    def discard(self) -> None:
        """Remove a file that is not complete."""
        if self._file is not None:
            self._file.discard()
            self._file = None

    def tell(self) -> None:
        """Log the refused files of the request in one line."""
        if self._reasons:
            tell_refused(", ".join(sorted({*self._reasons})), times=len(self._reasons))

    def answer(self) -> Response:
        """Return the Store Instances Response Module (PS3.18 10.5.3, I.2.1) as DICOM JSON (PS3.18 F)."""
        sequences = {
            "00081198": [{**_reference(meta), "00081197": _us(why)} for meta, why in self._failed if meta is not None],
            "00081199": [{**_reference(meta), "00081190": {"vr": "UR"}} for meta in self._stored],
            "0008119A": [{"00081197": _us(why)} for meta, why in self._failed if meta is None],
        }
        filled = {tag: {"vr": "SQ", "Value": items} for tag, items in sequences.items() if items}
        status = 200 if not self._failed else 202 if self._stored else 409
        return Response(json.dumps({"00081190": {"vr": "UR"}} | filled), status_code=status, media_type=_JSON)

    def _begin(self) -> None:
        self._count += 1
        if self._count > _MOST_FILES:
            raise Problem(413, f"the request has more than {_MOST_FILES} objects; send less at a time")
        self._file = IncomingFile(self._intake)

    def _add(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def _keep(self) -> None:
        """Store the file that is complete."""
        if self._file is None:
            return
        try:
            self.kept.append(self._file.keep(is_stat=self._is_stat, tell=self._reasons.append).instance)
        except Refused as error:
            self._failed.append((self._file.meta, error.status))
        else:
            if self._file.meta is not None:
                self._stored.append(self._file.meta)
        finally:
            self.discard()


router = APIRouter(prefix="/api/v1", tags=["submit"])


@router.post("/instances", **_DESCRIBED)
@router.post("/dicomweb/studies", **_DESCRIBED)
async def submit(
    parts: Parts,
    request: Request,
    priority: Annotated[Literal["routine", "stat"], Query(description="stat: read the studies first")] = "routine",
) -> Response:
    """Store DICOM objects, to be read. The second path is STOW-RS for clients that append `/studies` to an address."""
    intake = parts.intake()
    if intake is None:
        raise Problem(503, "this process receives nothing; send to one that does, or by C-STORE")
    submission = _Submission(intake, request.headers.get("content-type", ""), is_stat=priority == "stat")
    try:
        await request_body.take(request, submission.write)
        await anyio.to_thread.run_sync(submission.end)
    finally:
        submission.discard()
        submission.tell()
    for kept in submission.kept:
        audit(request, "film.submitted", study=kept.study_uid, sop_instance_uid=kept.sop_instance_uid)
    return submission.answer()


def _reference(meta: FileMeta) -> dict[str, object]:
    return {
        "00081150": {"vr": "UI", "Value": [meta.sop_class_uid]},
        "00081155": {"vr": "UI", "Value": [meta.sop_instance_uid]},
    }


def _us(value: int) -> dict[str, object]:
    return {"vr": "US", "Value": [value]}
