"""The page at `/`: what runs here, in plain HTML without any further request."""

from __future__ import annotations

import base64
import hashlib

from fastapi import APIRouter
from starlette.responses import Response

from api.documentation import OPENAPI_PATH

router = APIRouter()

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}code{font-size:.95em}"
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Milepost</title><style>{_STYLE}</style></head>
<body>
<h1>Milepost</h1>
<p>A self-hosted, durable agent workbench. This is its HTTP API.</p>
<ul>
<li>All routes: <a href="{OPENAPI_PATH}">{OPENAPI_PATH}</a> (OpenAPI). Requests need
<code>Authorization: Bearer TOKEN</code>; the token is in the file <code>api.token</code> of the data root.</li>
<li>On the command line: <code>milepost chat</code> to talk with an agent,
<code>milepost run "REQUEST"</code> for one turn, <code>milepost history SESSION</code>,
<code>milepost doctor</code> when something is wrong, <code>milepost --help</code> for the rest.</li>
</ul>
</body>
</html>
"""


@router.get("/", include_in_schema=False)
async def root_page() -> Response:
    """Open without credentials; says nothing about the instance."""
    return Response(_PAGE, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _POLICY})
