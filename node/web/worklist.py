"""The page of the worklist: filters, an order, a page of 50 studies; for who may see patients, also a search by them.

A search is posted, kept in memory, and named in the address by a random name: no patient stands in an address, which
browsers and proxies remember.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from models.contract import FindingState
from node.domain import DELIVERY_STATES, DeliveryState
from node.outputs import vocabulary
from node.store.worklist import CHANGED, PATIENT_ORDERS, URGENT, WorklistFilter, patients_of
from node.web import studies, words
from node.web.access import SEARCH
from node.web.dependencies import Parts, WebParts
from node.web.page import render
from node.web.patients import LONGEST_SEARCH, are_of_one, readable, sees_patients
from node.web.studies import Worklist
from node.web.users import audit_list, name_of

_PAGE_STUDIES: Final = 50
_MOST_PAGES: Final = 200_000
_LONGEST_UID: Final = 64
_FIELDS: Final = ("state", "finding", "destination", "from", "to", "sort")
_MOST_FIELDS: Final = 20
_NOTHING: Final = Worklist(studies=(), total=0)
_ENDED: Final = "The node has forgotten this search, as it does at each start. Type it again."
_NO_NAME_IN_ADDRESS: Final = "An address may not name a patient. Type what you search for in the field above."
_DIGITS_ALONE: Final = (
    "Studies are found by digits of their UID alone, at most 64. This list holds no names, patient numbers or "
    "accession numbers: look the study up in your archive, and type digits of its Study Instance UID here."
)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_COLUMNS: Final = (
    ("patient", "Patient"),
    ("id", "ID"),
    ("accession", "Accession"),
    ("date", "Study date"),
    ("modality", "Modality"),
    ("station", "Station"),
)
"""Sort orders for users who see patients, in the order of the columns: key and words."""

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The query of an address; search: the name of a search; refused: why nothing is listed, or ""."""

    wanted: WorklistFilter
    search: str
    page: int
    refused: str

    def address(self, **changes: str | int) -> str:
        """Return the address of this page with some keys changed; another filter or order begins at its first page."""
        wanted = self.wanted
        order = f"{'-' if wanted.is_reversed else ''}{wanted.order}"
        keys: dict[str, str | int] = {
            "search": self.search,
            "state": wanted.state,
            "q": wanted.uid,
            "finding": wanted.finding,
            "destination": wanted.destination,
            "from": readable(wanted.since, "StudyDate"),
            "to": readable(wanted.until, "StudyDate"),
            "sort": "" if order == CHANGED else order,
            **changes,
        }
        query = urlencode({name: value for name, value in keys.items() if value != ""})
        return f"/?{query}" if query else "/"


@router.get("/")
def show_worklist(parts: Parts, request: Request) -> Response:
    """Show the worklist. An invalid filter is refused in words, and lists nothing."""
    sees = sees_patients(request, parts.settings.http)
    asked = _asked(parts, request, sees=sees)
    listed = _NOTHING
    if not asked.refused:
        first = (asked.page - 1) * _PAGE_STUDIES
        listed = studies.worklist(parts, asked.wanted, limit=_PAGE_STUDIES, offset=first)
    uids = [study.uid for study in listed.studies]
    found = patients_of(parts.settings.storage, uids) if sees else {}
    if sees:
        audit_list(request, studies=len(listed.studies))
    about = {
        "worklist": listed,
        "asked": asked,
        "filter": asked.wanted,
        "address": asked.address,
        "is_filtered": replace(asked.wanted, order=CHANGED, is_reversed=False, urgencies={}) != WorklistFilter()
        or asked.search,
        "since": readable(asked.wanted.since, "StudyDate"),
        "until": readable(asked.wanted.until, "StudyDate"),
        "sees_patients": sees,
        "patients": found,
        "are_of_one": are_of_one,
        "readable": readable,
        "columns": _COLUMNS,
        "findings": vocabulary.names(parts.prompts()),
        "destinations": [destination.name for destination in parts.settings.destinations],
        "longest_search": LONGEST_SEARCH,
        "pages": max(1, -(-listed.total // _PAGE_STUDIES)),
        "states": words.STUDY_STATES,
        "possible": vocabulary.STATES[FindingState.INDETERMINATE],
        "silent": [vocabulary.STATES[state] for state in (FindingState.ABSENT, FindingState.LEFT_OUT)],
        "filters": words.FILTERS,
        "faults": words.FAULTS,
        "delivery_states": (*DELIVERY_STATES, DeliveryState.ABANDONED),
        "listener": parts.settings.listener,
    }
    return render(parts, request, "worklist.html", about)


@router.post(SEARCH)
async def search(parts: Parts, request: Request) -> Response:
    """Store the query under a random name, and redirect to the worklist with this name in its address."""
    async with request.form(max_fields=_MOST_FIELDS, max_files=0) as form:
        text, *values = (str(form.get(name, "")) for name in ("text", *_FIELDS))
    name = parts.searches.keep(text, user=name_of(request)) if sees_patients(request, parts.settings.http) else ""
    keys = {"search": name, **dict(zip(_FIELDS, values, strict=True))}
    query = urlencode({key: value for key, value in keys.items() if value})
    return RedirectResponse(f"/?{query}" if query else "/", status_code=303)


def _asked(parts: WebParts, request: Request, *, sees: bool) -> _Asked:
    """Read the address; sees: whether patients may be searched and sorted by."""
    query = request.query_params
    number = query.get("page", "1")
    page = max(1, int(number)) if number.isascii() and number.isdigit() and len(number) <= 6 else 1
    name, order = query.get("search", ""), query.get("sort", "")
    text = parts.searches.find(name, user=name_of(request)) if sees and name else ""
    refused = _refused(parts, query, sees=sees) or (_ENDED if text is None else "")
    wanted = WorklistFilter(
        state=query.get("state", ""),
        uid=query.get("q", "").strip(),
        finding=query.get("finding", ""),
        destination=query.get("destination", ""),
        since=query.get("from", "").replace("-", ""),
        until=query.get("to", "").replace("-", ""),
        text=text or "",
        order=order.removeprefix("-") or CHANGED,
        is_reversed=order.startswith("-"),
        urgencies=vocabulary.urgencies(parts.prompts()),
    )
    return _Asked(
        wanted=WorklistFilter() if refused else wanted,  # a refused text may be a name, and is not shown again
        search=name if text else "",
        page=min(page, _MOST_PAGES),
        refused=refused,
    )


def _refused(parts: WebParts, query: QueryParams, *, sees: bool) -> str:
    """Return why the filter is invalid; "" if it is valid."""
    digits, state = query.get("q", "").strip(), query.get("state", "")
    if state and state not in words.FILTERS:
        return f"There is no such state; choose one of: {', '.join(words.FILTERS.values())}."
    if len(digits) > _LONGEST_UID or not set(digits) <= set("0123456789."):
        return _NO_NAME_IN_ADDRESS if sees else _DIGITS_ALONE
    known = {
        "finding": vocabulary.names(parts.prompts()),
        "destination": [destination.name for destination in parts.settings.destinations],
        "sort": [URGENT, *(f"{sign}{order}" for order in PATIENT_ORDERS if sees for sign in ("", "-"))],
    }
    wrong = [name for name, values in known.items() if query.get(name, "") not in ("", *values)]
    wrong += [name for name in ("from", "to") if (day := query.get(name)) and not (sees and _DAY.fullmatch(day))]
    return f"This list cannot be filtered or sorted by such a value: {', '.join(wrong)}." if wrong else ""
