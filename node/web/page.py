"""A page of the node: a template filled with its own values and with those that all pages have, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from node.dicom import identity
from node.web.dependencies import WebParts
from node.web.users import Role, user_of

_FOLDER: Final = Path(__file__).parent
STATIC: Final = _FOLDER / "static"
_TEMPLATES: Final = Jinja2Templates(_FOLDER / "templates")


def render(
    parts: WebParts, request: Request, template: str, about: Mapping[str, object], *, status: int = 200
) -> Response:
    """Fill a template; about: its own values. `Access` lets nobody cache the page, which may name a patient."""
    user = user_of(request)
    common = {
        "program": identity.PROGRAM,
        "version": identity.VERSION,
        "node": parts.settings.listener.ae_title,
        "label": identity.RESEARCH_LABEL,
        "zone": parts.settings.site.timezone,
        "local": partial(_local, zone=parts.settings.site.zone),
        "kept": _kept_together,
        "user": user.name,
        "has_session": user.means == "session",
        "csrf_token": user.csrf_token,
        "troubles": parts.troubles(),
        "may_administer": user.role is Role.ADMINISTRATOR,
    }
    return _TEMPLATES.TemplateResponse(request, template, {**common, **about}, status_code=status)


def _local(moment: datetime, *, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M")


def _kept_together(text: str) -> str:
    """Let no line break part a number from its percent sign."""
    return text.replace(" %", "\xa0%")


def refuse(parts: WebParts, request: Request, status: int, text: str, *, back: str = "/") -> Response:
    """Return a page that says why a page cannot be shown; back: link to another page."""
    return render(parts, request, "problem.html", {"status": status, "text": text, "back": back}, status=status)
