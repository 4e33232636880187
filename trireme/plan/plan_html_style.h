// The style of a plan's page.
#pragma once

namespace trireme {

inline constexpr const char* kPlanStyle = R"(
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --quiet: #59636e; --rule: #d1d9e0;
  --a: #2f6f9f; --b: #a9cbe2; --on-a: #fff; --on-b: #12293a; --warn: #a4301c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6eaee; --quiet: #9aa5b1;
  --rule: #39424c; --a: #6fb1de; --b: #2b4a61; --on-a: #0d1a24; --on-b: #e6eaee; --warn: #ff9c87; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 66rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--rule); }
p { margin: .4rem 0; max-width: 50rem; }
.quiet, caption { color: var(--quiet); }
.over { color: var(--warn); font-weight: 700; }
dl { display: flex; flex-wrap: wrap; gap: .75rem 2rem; margin: 1rem 0; }
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
dd small { font-size: .85rem; color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; font-size: .85rem; color: var(--quiet); }
tbody th { font: inherit; color: var(--ink); overflow-wrap: anywhere; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bars { min-width: 15rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--rule); padding: .75rem; margin: .5rem 0;
  font: 13px/1.5 ui-monospace, monospace; }
.bar { position: relative; height: 1.6rem; margin: .35rem 0; border: 1px solid var(--quiet); overflow: hidden; }
td .bar { height: .9rem; margin: .2rem 0; }
.segment { position: absolute; top: 0; bottom: 0; overflow: hidden; white-space: nowrap; border-right: 1px solid var(--ground); }
.segment b { font-weight: 500; font-size: .75rem; padding-left: .4rem; line-height: 1.5rem; }
td .segment b { display: none; }
.tone-a { background: var(--a); color: var(--on-a); }
.tone-b { background: var(--b); color: var(--on-b); }
.hatched { background-color: var(--rule); color: var(--ink);
  background-image: repeating-linear-gradient(45deg, var(--quiet) 0 2px, var(--rule) 2px 7px); }
.hatched b { background: var(--ground); padding-right: .4rem; }
.limit, .end { position: absolute; top: 0; bottom: 0; border-left: 2px dashed var(--ink); }
.end { border-left: 3px solid var(--warn); }
svg { width: 100%; max-width: 60rem; height: auto; font-size: 12px; }
svg text { fill: var(--ink); text-anchor: middle; }
svg .name { fill: var(--quiet); text-anchor: start; }
svg .axis { stroke: var(--quiet); }
svg .stem { stroke: var(--rule); }
svg .line { fill: none; stroke: var(--a); stroke-width: 2; }
svg .point { fill: var(--ground); stroke: var(--a); stroke-width: 2; }
svg .best { fill: var(--a); stroke: var(--ink); }
@media print { body { max-width: none; } h2 { break-after: avoid; } tr, .bar, svg { break-inside: avoid; } }
)";

}  // namespace trireme
