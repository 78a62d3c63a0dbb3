"""StatusPage: the routes of the status page. The page holds no data: its script fetches the document and draws it.

So names that others chose are never part of any HTML: the script writes them as text (gateway/status_page.js).
"""

from __future__ import annotations

import time
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.caller import caller_in
from gateway.models import json_response
from gateway.page import html_page
from gateway.status import Status

_STYLE = """
header { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; align-items: baseline; justify-content: space-between; }
#live { font-variant-numeric: tabular-nums; } #live[data-old=yes] { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; margin: 0; }
.card dt { color: var(--soft); font-size: .85rem; }
.card dd { margin: 0; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } #models, #workers { min-width: 56rem; } #pools { min-width: 30rem; }
tbody th.name { color: var(--ink); min-width: 9rem; max-width: 18rem; white-space: normal;
  overflow-wrap: anywhere; }
td:not(.number) { max-width: 18rem; overflow-wrap: break-word; }
.number + :not(.number) { padding-left: 1rem; }
td:last-child.number, th:last-child.number { padding-right: 0; }
td .state { display: inline-block; margin: 0 .35rem .1rem 0; white-space: nowrap; }
.state::before { content: ""; display: inline-block; width: .6em; height: .6em; border-radius: 50%;
  margin-right: .35em; background: var(--soft); }
.state.ready::before, .state.serving::before { background: var(--good); }
.state.failed::before { background: var(--bad); border-radius: 0; }
.state.loading::before, .state.fetching::before, .state.starting::before, .state.draining::before
  { background: var(--busy); border-radius: 2px; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); gap: 1rem; }
.plot { border: 1px solid var(--line); border-radius: 8px; padding: .8rem .9rem .5rem; min-width: 0; }
.plot h3 { margin: 0 0 .4rem; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
@media (max-width: 34rem) { .pair { grid-template-columns: 1fr; } }
figure { margin: 0; min-width: 0; } figcaption { color: var(--soft); font-size: .85rem; }
svg { display: block; width: 100%; height: auto; } svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
svg text { fill: var(--soft); font: 10px system-ui, sans-serif; }
#key { margin: 1rem 0; } #key input { font: inherit; padding: .3rem .5rem; min-width: 18rem; }
[hidden] { display: none !important; }
"""
_BODY = """
<header><div><h1>tidegate</h1><p class="soft" id="gateway">reading the status …</p></div>
<p class="soft" id="live" data-old="no"></p></header>
<noscript><p>This page draws <a href="status.json">status.json</a> with a script.</p></noscript>
<p id="key" hidden><label>The gateway asks who you are. API key or token, kept in this tab only:
<input id="token" type="password" autocomplete="off" spellcheck="false"></label></p>
<main id="main" hidden>
<dl class="cards" id="cards"></dl>
<section aria-labelledby="h-pools"><h2 id="h-pools">Pools</h2>
<div class="scroll"><table id="pools"></table></div></section>
<section aria-labelledby="h-models"><h2 id="h-models">Models</h2>
<div class="scroll"><table id="models"></table></div></section>
<section aria-labelledby="h-plots"><h2 id="h-plots">Batches and latency</h2>
<p class="soft" id="plots-note"></p><div class="plots" id="plots"></div></section>
<section aria-labelledby="h-workers"><h2 id="h-workers">Workers</h2>
<div class="scroll"><table id="workers"></table></div></section>
</main>
"""


def status_routes(status: Status) -> list[Route]:
    """What to mount."""
    script = files("gateway").joinpath("status_page.js").read_bytes()

    async def get_page(request: Request) -> Response:
        return html_page("tidegate status", _BODY, style=_STYLE, head='<script src="status.js" defer></script>')

    async def get_script(request: Request) -> Response:
        return Response(script, 200, {"x-content-type-options": "nosniff"}, "text/javascript")

    async def get_document(request: Request) -> Response:
        document = await status.read(caller_in(request.scope), time.time_ns() // 1_000_000)
        response = json_response(document)
        response.headers["cache-control"] = "no-store"
        return response

    return [
        Route("/status", get_page, methods=["GET"]),
        Route("/status.js", get_script, methods=["GET"]),
        Route("/status.json", get_document, methods=["GET"]),
    ]
