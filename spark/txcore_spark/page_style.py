"""The style of the report's page: wide screens, phones (a finding becomes a card), dark screens and paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c1c1c}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 8px;border-bottom:1px solid #ddd;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code{font:12px ui-monospace,monospace;overflow-wrap:anywhere}
.verdict{padding:.7em 1em;border-left:6px solid;background:#f5f5f5;font-size:1.1em}
.c0{border-color:#2f8f5b}.c1{border-color:#c9a227}.c2,.c4{border-color:#b3261e}.c3{border-color:#7a7a7a}
.violation{color:#b3261e;font-weight:600}.warning{color:#8a6a00}.inconclusive{color:#555;font-style:italic}
.places{min-width:17em}.records{width:auto}
figure{margin:1em 0}figcaption{font-weight:600}svg{width:100%;height:auto;font:12px system-ui,sans-serif}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 1em;font-size:13px}dd{margin:0;overflow-wrap:anywhere}
dt{font-weight:600}
.tools{display:flex;flex-wrap:wrap;gap:.5em;margin:1em 0;align-items:center}.tools[hidden]{display:none}
.tools input{flex:1 1 16em}.tools input,.tools select{font:inherit;padding:4px 6px}
th button{font:inherit;font-weight:600;border:0;background:none;color:inherit;padding:0;cursor:pointer}
th[aria-sort=ascending] button::after{content:" \\25b2"}th[aria-sort=descending] button::after{content:" \\25bc"}
tr:has(+.story)>td{border-bottom:0}.story>td{padding-top:0}
.story details{color:#444}.records td{border:0;padding:1px 8px}.records td:first-child{white-space:nowrap}
summary{cursor:pointer}
@media(max-width:700px){
body{margin:1em auto}
.cards>thead{display:none}.cards>tbody{display:block}.cards>tbody[hidden]{display:none}
.cards>tbody>tr{display:block;padding:6px 0;border-bottom:1px solid #ddd}.cards>tbody>tr:has(+.story){border:0}
.cards>tbody>tr>td{display:block;border:0;padding:1px 0;text-align:left}
.cards>tbody>tr>td[data-h]{display:grid;grid-template-columns:7.5em 1fr;gap:.5em}
.cards>tbody>tr>td[data-h]::before{content:attr(data-h);color:#777}
.cards>tbody>tr>td[data-h]:not(:has(>*>*)):has(>:empty){display:none}.places{min-width:0}
.story>td{border:0;padding:4px 0}.records td{display:block}dl{grid-template-columns:1fr}dd{margin-bottom:.4em}
}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e8e8e8}.verdict{background:#22262b}
th,td,.cards>tbody>tr{border-color:#3a3f46}svg text{fill:#e8e8e8}.story details{color:#bbb}
.violation{color:#ff8a80}.warning{color:#e6c65c}.inconclusive{color:#bbb}}
@media print{body{max-width:none;margin:0;font-size:11px;color:#000;background:#fff}.tools{display:none!important}
table,dl{font-size:9.5px}code{font-size:8.5px}.verdict{background:none}figure,.cards>tbody>tr{break-inside:avoid}
h2{break-after:avoid}thead{display:table-header-group}svg text{fill:#000}
@page{margin:14mm}}
"""
