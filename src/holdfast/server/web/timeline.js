// A picture of the runs over time. Times in which nothing happened are shortened.
import { html, useEffect, useMemo, useState } from "./preact.js";
import * as api from "./api.js";
import { Message } from "./conversation.js";
import { clock, count, lasting } from "./words.js";

const ROW = 52;
const LANE = { model: 6, tool: 20 }; // a request takes a moment, a tool may take long: neither hides the other
const LEFT = 12;
const GAP = 3_000; // a longer pause is drawn as this
const RUNS = 60;
const DELEGATING = 10; // runs that are asked for their delegates
const MARKS = { handover: "⇄", takeover: "↷", recovered: "✚", asks: "?", run_interrupted: "■", rewound: "↶", forked: "⑂" };

// Returns what places a time, and the length of it all.
function scale(spans, marks) {
  const points = [];
  for (const span of spans) points.push([span.from, span.to]);
  for (const mark of marks) points.push([mark.time, mark.time]);
  points.sort((one, other) => one[0] - other[0]);
  const parts = [];
  for (const [from, to] of points) {
    const last = parts.at(-1);
    if (last && from - last.to <= GAP) last.to = Math.max(last.to, to);
    else parts.push({ from, to, at: last ? last.at + (last.to - last.from) + GAP : 0 });
  }
  const last = parts.at(-1);
  const place = (time) => {
    const part = parts.findLast((one) => one.from <= time) ?? parts[0];
    return part.at + Math.min(time, part.to) - part.from;
  };
  return { place, length: last ? Math.max(1, last.at + last.to - last.from) : 1 };
}

function layout(journal, delegates) {
  const now = Date.now();
  const all = [...journal.runs.values()];
  const runs = all.slice(-RUNS);
  const rows = runs.map((run) => ({
    run,
    spans: run.spans.map((span) => ({ ...span, from: Date.parse(span.start), to: span.end ? Date.parse(span.end) : now })),
    from: Date.parse(run.at),
    to: run.ended ? Date.parse(run.ended) : run.status === "running" ? now : Date.parse(run.spans.at(-1)?.end ?? run.at),
  }));
  for (const run of delegates) {
    const from = Date.parse(run.started_at);
    const after = rows.findLastIndex((row) => row.run.id === run.parent_id || row.run.parent === run.parent_id);
    const facts = { id: run.id, agent: run.agent, parent: run.parent_id, session: run.session_id, status: run.status, at: run.started_at };
    if (after >= 0) rows.splice(after + 1, 0, { run: facts, spans: [], from, to: run.ended_at ? Date.parse(run.ended_at) : now });
  }
  const first = rows[0]?.from ?? 0;
  const marks = journal.marks
    .filter((mark) => mark.kind in MARKS && Date.parse(mark.at) >= first)
    .map((mark) => ({ ...mark, time: Date.parse(mark.at) }));
  return { rows, marks, hidden: all.length - runs.length, ...scale(rows.flatMap((row) => row.spans.length ? row.spans : [row]), marks) };
}

// The runs that tools of the latest runs have started, in sessions of their own.
function useDelegates(journal) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    let stopped = false;
    const timer = setTimeout(async () => {
      const pages = await Promise.all([...journal.runs.keys()].slice(-DELEGATING).map((run) => api.delegates(run).catch(() => ({ items: [] }))));
      if (!stopped) setFound(pages.flatMap((page) => page.items));
    }, 200);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [journal, journal.seq]);
  return found;
}

export function Timeline({ id, journal, version }) {
  const [step, setStep] = useState(null);
  const delegates = useDelegates(journal);
  const { rows, marks, hidden, place, length } = useMemo(() => layout(journal, delegates), [version, delegates]);
  if (!rows.length) return html`<div class="pane"><p class="empty">No run has begun yet.</p></div>`;
  const width = Math.min(4000, Math.max(680, rows.reduce((sum, row) => sum + row.spans.length, 0) * 36));
  const x = (time) => LEFT + (place(time) / length) * (width - 2 * LEFT - 14);
  const rowOf = new Map(rows.map((row, n) => [row.run.id, n]));
  const choose = (span) => () => setStep(span);
  const onKey = (span) => (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      setStep(span);
    }
  };
  return html`<div class="pane">
    ${hidden > 0 && html`<p class="hint">${count(hidden, "earlier run")} left out.</p>`}
    <div class="scroll timeline" tabindex="0" role="group" aria-label="Runs over time">
      <svg width=${width} height=${rows.length * ROW + 28} viewBox=${`0 0 ${width} ${rows.length * ROW + 28}`}>
        ${rows.map(({ run, spans, from, to }, n) => {
          const y = 24 + n * ROW;
          return html`<g key=${run.id}>
            <text class="run-label" x=${Math.min(x(from), width - 220)} y=${y}>
              ${run.parent ? "↳ " : ""}${run.agent || "run"} · ${run.status} · ${clock(run.at)}
            </text>
            ${run.session &&
            html`<a href=${`#/s/${encodeURIComponent(run.session)}`} aria-label=${`Open the session of ${run.agent}`}>
              <rect class="span delegate" x=${x(from)} y=${y + 12} width=${Math.max(7, x(to) - x(from))} height="14" rx="2"><title>${run.agent}, ${lasting(to - from)}, in a session of its own</title></rect>
            </a>`}
            <rect class=${`run ${run.status.replace(" ", "-")}${run.session ? " other" : ""}`} x=${x(from)} y=${y + 4} width=${Math.max(3, x(to) - x(from))} height="30" rx="4" />
            ${spans.map((span) => {
              const words = `${span.kind === "model" ? "Model request" : `Tool ${span.label}`}, ${span.state}, ${lasting(span.to - span.from)}`;
              const on = step && step.seq === span.seq ? " chosen" : "";
              return html`<rect
                key=${span.seq}
                class=${`span ${span.kind} ${span.state.replace(" ", "-")}${on}`}
                x=${x(span.from)} y=${y + LANE[span.kind]} width=${Math.max(7, x(span.to) - x(span.from))} height="12" rx="2"
                tabindex="0" role="button" aria-label=${words}
                onClick=${choose(span)} onKeyDown=${onKey(span)}
              ><title>${words}</title></rect>`;
            })}
          </g>`;
        })}
        ${marks.map((mark) => {
          const n = rowOf.get(mark.run) ?? Math.max(0, rows.findLastIndex((row) => row.from <= mark.time));
          return html`<text class=${`sign ${mark.kind}`} x=${x(mark.time)} y=${24 + n * ROW + 25} text-anchor="middle" role="img" aria-label=${mark.text}>
            ${MARKS[mark.kind]}<title>${mark.text} ${clock(mark.at)}</title>
          </text>`;
        })}
      </svg>
    </div>
    <p class="legend">
      <span class="key model">model request</span> <span class="key tool">tool call</span> <span class="key delegate">delegate</span>
      <span>✚ recovered</span> <span>↷ taken over</span> <span>⇄ handed over</span> <span>? asks</span> <span>■ interrupted</span>
    </p>
    ${step ? html`<${Step} key=${step.seq} id=${id} step=${step} />` : html`<p class="hint">Choose a step to see what was said there, and to fork or go back.</p>`}
  </div>`;
}

function Step({ id, step }) {
  const [place, setPlace] = useState(undefined);
  const [said, setSaid] = useState(null);
  useEffect(() => {
    api.checkpoints(step.run).then(
      ({ items }) => {
        const ordered = items.toSorted((one, other) => one.seq - other.seq);
        setPlace(ordered.find((one) => one.seq >= (step.item?.seq ?? step.seq)) ?? ordered.at(-1) ?? null);
      },
      (error) => setSaid(error.message),
    );
  }, [step]);
  const ask = (what, words) => async () => {
    try {
      await what(id, { checkpoint_id: place.id });
      setSaid(words);
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<section class="step" aria-label="Step">
    <h3>${step.kind === "model" ? "Model request" : step.label} <span class="hint">${step.state}, ${lasting(step.to - step.from)}, began ${clock(step.start)}</span></h3>
    ${step.item ? html`<${Message} item=${step.item} />` : html`<p class="hint">Nothing was said in this step.</p>`}
    ${place &&
    html`<div class="row">
      <button type="button" onClick=${ask(api.fork, "The fork is being made: the conversation links to it.")}>Fork from here</button>
      <button type="button" onClick=${ask(api.rewind, "It goes back as soon as nothing else runs.")}>Go back to here</button>
      <span class="hint">${count(place.length, "message")} of history, ${place.kind}</span>
    </div>`}
    ${place === null && html`<p class="hint">This run has no point to go on from.</p>`}
    ${said && html`<p role="status">${said}</p>`}
  </section>`;
}
